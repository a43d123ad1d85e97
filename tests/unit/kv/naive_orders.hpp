// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Eviction orders written down as they are defined, O(n) an operation, to compare the real ones
/// with.
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/kv/adaptive_lru.hpp>
#include <dynbatch/kv/belady.hpp>
#include <dynbatch/kv/cost_aware.hpp>
#include <dynbatch/kv/lfu.hpp>
#include <dynbatch/kv/lru.hpp>
#include <dynbatch/kv/priority_duration.hpp>
#include <dynbatch/kv/slru.hpp>
#include <dynbatch/kv/ttl.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace kv_test {

using dynbatch::BlockId;

/// What all have in common: who is in the order, since when, and how often it was found.
template <class Block>
class NaiveBase {
 public:
  explicit NaiveBase(std::int64_t num_blocks) : blocks(static_cast<std::size_t>(num_blocks)) {}

  void erase_used(const std::vector<int>& path) {
    for (const int b : path) {
      at(b).is_in = false;
    }
  }
  void forget(int b) {
    at(b).is_in = false;
    reset(b);
  }
  void reset(int b) { at(b) = Block{}; }
  void note_hit(const std::vector<int>& path) {
    for (const int b : path) {
      at(b).hits = std::min(at(b).hits + 1, 255);
    }
  }
  void advance(std::int64_t time) { now = std::max(now, time); }
  bool contains(int b) const { return at(b).is_in; }
  std::vector<int> members() const {
    std::vector<int> ids;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].is_in) {
        ids.push_back(static_cast<int>(b));
      }
    }
    return ids;
  }
  std::int64_t size() const {
    return std::count_if(blocks.begin(), blocks.end(), [](const Block& b) { return b.is_in; });
  }

 protected:
  Block& at(int b) { return blocks[static_cast<std::size_t>(b)]; }
  const Block& at(int b) const { return blocks[static_cast<std::size_t>(b)]; }
  void enter(int b) {
    at(b).is_in = true;
    at(b).order = clock++;
    at(b).time = now;
  }
  // The member with the least key, or -1.
  template <class Key>
  int least(Key key) const {
    int best = -1;
    for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
      if (at(b).is_in && (best < 0 || key(at(b)) < key(at(best)))) {
        best = b;
      }
    }
    return best;
  }

  std::vector<Block> blocks;
  std::int64_t clock = 0;
  std::int64_t now = 0;
};

struct NaiveBlock {
  bool is_in = false;
  int hits = 0;
  int note = 0;  // Level, class or list.
  std::int64_t order = 0;
  std::int64_t path = 0;  // Order of the first block that was released with it.
  std::int64_t time = 0;
  std::int64_t duration = 0;
  int priority = -1;
  bool is_inner = false;
  bool continues = false;
  bool is_drawn = false;
};

template <class Order>
class Naive;

template <>
class Naive<dynbatch::Lru> : public NaiveBase<NaiveBlock> {
 public:
  using Order = dynbatch::Lru;
  static Order make(std::int64_t) { return Order(); }
  Naive(const Order&, std::int64_t n) : NaiveBase(n) {}
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    for (std::size_t k = path.size(); k-- > first;) {
      enter(path[k]);
    }
  }
  int victim() const {
    return least([](const NaiveBlock& b) { return b.order; });
  }
};

template <>
class Naive<dynbatch::Slru> : public NaiveBase<NaiveBlock> {
 public:
  using Order = dynbatch::Slru;
  static Order make(std::int64_t) { return Order({.protected_percent = 40}); }
  Naive(const Order&, std::int64_t n) : NaiveBase(n), most_(n * 40 / 100) {}
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    for (std::size_t k = path.size(); k-- > first;) {
      enter(path[k]);
      at(path[k]).note = at(path[k]).hits > 0 ? 1 : 0;
      std::int64_t num_protected = 0;
      int oldest = -1;
      for (const int b : members()) {
        if (at(b).note == 1) {
          ++num_protected;
          oldest = oldest < 0 || at(b).order < at(oldest).order ? b : oldest;
        }
      }
      if (num_protected > most_) {
        enter(oldest);
        at(oldest).note = 0;
      }
    }
  }
  int victim() const {
    return least([](const NaiveBlock& b) { return std::pair(b.note, b.order); });
  }

 private:
  std::int64_t most_;
};

