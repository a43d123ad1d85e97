// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// tiny::KvStore: the paged KV memory of all layers, and what a plan may ask for besides writing
/// tokens: copies, zeroing, swaps to host memory and back. Also the states of recurrent layers, as
/// blocks of one token.
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>

namespace tiny {

class KvStore {
 public:
  /// `floats` = what a token keeps in one layer.
  KvStore(std::int32_t num_layers, std::int64_t num_blocks, std::int32_t block_size,
          std::size_t floats)
      : block_floats_(static_cast<std::size_t>(block_size) * floats), floats_(floats) {
    layers_.assign(static_cast<std::size_t>(num_layers),
                   std::vector<float>(static_cast<std::size_t>(num_blocks) * block_floats_));
  }

  /// KV of one token: slot = block * block_size + offset.
  [[nodiscard]] float* token(std::int32_t layer, dynbatch::TokenSlot slot) {
    return layers_[static_cast<std::size_t>(layer)].data() +
           static_cast<std::size_t>(slot.value) * floats_;
  }
  [[nodiscard]] float* block(std::int32_t layer, dynbatch::BlockId id) {
    return layers_[static_cast<std::size_t>(layer)].data() +
           static_cast<std::size_t>(id.value) * block_floats_;
  }

  void copy(const dynbatch::BlockCopy& copy) {
    for (std::int32_t layer = 0; layer < num_layers(); ++layer) {
      std::copy_n(block(layer, copy.source), static_cast<std::size_t>(copy.num_tokens) * floats_,
                  block(layer, copy.target));
    }
  }

  void zero(dynbatch::BlockId id) {
    for (std::int32_t layer = 0; layer < num_layers(); ++layer) {
      std::fill_n(block(layer, id), block_floats_, 0.0F);
    }
  }

  /// A host slot holds the block of all layers, one after the other.
  void swap(const dynbatch::BlockSwap& swap) {
    std::vector<float>& host = host_slot(swap.host_slot);
    for (std::int32_t layer = 0; layer < num_layers(); ++layer) {
      float* device = block(layer, swap.device);
      float* saved = host.data() + static_cast<std::size_t>(layer) * block_floats_;
      if (swap.to_host) {
        std::copy_n(device, block_floats_, saved);
      } else {
        std::copy_n(saved, block_floats_, device);
      }
    }
  }

  /// A host slot for a store behind host memory: the same bytes each time.
  [[nodiscard]] std::span<std::byte> host_bytes(std::int32_t slot) {
    return std::as_writable_bytes(std::span(host_slot(slot)));
  }

  /// Every float of every block; tests fill it with what no token may ever read.
  void fill(float value) {
    for (std::vector<float>& layer : layers_) {
      std::fill(layer.begin(), layer.end(), value);
    }
  }

 private:
  /// Nobody may read what was never saved there.
  [[nodiscard]] std::vector<float>& host_slot(std::int32_t slot) {
    std::vector<float>& host = host_[slot];
    host.resize(layers_.size() * block_floats_, std::numeric_limits<float>::quiet_NaN());
    return host;
  }
  [[nodiscard]] std::int32_t num_layers() const noexcept {
    return static_cast<std::int32_t>(layers_.size());
  }

  std::size_t block_floats_;
  std::size_t floats_;
  std::vector<std::vector<float>> layers_;           // [num_layers][num_blocks][block][floats]
  std::map<std::int32_t, std::vector<float>> host_;  // by host slot, [num_layers][block][floats]
};

}  // namespace tiny
