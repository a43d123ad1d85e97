// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Runs a mix on the tiny engine and compares every token with what its request gets alone (law
/// 10).
#include "engine_mix.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dynbatch::test {

/// An error that is put into the host, the pool or the store on purpose: the suite must notice it.
enum class Planted : std::uint8_t {
  None,
  SlotOffByOne,
  StaleBlock,
  MissingCopy,
  LateCopy,
  ShortCopy,
  LoadLeftOut,
  LateSave,
  WrongDraft,
  MaskTooShort,
  MaskTooLong,
  PartsReversed,
  ReaderBeforeWriter,
  PendingKept,
  ScopeDropped,
  StaleFutureToken,
  SampleIgnored,
  PositionsRestart,
  FaultHidden,
  PlanNotForgotten,
  WindowFreedEarly,
  WindowCopyLeftOut,
  StateNotZeroed,
  StateCopyLeftOut,
  LateSnapshot,
  StateOfNotRun,
  VoidStateKept,
  LostCopyKept,
  FetchEndsEarly,
  WrongBlockFetched,
};

struct PlantedError {
  Planted kind = Planted::None;
  const char* what = "";
};

/// All of them but None.
[[nodiscard]] std::span<const PlantedError> planted_errors();

/// What a run reached, summed up over runs: a suite that never forks proves nothing about forks.
struct MixCoverage {
  std::int64_t tokens = 0;  ///< Compared.
  std::int64_t finished = 0;
  std::int64_t cancelled = 0;
  std::int64_t expired = 0;
  std::int64_t failed = 0;
  std::int64_t refused = 0;
  std::int64_t stopped_by_token = 0;
  std::int64_t stopped_by_host = 0;
  std::int64_t ended_by_capacity = 0;
  std::int64_t plans = 0;
  std::int64_t split_plans = 0;
  std::int64_t reads_of_same_plan = 0;  ///< Chunks that read a block which their plan writes.
  std::int64_t cut_prompts = 0;
  std::int64_t preemptions = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t outputs_from_cache = 0;  ///< Read by a request that follows another one.
  std::int64_t copies = 0;
  std::int64_t prefix_copies = 0;   ///< Of these, for prefixes that end inside a block.
  std::int64_t blocks_loaded = 0;   ///< From host memory.
  std::int64_t blocks_fetched = 0;  ///< Of these, blocks that a store had delivered.
  std::int64_t blocks_stored = 0;   ///< In a store.
  std::int64_t store_corrupt = 0;   ///< Fetches of wrong data.
  std::int64_t store_failures = 0;  ///< Operations that failed or whose data were wrong.
  std::int64_t store_timeouts = 0;  ///< Operations given up.
  std::int64_t window_moves = 0;    ///< A row's window has left blocks behind.
  std::int64_t window_hits = 0;     ///< Prefixes of which a window's blocks were left out.
  std::int64_t window_copies = 0;   ///< For forks.
  std::int64_t states_zeroed = 0;
  std::int64_t state_copies = 0;       ///< For forks, snapshots, and rows that begin with one.
  std::int64_t group_preemptions = 0;  ///< Preemptions beside further groups.
  std::int64_t window_rejections = 0;  ///< Drafts rejected in models with a window.
  std::int64_t state_hits = 0;         ///< Rows that begin with a snapshot.
  std::int64_t future_tokens = 0;
  std::int64_t drafts_accepted = 0;
  std::int64_t drafts_rejected = 0;
  std::int64_t expert_moves = 0;
  std::int64_t chunks_not_run = 0;
  std::int64_t chunks_partly_run = 0;
  std::int64_t chunks_failed = 0;
  std::int64_t throws = 0;
  std::int64_t abandoned_not_run = 0;
  std::int64_t abandoned_lost = 0;
  std::int64_t abandoned_fatal = 0;
  std::int64_t abandoned_after_run = 0;  ///< Plans that had run when they were abandoned.
  std::int64_t younger_plans = 0;        ///< In flight when an older one was committed.
  std::int64_t pool_sizes = 0;
  std::int64_t clears = 0;

  MixCoverage& operator+=(const MixCoverage& other);
};

struct CoverageField {
  const char* name;
  std::int64_t MixCoverage::* member;
  std::int64_t one_in = 50;  ///< Mixes, at least, in which it has to be reached.
};
[[nodiscard]] std::span<const CoverageField> coverage_fields();

struct MixReport {
  std::vector<std::string> errors;  ///< Empty iff all is as it should be; the first few.
  MixCoverage coverage{};
};

[[nodiscard]] MixReport run_mix(const Mix& mix, Planted planted = Planted::None);

}  // namespace dynbatch::test
