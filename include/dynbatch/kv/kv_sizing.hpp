// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How many KV blocks a device holds: bytes of a token from the model's shape, blocks from memory.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// What one token keeps in KV on one device. With tensor parallelism give the heads of one device;
/// latent KV is not divided.
struct KvShape {
  std::int32_t num_layers = 0;     ///< Layers with KV; >= 1.
  std::int32_t num_kv_heads = 0;   ///< Grouped-query attention: heads that have keys and values.
  std::int32_t head_dim = 0;       ///< Elements of a key, and of a value.
  std::int32_t latent_dim = 0;     ///< Latent attention (MLA): elements of the latent vector with
                                   ///< its rotary part, 576 for DeepSeek-V3; 0 = keys and values.
  std::int32_t element_bits = 16;  ///< Of one element: 16 (bf16), 8 (fp8), 4; 1 to 64.
  std::int32_t extra_bytes = 0;    ///< A token and layer: scales, elements kept wider; >= 0.

  [[nodiscard]] constexpr Status validate() const noexcept {
    constexpr std::int32_t kMost = 1 << 20;
    const auto bad = [](const char* field, std::int64_t value, std::int64_t limit) {
      return Status{Errc::InvalidConfig, field, value, limit, "is out of range"};
    };
    if (num_layers < 1 || num_layers > kMost) {
      return bad("num_layers", num_layers, kMost);
    }
    if (latent_dim < 0 || latent_dim > kMost) {
      return bad("latent_dim", latent_dim, kMost);
    }
    if (latent_dim == 0 && (num_kv_heads < 1 || num_kv_heads > kMost)) {
      return bad("num_kv_heads", num_kv_heads, kMost);
    }
    if (latent_dim == 0 && (head_dim < 1 || head_dim > kMost)) {
      return bad("head_dim", head_dim, kMost);
    }
    if (element_bits < 1 || element_bits > 64) {
      return bad("element_bits", element_bits, 64);
    }
    if (extra_bytes < 0 || extra_bytes > kMost) {
      return bad("extra_bytes", extra_bytes, kMost);
    }
    return kOk;
  }
};

/// DeepSeek-V3's latent KV as its fp8 kernels store it: 512 elements of a byte, four float scales,
/// 64 rotary elements in bf16: 656 bytes a token and layer.
[[nodiscard]] constexpr KvShape mla_fp8_shape(std::int32_t num_layers) noexcept {
  return {.num_layers = num_layers, .latent_dim = 512, .element_bits = 8, .extra_bytes = 144};
}

/// Bytes of one token in all layers; 0 for a shape that does not validate.
[[nodiscard]] constexpr std::int64_t kv_bytes_per_token(const KvShape& shape) noexcept {
  if (!shape.validate()) {
    return 0;
  }
  const std::int64_t elements = shape.latent_dim > 0
                                    ? shape.latent_dim
                                    : std::int64_t{2} * shape.num_kv_heads * shape.head_dim;
  const std::int64_t bytes =
      ceil_div(saturating_mul(elements, shape.element_bits), std::int64_t{8}) + shape.extra_bytes;
  return saturating_mul(bytes, shape.num_layers);
}

/// Blocks of `block_size` tokens that fit into a share of the device's memory; 600 to 700
/// thousandths are usual, the rest is for weights and activations. Errors: InvalidConfig names the
/// field, CanNeverFit if not even one block fits.
[[nodiscard]] inline Expected<std::int64_t> kv_blocks(const KvShape& shape,
                                                      std::int64_t device_bytes,
                                                      std::int32_t block_size = 16,
                                                      std::int32_t share_permille = 650) noexcept {
  if (const Status s = shape.validate(); !s) {
    return s;
  }
  if (device_bytes < 1) {
    return Status{Errc::InvalidConfig, "device_bytes", device_bytes, 1, "must be at least 1"};
  }
  if (block_size < 1 || block_size > 65536) {
    return Status{Errc::InvalidConfig, "block_size", block_size, 65536, "must be in [1, limit]"};
  }
  if (share_permille < 1 || share_permille > 1000) {
    return Status{Errc::InvalidConfig, "share_permille", share_permille, 1000,
                  "must be in [1, limit]"};
  }
  const std::int64_t block_bytes = saturating_mul(kv_bytes_per_token(shape), block_size);
  const std::int64_t bytes =
      device_bytes / 1000 * share_permille + device_bytes % 1000 * share_permille / 1000;
  if (bytes < block_bytes) {
    return Status{Errc::CanNeverFit, "device_bytes", bytes, block_bytes,
                  "the share of memory holds not one block"};
  }
  return min_of<std::int64_t>(bytes / block_bytes, 2147483646);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
