#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// One rank's micro-batches of a step, each in buffers of its own that all steps share.
class MicroBatches {
 public:
  /// `rank` of the mesh; `samples`: of a micro-batch. The arguments outlive this.
  MicroBatches(const Schedule& schedule, const BatchSource& source, int rank, Memory& memory,
               std::int64_t samples);
  ~MicroBatches();

  /// Reads those of `step`, and checks what fill() says of them. Host thread, between steps.
  void read(std::int64_t step);
  /// Issues their way to the device, if the host has not written there itself.
  void send(Stream& stream) const;

  const Batch& at(int micro_step) const { return batches_[static_cast<std::size_t>(micro_step)]; }
  /// Items that count, in all micro-steps.
  std::int64_t items() const;

 private:
  class Staging;

  const BatchSource& source_;
  const std::int64_t samples_;
  const std::int64_t ranks_;
  const std::int64_t place_;  ///< of this rank among those that share the data
  const bool has_contents_;   ///< false on the sim device
  std::vector<Batch> batches_;
  /// Where the host writes, by micro-step: empty if it writes to the device.
  std::vector<std::unique_ptr<Staging>> staging_;
};

}  // namespace tessera
