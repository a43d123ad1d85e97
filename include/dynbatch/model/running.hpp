// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The running sequences as policies see them.
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/request.hpp>

#include <cstdint>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// A running sequence, as far as policies are concerned.
struct RunningSequence {
  std::int64_t known_tokens = 0;   ///< Prompt and outputs.
  std::int64_t held_tokens = 0;    ///< Positions that its blocks have room for.
  std::int64_t output_tokens = 0;  ///< Outputs so far.
  std::int64_t max_output_tokens = 0;
  RequestClass request_class = RequestClass::Interactive;
};

/// All running sequences, in order of admission; empty where nobody lists them. Visiting them is
/// O(running): for what a policy computes now and then.
class RunningList {
 public:
  using Take = void (*)(void* state, const RunningSequence& sequence) noexcept;
  using Visit = void (*)(const void* context, void* state, Take take) noexcept;

  constexpr RunningList() noexcept = default;
  constexpr RunningList(const void* context, Visit visit) noexcept
      : context_(context), visit_(visit) {}

  [[nodiscard]] constexpr bool is_empty() const noexcept { return visit_ == nullptr; }
  template <class F>
  void for_each(F&& f) const noexcept {
    if (visit_ != nullptr) {
      visit_(context_, &f, [](void* state, const RunningSequence& sequence) noexcept {
        (*static_cast<std::remove_reference_t<F>*>(state))(sequence);
      });
    }
  }

 private:
  const void* context_ = nullptr;
  Visit visit_ = nullptr;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
