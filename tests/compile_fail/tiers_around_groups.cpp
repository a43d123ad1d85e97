// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: TieredPool needs a pool of one group of blocks, on one device.
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/kv/tiered_pool.hpp>

using namespace dynbatch;

#ifdef DYNBATCH_TEST_CORRECTED
template class dynbatch::TieredPool<BlockPool<>>;
#else
template class dynbatch::TieredPool<GroupedPool<>>;
#endif
