// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Storage that is allocated once: Buffer (fixed length) and FixedVector (fixed capacity).
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/huge_pages.hpp>
#include <dynbatch/base/math.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// How an array is used in service, which decides about its pages.
enum class PageUse : std::uint8_t {
  Sparse,  ///< Much of it may never be touched: small pages, each on its first touch.
  Dense,   ///< Filled from end to end, or touched at random: huge pages if there are any.
};

/// Zero-initialised array of trivial elements, allocated by allocate() and freed by the destructor.
/// Pages are touched only when written, so a generous capacity costs address space, not memory;
/// unless T is aligned to more than std::max_align_t.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Buffer() noexcept = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      std::free(data_);
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Buffer() { std::free(data_); }

  /// Replaces the content by `count` elements of zero bytes. OutOfMemory names `field` and the
  /// count.
  Status allocate(std::size_t count, const char* field, PageUse use = PageUse::Sparse) noexcept {
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
    if (count == 0) {
      return kOk;
    }
    // No object can be larger, and a sanitizer's malloc would end the program.
    constexpr std::size_t kTooMany = static_cast<std::size_t>(PTRDIFF_MAX) / sizeof(T);
    if (count >= kTooMany) {
      return out_of_memory(count, field);
    }
    constexpr bool kIsOverAligned = alignof(T) > alignof(std::max_align_t);
    if constexpr (kIsOverAligned) {
      data_ = static_cast<T*>(std::aligned_alloc(alignof(T), count * sizeof(T)));
    } else {
      data_ = static_cast<T*>(std::calloc(count, sizeof(T)));
    }
    if (data_ == nullptr) {
      return out_of_memory(count, field);
    }
    if (use == PageUse::Dense || kIsOverAligned) {
      detail::prefer_huge_pages(data_, count * sizeof(T));
    }
    if constexpr (kIsOverAligned) {
      std::memset(static_cast<void*>(data_), 0, count * sizeof(T));  // touches all of it
    }
    size_ = count;
    return kOk;
  }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] const T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<T> span() noexcept { return {data_, size_}; }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data_, size_}; }

  T& operator[](std::size_t i) noexcept {
    DYNBATCH_ASSERT_EXPENSIVE(i < size_, "Buffer index out of range");
    return data_[i];
  }
  const T& operator[](std::size_t i) const noexcept {
    DYNBATCH_ASSERT_EXPENSIVE(i < size_, "Buffer index out of range");
    return data_[i];
  }

 private:
  static Status out_of_memory(std::size_t count, const char* field) noexcept {
    return {Errc::OutOfMemory, field,
            static_cast<std::int64_t>(min_of<std::size_t>(count, PTRDIFF_MAX)), 0,
            "allocation failed"};
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Vector of trivial elements whose capacity is set once; push_back beyond it is a programming
/// error.
template <class T>
class FixedVector {
 public:
  Status allocate(std::size_t capacity, const char* field) noexcept {
    size_ = 0;
    return storage_.allocate(capacity, field);
  }

  void push_back(const T& value) noexcept {
    DYNBATCH_ASSERT(size_ < storage_.size(), "FixedVector is full");
    storage_.data()[size_++] = value;
  }
  void pop_back() noexcept { --size_; }
  void clear() noexcept { size_ = 0; }
  void resize(std::size_t size) noexcept {
    DYNBATCH_ASSERT(size <= storage_.size(), "FixedVector is too small");
    size_ = size;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return storage_.size(); }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] T* data() noexcept { return storage_.data(); }
  [[nodiscard]] const T* data() const noexcept { return storage_.data(); }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size_; }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + size_; }
  [[nodiscard]] T& back() noexcept { return data()[size_ - 1]; }
  T& operator[](std::size_t i) noexcept {
    DYNBATCH_ASSERT_EXPENSIVE(i < size_, "FixedVector index out of range");
    return data()[i];
  }
  const T& operator[](std::size_t i) const noexcept {
    DYNBATCH_ASSERT_EXPENSIVE(i < size_, "FixedVector index out of range");
    return data()[i];
  }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size_}; }
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size_}; }

 private:
  Buffer<T> storage_;
  std::size_t size_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
