// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the scheduler reports about requests, drained with poll().
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/step_result.hpp>

#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

enum class EventKind : std::uint8_t {
  Accepted,        ///< The driving thread took the request in.
  FirstToken,      ///< tokens holds the first output token.
  Tokens,          ///< tokens holds the following ones; several steps may lie in one event.
  SampleFinished,  ///< One of several samples ended; `sample` says which, reason why.
  Preempted,       ///< It lost its KV and waits again; count = times since the last such event.
  Finished,        ///< Terminal; reason says why.
  Cancelled,       ///< Terminal; cancel() was called.
  Expired,         ///< Terminal; a deadline passed.
  Failed,          ///< Terminal; error says why.
};

[[nodiscard]] constexpr bool is_terminal(EventKind kind) noexcept {
  return kind >= EventKind::Finished;
}

/// One event of one request. Events of a request arrive in causal order; each accepted request has
/// exactly one terminal event, and nothing follows it.
struct Event {
  EventKind kind = EventKind::Accepted;
  FinishReason reason = FinishReason::None;
  Errc error = Errc::Ok;
  std::int32_t sample = 0;
  RequestId request{};
  std::uint64_t user_data = 0;
  TimeNs time{};                    ///< When it happened; for tokens the newest one's.
  std::int64_t first_index = 0;     ///< Index of tokens[0] among the sample's outputs.
  std::int64_t count = 0;           ///< Preempted: how often; terminal: output tokens in all.
  std::span<const Token> tokens{};  ///< Valid until the next poll().
};

}  // namespace dynbatch::inline DYNBATCH_ABI
