// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/stats.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

using namespace dynbatch;

TEST_CASE("default capabilities are valid", "[model]") { CHECK(Capabilities{}.validate()); }

TEST_CASE("bad capabilities are refused by the name of the field", "[model]") {
  const auto field_of = [](const Capabilities& capabilities) {
    const Status status = capabilities.validate();
    CHECK(status.code == Errc::InvalidConfig);
    return std::string(status.field);
  };
  Capabilities c;
  c.max_tokens = 0;
  CHECK(field_of(c) == "capabilities.max_tokens");
  c = {};
  c.max_sequences = 0;
  CHECK(field_of(c) == "capabilities.max_sequences");
  c = {};
  c.sequence_handles = -1;
  CHECK(field_of(c) == "capabilities.sequence_handles");
  c = {};
  c.kv_tokens = -1;
  CHECK(field_of(c) == "capabilities.kv_tokens");
  c = {};
  const std::vector<GroupSpec> groups(kMaxGroups + 1);
  c.groups = groups;
  CHECK(field_of(c) == "capabilities.groups");
  c = {};
  const std::vector<std::int32_t> sizes{1, 2, 2};
  c.graph_sizes = sizes;
  CHECK(field_of(c) == "capabilities.graph_sizes");
  c = {};
  c.num_experts = -1;
  CHECK(field_of(c) == "capabilities.num_experts");
}

TEST_CASE("terminal events are the ones after which nothing comes", "[model]") {
  CHECK_FALSE(is_terminal(EventKind::Accepted));
  CHECK_FALSE(is_terminal(EventKind::FirstToken));
  CHECK_FALSE(is_terminal(EventKind::Tokens));
  CHECK_FALSE(is_terminal(EventKind::Preempted));
  CHECK(is_terminal(EventKind::Finished));
  CHECK(is_terminal(EventKind::Cancelled));
  CHECK(is_terminal(EventKind::Expired));
  CHECK(is_terminal(EventKind::Failed));
}

TEST_CASE("blocks that hold nothing needed are available", "[model]") {
  PoolStats pool;
  pool.total_blocks = 10;
  pool.free_blocks = 3;
  pool.cached_blocks = 4;
  pool.referenced_blocks = 3;
  CHECK(pool.available_blocks() == 7);
}

TEST_CASE("every cause of waiting has a name", "[model]") {
  for (int cause = 0; cause <= static_cast<int>(WaitCause::Loading); ++cause) {
    CHECK(std::string(to_string(static_cast<WaitCause>(cause))) != "unknown");
  }
}
