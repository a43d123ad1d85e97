// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The version of these headers. CMake reads it from here, the ABI namespace is made from it.

#define DYNBATCH_VERSION_MAJOR 0
#define DYNBATCH_VERSION_MINOR 1
#define DYNBATCH_VERSION_PATCH 0

namespace dynbatch {

// Not inline on purpose: with internal linkage two versions of the headers in one program never
// share these, although they stand outside the ABI namespace.

/// Version of the headers this translation unit was compiled with.
constexpr int kVersionMajor = DYNBATCH_VERSION_MAJOR;
/// While the major version is 0, two minor versions are not compatible.
constexpr int kVersionMinor = DYNBATCH_VERSION_MINOR;
/// Two patch versions of one minor version are compatible.
constexpr int kVersionPatch = DYNBATCH_VERSION_PATCH;

}  // namespace dynbatch
