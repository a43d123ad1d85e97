// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Profiles: sets of values for the default policies, by one word.
#include <dynbatch/base/config.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// What a deployment is for; docs/policies/batch_sizer.md, "Profiles".
enum class Profile : std::uint8_t {
  Balanced,     ///< The defaults: service levels where requests have them, else throughput.
  Interactive,  ///< Few sequences and short steps: least time a token.
  Throughput,   ///< Prompts are never held back for decodes, and nobody is put behind.
  Mixed,        ///< People beside jobs: a request of a better class starts first.
};

struct ProfileName {
  Profile profile;
  std::string_view name;
};
inline constexpr std::array<ProfileName, 4> kProfiles{{{Profile::Balanced, "balanced"},
                                                       {Profile::Interactive, "interactive"},
                                                       {Profile::Throughput, "throughput"},
                                                       {Profile::Mixed, "mixed"}}};

}  // namespace dynbatch::inline DYNBATCH_ABI