template <class Inner>
class Naive<dynbatch::Ttl<Inner>> : public NaiveBase<NaiveBlock> {
 public:
  using Order = dynbatch::Ttl<Inner>;
  static constexpr std::int64_t kTtl = 50;
  static Order make(std::int64_t n) { return Order({.ttl = {kTtl}}, Naive<Inner>::make(n)); }
  Naive(const Order&, std::int64_t n) : NaiveBase(n), inner_(Inner(), n) {}
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    for (std::size_t k = path.size(); k-- > first;) {
      enter(path[k]);
    }
    inner_.insert_backwards(path, first);
  }
  void erase_used(const std::vector<int>& path) {
    NaiveBase::erase_used(path);
    inner_.erase_used(path);
  }
  void forget(int b) {
    NaiveBase::forget(b);
    inner_.forget(b);
  }
  void reset(int b) { inner_.reset(b); }
  void note_hit(const std::vector<int>& path) { inner_.note_hit(path); }
  int victim() const {
    const int b = least([](const NaiveBlock& x) { return x.order; });
    return b >= 0 && now - at(b).time >= kTtl ? b : inner_.victim();
  }

 private:
  Naive<Inner> inner_;
};

/// Worth in quarters of an octave; the class is the rounded sum, as ages must stay comparable.
template <class Order>
class NaiveDecaying : public NaiveBase<NaiveBlock> {
 public:
  NaiveDecaying(std::int64_t n, int half_life_percent)
      : NaiveBase(n), n_(n), percent_(half_life_percent) {}
  int victim() const {
    return least([this](const NaiveBlock& b) {
      const int c = b.note + quarters(b.hits);
      return std::tuple(b.path + c * n_ / 4 * percent_ / 100, c, b.order);
    });
  }

 protected:
  // Logarithms are linear within an octave.
  static int quarters(int hits) {
    const double v = 1.0 + hits;
    const double octave = std::floor(std::log2(v));
    return static_cast<int>(std::floor(4.0 * (octave + v / std::exp2(octave) - 1.0)));
  }
  void enter_path(const std::vector<int>& path, std::size_t first, int level) {
    const std::int64_t begin = clock;
    for (std::size_t k = path.size(); k-- > 0;) {
      if (k >= first) {
        enter(path[k]);
        at(path[k]).path = begin;
      } else if (at(path[k]).note >= level) {
        return;  // Then those before it are.
      }
      level = at(path[k]).note = std::max(level, at(path[k]).note);
    }
  }

 private:
  std::int64_t n_;
  int percent_;
};

template <>
class Naive<dynbatch::Lfu> : public NaiveDecaying<dynbatch::Lfu> {
 public:
  using Order = dynbatch::Lfu;
  static Order make(std::int64_t) { return Order({.half_life_percent = 50}); }
  Naive(const Order&, std::int64_t n) : NaiveDecaying(n, 50) {}
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    enter_path(path, first, 0);
  }
};

template <>
class Naive<dynbatch::CostAware> : public NaiveDecaying<dynbatch::CostAware> {
 public:
  using Order = dynbatch::CostAware;
  // The attention of a block costs as much as the rest at position 32.
  static Order make(std::int64_t) {
    dynbatch::CostAware::Config config;
    config.cost = {.prefill_token_ps = 32'000'000, .attention_pair_fs = 1'000'000'000};
    config.block_size = 4;
    config.half_life_percent = 80;
    return Order(config);
  }
  Naive(const Order&, std::int64_t n) : NaiveDecaying(n, 80) {}
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    enter_path(path, first, path.empty() ? 0 : level(static_cast<int>(path.size()) - 1));
  }

 private:
  static double log2_of(double v) {
    const double octave = std::floor(std::log2(v));
    return std::floor(256.0 * (octave + v / std::exp2(octave) - 1.0));
  }
  static int level(int index) {
    const auto ns = [](double position) {
      return 4.0 * 32'000.0 + 1'000.0 * (4.0 * position + 8.0);
    };
    return std::min(15, static_cast<int>((log2_of(ns(4.0 * index)) - log2_of(ns(0.0))) / 64.0));
  }
};

