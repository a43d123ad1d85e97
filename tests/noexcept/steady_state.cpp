// SPDX-License-Identifier: Apache-2.0
/// \file
/// Law 9: after make() the scheduler neither allocates nor enters the kernel. A child process runs
/// steps under a system call filter that allows nothing but write and exit, with an allocator that
/// counts.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/fair_share.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/prefix_affinity.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/microbatch/equal_tokens.hpp>
#include <dynbatch/scheduler/run_step.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include <cstdio>
#include <cstdlib>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/seccomp.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DYNBATCH_TEST_HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DYNBATCH_TEST_HAS_SANITIZER 1
#endif
#endif

[[maybe_unused]] static long g_allocations = 0;  // a sanitizer build leaves before using it

#if !defined(DYNBATCH_TEST_HAS_SANITIZER)
extern "C" {
void* __libc_malloc(std::size_t);  // NOLINT(bugprone-reserved-identifier): glibc's own names
void* __libc_calloc(std::size_t, std::size_t);  // NOLINT(bugprone-reserved-identifier)
void __libc_free(void*);                        // NOLINT(bugprone-reserved-identifier)
void* malloc(std::size_t n) {
  ++g_allocations;
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t m) {
  ++g_allocations;
  return __libc_calloc(n, m);
}
void free(void* p) {
  g_allocations += p != nullptr ? 1 : 0;
  __libc_free(p);
}
}
#endif

using namespace dynbatch;
template <class Admission, class Pool>
using Sched = Scheduler<DynamicSizer, EqualTokens, NullBalancer, Pool, Admission>;

namespace {

template <class Admission, class Pool>
struct Host {
  Sched<Admission, Pool> scheduler;
  StepResultBuffer result;
  Token prompt[700];
  std::byte log[1 << 14];
  bool logged = false;
  std::size_t num_alerts = 0;
  std::int64_t now = 0;
  std::uint64_t next_id = 1;
  std::uint64_t preemptions = 0;

