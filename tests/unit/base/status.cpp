// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/error.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

using namespace dynbatch;

namespace {

std::string formatted(const Status& status, std::size_t capacity = 256) {
  std::string out(capacity, '#');
  const std::size_t length = format_status(status, out.data(), capacity);
  return out.substr(0, length);
}

}  // namespace

TEST_CASE("a default Status is success and says so", "[base]") {
  constexpr Status status;
  STATIC_REQUIRE(status.is_ok());
  STATIC_REQUIRE(static_cast<bool>(status));
  STATIC_REQUIRE(status == kOk);
  CHECK(formatted(status) == "ok");
}

TEST_CASE("a formatted Status names field, value, limit and sentence", "[base]") {
  const Status status{Errc::InvalidConfig, "batch", -3, 1, "must be at least 1"};
  CHECK_FALSE(status.is_ok());
  CHECK(formatted(status) == "invalid config: batch = -3 (limit 1): must be at least 1");
  CHECK(formatted({Errc::Closed}) == "closed");
  CHECK(formatted({Errc::NotFound, "id", 7, 0, ""}) == "not found: id = 7");
}

TEST_CASE("formatting prints the extremes and cuts at the capacity", "[base]") {
  const Status least{Errc::InternalError, "v", std::numeric_limits<std::int64_t>::min(), 0, ""};
  CHECK(formatted(least) == "internal error: v = -9223372036854775808");
  const Status most{Errc::InternalError, "v", std::numeric_limits<std::int64_t>::max(), 0, ""};
  CHECK(formatted(most) == "internal error: v = 9223372036854775807");

  char out[6] = {'x', 'x', 'x', 'x', 'x', 'x'};
  CHECK(format_status(most, out, 5) == 4);
  CHECK(std::string(out) == "inte");
  CHECK(out[5] == 'x');
  CHECK(format_status(most, out, 0) == 0);
  CHECK(out[0] == 'i');
}

TEST_CASE("every error code has a name of its own", "[base]") {
  std::string seen;
  int num_named = 0;
  for (int code = 0; code < 256; ++code) {
    const std::string name = to_string(static_cast<Errc>(code));
    if (name == "unknown") {
      continue;
    }
    ++num_named;
    CHECK(seen.find("|" + name + "|") == std::string::npos);
    seen += "|" + name + "|";
  }
  CHECK(num_named >= 15);
}

TEST_CASE("raise throws an Error that carries the Status", "[base]") {
  const Status status{Errc::InvalidConfig, "batch", 0, 1, "must be at least 1"};
  bool was_caught = false;
  try {
    raise(status);
  } catch (const Error& error) {
    was_caught = true;
    CHECK(error.status() == status);
    CHECK(std::string(error.what()) == formatted(status));
  }
  CHECK(was_caught);
}

TEST_CASE("Expected holds either a value or the reason why not", "[base]") {
  const Expected<int> failed(Status{Errc::OutOfMemory, "pool", 5, 0, "allocation failed"});
  CHECK_FALSE(failed.has_value());
  CHECK(failed.status().code == Errc::OutOfMemory);

  Expected<std::unique_ptr<int>> made(std::make_unique<int>(4));
  REQUIRE(made.has_value());
  CHECK(**made == 4);
  Expected<std::unique_ptr<int>> moved(std::move(made));
  REQUIRE(moved.has_value());
  CHECK(*moved.value() == 4);
  const std::unique_ptr<int> taken = std::move(moved).value();
  CHECK(*taken == 4);

  Expected<int> empty(Status{Errc::Closed});
  CHECK_THROWS_AS(empty.value(), Error);
}

TEST_CASE("Expected destroys its value exactly once", "[base]") {
  const auto counter = std::make_shared<int>(0);
  {
    Expected<std::shared_ptr<int>> first{std::shared_ptr<int>(counter)};
    CHECK(counter.use_count() == 2);
    const Expected<std::shared_ptr<int>> second(std::move(first));
    CHECK(counter.use_count() == 2);
  }
  CHECK(counter.use_count() == 1);
}