template <>
class Naive<dynbatch::AdaptiveLru> : public NaiveBase<NaiveBlock> {
 public:
  using Order = dynbatch::AdaptiveLru;
  static Order make(std::int64_t) { return Order({.step_percent = 20, .prior_blocks = 1}); }
  // Lifetimes are learned: they are taken from the order itself.
  Naive(const Order& order, std::int64_t n) : NaiveBase(n), order_(&order) {}
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    if (first >= path.size()) {
      return;  // nothing enters: nothing is drawn either
    }
    bool continues = false;
    bool is_drawn = false;
    for (const int b : path) {
      if (at(b).hits > 0) {
        continues = at(b).hits <= 8;
        is_drawn = continues && at(b).is_drawn;
      }
    }
    is_drawn = is_drawn || (!continues && random_.one_in(4));
    const std::int64_t begin = clock;
    for (std::size_t i = path.size(); i-- > 0;) {
      NaiveBlock& b = at(path[i]);
      b.is_inner |= i + 1 < path.size() || i == 0;
      b.continues = continues |= b.continues;
      b.is_drawn = is_drawn |= b.is_drawn;
      if (i < first) {
        continue;
      }
      enter(path[i]);
      b.path = begin;
      b.note = !b.is_inner ? 0 : 1 + (b.continues ? 2 : 0) + (b.is_drawn ? 1 : 0);
    }
  }
  int victim() const {
    return least([this](const NaiveBlock& b) {
      return std::tuple(b.path + order_->life_of(b.note), b.note, b.order);
    });
  }

 private:
  const Order* order_;
  dynbatch::SplitMix64 random_{1};
};

template <>
class Naive<dynbatch::PriorityDuration> : public NaiveBase<NaiveBlock> {
 public:
  using Order = dynbatch::PriorityDuration;
  static Order make(std::int64_t) { return Order(); }
  Naive(const Order&, std::int64_t n) : NaiveBase(n) {}
  void retain(const std::vector<int>& path, int priority, std::int64_t duration) {
    for (const int b : path) {
      at(b).priority = std::max(at(b).priority, priority);
      at(b).duration = std::max(at(b).duration, priority > 35 ? duration : 0);
    }
  }
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    int priority = -1;
    std::int64_t duration = 0;
    for (std::size_t k = path.size(); k-- > 0;) {
      NaiveBlock& b = at(path[k]);
      if (k >= first) {
        enter(path[k]);
      } else if (b.priority >= priority && b.duration >= duration) {
        return;  // Then those before it do.
      }
      b.priority = b.priority < 0 ? 35 : b.priority;
      priority = b.priority = std::max(b.priority, priority);
      duration = b.duration = std::max(b.duration, duration);
      b.note = priority;
    }
  }
  void advance(std::int64_t time) {
    NaiveBase::advance(time);
    for (;;) {
      int next = -1;
      for (const int b : members()) {
        const bool is_over =
            at(b).note > 35 && at(b).duration != INT64_MAX && at(b).time + at(b).duration <= now;
        if (is_over && (next < 0 || key(b) < key(next))) {
          next = b;
        }
      }
      if (next < 0) {
        return;
      }
      at(next).note = 35;
      at(next).order = clock++;
    }
  }
  int victim() const {
    return least([](const NaiveBlock& b) { return std::pair(b.note, b.order); });
  }

 private:
  std::pair<std::int64_t, std::int64_t> key(int b) const {
    return {at(b).time + at(b).duration, at(b).order};
  }
};

template <>
class Naive<dynbatch::Belady> : public NaiveBase<NaiveBlock> {
 public:
  using Order = dynbatch::Belady;
  static Order make(std::int64_t) { return Order({.num_times = 20}); }
  Naive(const Order&, std::int64_t n) : NaiveBase(n) {}
  void set_next_uses(std::vector<std::int64_t> times) { times_ = std::move(times); }
  void insert_backwards(const std::vector<int>& path, std::size_t first) {
    for (std::size_t i = path.size(); i-- > first;) {
      enter(path[i]);
      at(path[i]).note = i < times_.size() ? static_cast<int>(times_[i]) : 20;
    }
  }
  int victim() const {
    return least([](const NaiveBlock& b) { return std::pair(-b.note, b.order); });
  }

 private:
  std::vector<std::int64_t> times_;
};

}  // namespace kv_test
