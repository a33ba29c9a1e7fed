#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/sharding/sample_division.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// One rank's micro-batches of a step, each in buffers of its own that all steps share.
class MicroBatches {
 public:
  /// `rank` of the mesh; `samples`: of a micro-batch. The arguments outlive this.
  MicroBatches(const Schedule& schedule, const BatchSource& source, int rank, Memory& memory,
               std::int64_t samples, int steps_in_flight);
  ~MicroBatches();

  /// Reads those of `step`, and checks what fill() says of them. Returns how many items count, in
  /// all micro-steps. Host thread. `turn`, below `steps_in_flight`: not that of a step in flight.
  std::int64_t read(std::int64_t step, std::size_t turn);
  /// Issues the way to the device of what was read, on the lane that uses it.
  void send(std::size_t turn, Stream& stream);
  /// The global number of a micro-batch.
  std::int64_t index_of(std::int64_t step, int micro_step) const {
    return division_.index_of(step, micro_step, place_);
  }
  /// The index of its first sample.
  std::int64_t first_sample_of(std::int64_t step, int micro_step) const {
    return division_.first_sample_of(step, micro_step, place_);
  }

  const Batch& at(int micro_step) const { return batches_[static_cast<std::size_t>(micro_step)]; }
  /// Throws Error{kInvalidArgument} that names `layer`, the last one, if the shape of what it
  /// returned cannot be the losses of a micro-batch: neither one for each class, row of targets or
  /// sample, nor as many as fill() said of the first batches.
  void check_losses(int micro_step, const Shape& losses, const std::string& layer) const;
  /// Throws Error{kInvalidArgument} that names step and sample if a target of a micro-batch that
  /// the host can read is not below `classes`.
  void check_classes(int micro_step, std::int64_t classes) const;
  /// From now on read() checks it. Before the first step.
  void expect_classes(std::int64_t classes) { classes_ = classes; }

 private:
  class Staging;
  /// A step's micro-batches where the host has written them.
  struct Read {
    std::int64_t step = 0;
    /// By micro-step; empty if the host writes to the device's memory.
    std::vector<std::unique_ptr<Staging>> staging{};
  };

  const BatchSource& source_;
  const SampleDivision division_;
  const int place_;           ///< of this rank among those that divide the samples
  const bool has_contents_;   ///< false on the sim device
  const bool is_readable_;    ///< by the host, where the kernels read them
  std::int64_t classes_ = 0;  ///< that targets may be of; 0: not known
  std::vector<Batch> batches_;
  std::vector<std::int64_t> first_items_;  ///< by micro-step: what fill() said of the first read
  std::vector<Read> read_;                 ///< by turn
};

}  // namespace tessera
