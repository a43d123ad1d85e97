// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/kv_sizing.hpp>

#include <catch2/catch.hpp>
#include <string>

using namespace dynbatch;

TEST_CASE("Bytes a token of published models") {
  const KvShape llama70b{.num_layers = 80, .num_kv_heads = 8, .head_dim = 128};
  CHECK(kv_bytes_per_token(llama70b) == 327'680);
  KvShape fp8 = llama70b;
  fp8.element_bits = 8;
  CHECK(kv_bytes_per_token(fp8) == 163'840);
  const KvShape deepseek{.num_layers = 61, .latent_dim = 576};
  CHECK(kv_bytes_per_token(deepseek) == 70'272);
  CHECK(kv_bytes_per_token(mla_fp8_shape(61)) == 61 * 656);
  CHECK(kv_bytes_per_token({}) == 0);
}

TEST_CASE("Blocks are what a share of the memory holds") {
  const KvShape shape{.num_layers = 80, .num_kv_heads = 2, .head_dim = 128};
  const auto blocks = kv_blocks(shape, std::int64_t{80} << 30, 16, 650);
  REQUIRE(blocks.has_value());
  const std::int64_t block_bytes = 81'920 * 16;
  CHECK(*blocks * block_bytes <= (std::int64_t{80} << 30) / 1000 * 650 + 650);
  CHECK((*blocks + 1) * block_bytes > (std::int64_t{80} << 30) / 1000 * 650);
  CHECK(kv_blocks(shape, 1'000'000, 16).status().code == Errc::CanNeverFit);
  CHECK(*kv_blocks({.num_layers = 1, .latent_dim = 1, .element_bits = 1}, std::int64_t{1} << 62, 1,
                   1000) == 2147483646);
}

TEST_CASE("A shape that makes no sense is refused by its field") {
  const auto field = [](const KvShape& shape, std::int64_t bytes = 1 << 30, std::int32_t block = 16,
                        std::int32_t share = 650) {
    return std::string(kv_blocks(shape, bytes, block, share).status().field);
  };
  const KvShape good{.num_layers = 2, .num_kv_heads = 2, .head_dim = 8};
  CHECK(field({}) == "num_layers");
  CHECK(field({.num_layers = 1}) == "num_kv_heads");
  CHECK(field({.num_layers = 1, .num_kv_heads = 1}) == "head_dim");
  CHECK(field({.num_layers = 1, .latent_dim = -1}) == "latent_dim");
  CHECK(field({.num_layers = 1, .latent_dim = 8, .element_bits = 0}) == "element_bits");
  CHECK(field({.num_layers = 1, .latent_dim = 8, .extra_bytes = -1}) == "extra_bytes");
  CHECK(field(good, 0) == "device_bytes");
  CHECK(field(good, 1 << 30, 0) == "block_size");
  CHECK(field(good, 1 << 30, 16, 1001) == "share_permille");
  CHECK(field(good).empty());
}