  /// A mixed life: long and short prompts, shared prefixes, cancels, deadlines, failures, scarce
  /// blocks.
  void run(SplitMix64& rng, int steps) {
    for (int i = 0; i < steps; ++i) {
      now += 1'000'000;
      if (rng.one_in(2)) {
        Request r;
        r.id = RequestId{next_id++};
        const std::int64_t length = rng.between(1, rng.one_in(8) ? 700 : 100);
        const std::int64_t shared = rng.between(0, length);
        for (std::int64_t p = 0; p < length; ++p) {
          prompt[p] = static_cast<Token>(p < shared ? p : rng.between(0, 30000));
        }
        r.prompt.tokens = {prompt, static_cast<std::size_t>(length)};
        r.max_new_tokens = rng.between(0, 300);
        r.arrival = TimeNs{now};
        r.priority = static_cast<std::int32_t>(rng.between(0, 20));
        r.tenant = static_cast<std::uint64_t>(rng.between(0, 3));
        r.slo.tpot = milliseconds(5);
        if (rng.one_in(9)) {
          r.finish_by = TimeNs{now + 40'000'000};
        }
        (void)scheduler.submit(r);
      }
      if (rng.one_in(10)) {
        (void)scheduler.cancel(RequestId{next_id - static_cast<std::uint64_t>(rng.between(1, 20))});
      }
      const StepPlan* plan = scheduler.plan(TimeNs{now});
      if (plan != nullptr) {
        result.reset(*plan);
        for (std::size_t c = 0; c < plan->chunks.size(); ++c) {
          const bool fails = rng.one_in(500);
          if (fails) {
            result.set_outcome(c, {OutcomeKind::NotRun, FinishReason::None, 0});
          }
          if (plan->chunks[c].num_samples > 0) {
            if (fails) {
              result.add_sample(std::span<const Token>{});
            } else {
              result.add_sample(static_cast<Token>(rng.between(0, 30000)));
            }
          }
        }
        result.set_measured(microseconds(900));
        if (rng.one_in(200)) {
          (void)scheduler.abandon(*plan, AbandonReason::NotRun, TimeNs{now});
        } else if (!scheduler.commit(*plan, result.view(), TimeNs{now + 900'000})) {
          _exit(3);
        }
      }
      Event events[64];
      while (scheduler.poll(events) == 64) {
      }
      Alert alerts[8];
      num_alerts += scheduler.drain_alerts(alerts);
      // Not drained for a while, the flight log fills up and counts what it loses.
      while (i % 1000 < 700 && scheduler.drain_log(log) > 0) {
        logged = true;
      }
    }
  }
};

#if !defined(DYNBATCH_TEST_HAS_SANITIZER)
/// Runs a host under the filter: 0 = it held, 77 = there is no filter here.
template <class Admission, class Pool = BlockPool<>>
int check(const char* name, const Admission& admission,
          const typename Pool::Config& pool = {.num_blocks = 220, .max_kv_events = 1024}) {
  SchedulerConfig config;
  config.max_live_requests = 256;
  config.flight_log_bytes = 1 << 16;
  config.flight_log_prompts = true;
  config.max_waiting_requests = 100;
  config.watch.max_tenants = 2;
  for (AlertRule& rule : config.watch.alerts) {
    rule = {.raise_at = 5, .clear_at = 2};
  }
  Capabilities caps;
  caps.max_sequences = 32;
  auto made = Sched<Admission, Pool>::make(config, caps, DynamicSizer{}, EqualTokens{},
                                           NullBalancer{}, Pool(pool), admission);
  if (!made) {
    std::printf("%s: make failed\n", name);
    return 1;
  }
  static Host<Admission, Pool> host{std::move(made).value(), {}, {}, {}};
  if (!host.scheduler.make_result(host.result)) {
    return 1;
  }
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) {
      _exit(77);
    }
    SplitMix64 rng(1);
    const long before = g_allocations;
    host.run(rng, 20000);
    const SchedulerStats stats = host.scheduler.stats();
    int code = 0;
    if (g_allocations != before) {
      code = 2;
    } else if (stats.preemptions == 0 || stats.finished < 100 || stats.cancelled == 0 ||
               stats.expired == 0 || stats.prefix_hit_tokens == 0 || !host.logged ||
               stats.flight_records_lost == 0 || host.scheduler.num_tenants() != 2 ||
               host.num_alerts == 0) {
      code = 4;  // the run did not reach what it is meant to test
    }
    syscall(SYS_exit, code);  // _exit would call exit_group, which the filter refuses
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    std::puts("fork failed");
    return 1;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    std::puts("SKIPPED: this system has no strict system call filter");
    return 77;
  }
  if (WIFSIGNALED(status)) {
    std::printf("%s: the steady state made a system call (signal %d)\n", name, WTERMSIG(status));
    return 1;
  }
  if (WEXITSTATUS(status) == 2) {
    std::printf("%s: the steady state allocated or freed memory\n", name);
    return 1;
  }
  if (WEXITSTATUS(status) != 0) {
    std::printf("%s: the run ended with code %d\n", name, WEXITSTATUS(status));
    return 1;
  }
  return 0;
}
#endif

}  // namespace

int main() {
#if defined(DYNBATCH_TEST_HAS_SANITIZER)
  std::puts("SKIPPED: a sanitizer brings its own allocator and system calls");
  return 0;
#else
  FairShare::Config fair;
  fair.other.max_running_sequences = 9;
  GroupedPool<>::Config groups;
  groups.pool = {.num_blocks = 220, .max_kv_events = 1024};
  groups.groups[0] = {{GroupKind::Window, 8, 40}, 8000};
  groups.groups[1] = {{GroupKind::Recurrent, 1, 0}, 50};
  groups.snapshot_interval_tokens = 32;
  for (const int code : {check("first come", FcfsAdmission{}),
                         check("priority", PriorityAging(PriorityAging::Config{.displace = true})),
                         check("fair share", FairShare(fair)), check("affinity", PrefixAffinity{}),
                         check<FcfsAdmission, GroupedPool<>>("groups", FcfsAdmission{}, groups)}) {
    if (code != 0) {
      return code == 77 ? 0 : code;
    }
  }
  return 0;
#endif
}
