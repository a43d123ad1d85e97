// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: Pinning goes inside a TieredPool, as TieredPool<Pinning<Pool>>: around it
// nobody would be told the moves.
#include <dynbatch/kv/pinning.hpp>
#include <dynbatch/kv/tiered_pool.hpp>

using namespace dynbatch;

#ifdef DYNBATCH_TEST_CORRECTED
template class dynbatch::TieredPool<Pinning<BlockPool<>>>;
#else
template class dynbatch::Pinning<TieredPool<>>;
#endif
