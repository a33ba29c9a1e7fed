#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tessera/collectives/process_group.h"
#include "tessera/core/tensor.h"

namespace tessera {

/// The predictions of all ranks for the samples of Session::forward, put together in their order.
class ForwardOutputs {
 public:
  ForwardOutputs(std::int64_t samples, std::int64_t micro_batch)
      : samples_(samples), micro_batch_(micro_batch) {}

  /// Adds a micro-batch from sample `first` on; by any rank's thread. Throws
  /// Error{kInvalidArgument} if the last layer has not returned as many numbers for each sample.
  void add(std::int64_t first, const Shape& shape, std::span<const float> values);
  /// Adds what the other processes have. Collective, of the leaders.
  void exchange(ProcessGroup& leaders);

  /// The last layer's output, for all samples.
  Shape shape() const;
  std::vector<float> take_values() { return std::move(values_); }

 private:
  std::int64_t of_sample() const { return shape_.numel() / micro_batch_; }

  const std::int64_t samples_, micro_batch_;
  std::mutex mutex_;
  Shape shape_;  ///< of a micro-batch
  std::vector<float> values_;
  std::vector<char> is_here_;  ///< by sample
};

}  // namespace tessera
