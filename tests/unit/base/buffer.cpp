// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/buffer.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

using namespace dynbatch;

TEST_CASE("a Buffer is zeroed, movable and empty after a move", "[base]") {
  Buffer<std::int32_t> buffer;
  CHECK(buffer.size() == 0);
  REQUIRE(buffer.allocate(100, "numbers"));
  REQUIRE(buffer.size() == 100);
  for (const std::int32_t v : buffer.span()) {
    CHECK(v == 0);
  }
  buffer[99] = 5;
  Buffer<std::int32_t> moved(std::move(buffer));
  CHECK(moved[99] == 5);
  CHECK(buffer.size() == 0);  // NOLINT(bugprone-use-after-move): the moved-from state is documented
  buffer = std::move(moved);
  CHECK(buffer[99] == 5);
  REQUIRE(buffer.allocate(0, "numbers"));
  CHECK(buffer.size() == 0);
}

TEST_CASE("a Buffer larger than any object is refused before it is asked for", "[base]") {
  Buffer<std::byte> bytes;
  const Status status = bytes.allocate(std::size_t{1} << 63U, "max_everything");
  CHECK(status.code == Errc::OutOfMemory);
  CHECK(std::string(status.field) == "max_everything");
  CHECK(bytes.allocate(static_cast<std::size_t>(PTRDIFF_MAX), "n").code == Errc::OutOfMemory);
  struct alignas(64) Line {
    std::byte data[64];
  };
  Buffer<Line> lines;
  CHECK(lines.allocate(std::size_t{1} << 58U, "n").code == Errc::OutOfMemory);
  CHECK(lines.data() == nullptr);
}

// Sanitizers end the program where malloc would return null.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZER_OWNS_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZER_OWNS_MALLOC 1
#endif
#endif

TEST_CASE("a Buffer that cannot be allocated names the field and the count", "[base]") {
#if defined(SANITIZER_OWNS_MALLOC)
  WARN("SKIPPED: the sanitizer's allocator does not return null");
#else
  Buffer<std::int64_t> buffer;
  const std::size_t count = std::numeric_limits<std::size_t>::max() / 32;
  const Status status = buffer.allocate(count, "max_everything");
  // Without a use of the pointer a compiler may leave the allocation out and call it a success.
  const volatile void* volatile used = buffer.data();
  CHECK(used == nullptr);
  CHECK(status.code == Errc::OutOfMemory);
  CHECK(std::string(status.field) == "max_everything");
  CHECK(status.value == static_cast<std::int64_t>(count));
  CHECK(buffer.size() == 0);
#endif
}

TEST_CASE("a FixedVector fills to its capacity and keeps its order", "[base]") {
  FixedVector<int> vector;
  REQUIRE(vector.allocate(3, "numbers"));
  CHECK(vector.empty());
  CHECK(vector.capacity() == 3);
  vector.push_back(1);
  vector.push_back(2);
  vector.push_back(3);
  CHECK(vector.size() == 3);
  CHECK(vector.back() == 3);
  vector.pop_back();
  CHECK(vector.back() == 2);
  int sum = 0;
  for (const int v : vector) {
    sum = sum * 10 + v;
  }
  CHECK(sum == 12);
  CHECK(vector.span().size() == 2);
  vector.resize(1);
  CHECK(vector.size() == 1);
  vector.clear();
  CHECK(vector.empty());
  CHECK(vector.capacity() == 3);
}

TEST_CASE("a Buffer is zeroed and whole whatever pages it asks for", "[base]") {
  // Below and above the size from which huge pages are asked for, and over-aligned elements.
  for (const std::size_t bytes : {std::size_t{100}, detail::kHugePage, 2 * detail::kHugePage - 1,
                                  2 * detail::kHugePage, 5 * detail::kHugePage + 12'345}) {
    Buffer<unsigned char> buffer;
    REQUIRE(buffer.allocate(bytes, "bytes", PageUse::Dense));
    REQUIRE(buffer.size() == bytes);
    bool is_zero = true;
    for (const unsigned char v : buffer.span()) {
      is_zero = is_zero && v == 0;
    }
    CHECK(is_zero);
    buffer[0] = 1;
    buffer[bytes - 1] = 2;
    CHECK(int{buffer[bytes - 1]} == 2);
  }
  struct alignas(64) Line {
    unsigned char data[64];
  };
  Buffer<Line> lines;
  REQUIRE(lines.allocate(3 * detail::kHugePage / sizeof(Line), "lines"));
  CHECK(reinterpret_cast<std::uintptr_t>(lines.data()) % 64 == 0);
  CHECK(int{lines[lines.size() - 1].data[63]} == 0);
}

TEST_CASE("asking for huge pages changes no byte, from any address", "[base]") {
  Buffer<unsigned char> buffer;
  const std::size_t bytes = 3 * detail::kHugePage;
  REQUIRE(buffer.allocate(bytes, "bytes"));
  for (std::size_t i = 0; i < bytes; i += 4'001) {
    buffer[i] = static_cast<unsigned char>(i % 251);
  }
  for (const std::size_t first : {std::size_t{0}, std::size_t{1}, std::size_t{4'095}}) {
    detail::prefer_huge_pages(buffer.data() + first, bytes - first);
  }
  bool is_same = true;
  for (std::size_t i = 0; i < bytes; i += 4'001) {
    is_same = is_same && buffer[i] == static_cast<unsigned char>(i % 251);
  }
  CHECK(is_same);
}
