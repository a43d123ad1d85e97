// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Shared parts of the check ladders: every policy has a Config that can validate itself.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>

#include <concepts>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class>
inline constexpr bool always_false = false;  // NOLINT(readability-identifier-naming): as traits

template <class P>
concept HasConfig = requires(const typename P::Config& config) {
  { config.validate() } noexcept -> std::same_as<Status>;
};

}  // namespace detail

/// Config of models that have nothing to configure.
struct EmptyConfig {
  [[nodiscard]] constexpr Status validate() const noexcept { return kOk; }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
