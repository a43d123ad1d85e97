// SPDX-License-Identifier: Apache-2.0
// Compiled twice, against two versions of the headers; UNIT names the function each one exports.
#include <all_headers.hpp>

#define NAME_OF_EXPANDED(name) #name
#define NAME_OF(name) NAME_OF_EXPANDED(name)

const char* UNIT(int* minor) {
  *minor = dynbatch::kVersionMinor;
  return NAME_OF(DYNBATCH_ABI);
}
