#include "micro_batches.h"

#include <utility>

namespace tessera {

/// A micro-batch in host memory, on its way to a device that the host cannot write to.
class MicroBatches::Staging {
 public:
  Staging(Device& device, const Batch& batch)
      : device_(device), inputs_(host_view(batch.inputs)), targets_(host_view(batch.targets)) {}
  ~Staging() {
    for (const TensorView& view : {inputs_, targets_}) {
      device_.deallocate_host(view.data, static_cast<std::size_t>(view.bytes()));
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const TensorView& inputs() const { return inputs_; }
  const TensorView& targets() const { return targets_; }
  void send(const Batch& batch, Stream& stream) const {
    const auto copy = [&](const TensorView& to, const TensorView& from) {
      stream.copy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
    };
    copy(batch.inputs, inputs_);
    copy(batch.targets, targets_);
  }

 private:
  TensorView host_view(const TensorView& view) {
    return TensorView(device_.allocate_host(static_cast<std::size_t>(view.bytes())), view.dtype,
                      view.shape);
  }

  Device& device_;
  TensorView inputs_, targets_;
};

MicroBatches::~MicroBatches() = default;

MicroBatches::MicroBatches(const Schedule& schedule, const BatchSource& source,
                           const RankState& state, Memory& memory, std::int64_t samples)
    : source_(source),
      samples_(samples),
      ranks_(schedule.mesh.world_size()),
      place_(state.nesting().index(state.nesting().all_axes(), state.rank())) {
  Device& device = memory.device();
  for (int m = 0; m < schedule.micro_steps; ++m) {
    Batch batch;
    batch.inputs = Tensor::empty(memory, source.input_shape(samples), source.input_dtype(),
                                 MemoryCategory::kData, "inputs");
    batch.targets = Tensor::empty(memory, source.target_shape(samples), source.target_dtype(),
                                  MemoryCategory::kData, "targets");
    batches_.push_back(std::move(batch));
    if (device.host_accessible() || device.kind() == DeviceKind::kSim) continue;
    staging_.push_back(std::make_unique<Staging>(device, batches_.back()));
  }
}

void MicroBatches::read(std::int64_t step) {
  const auto micro_steps = static_cast<std::int64_t>(batches_.size());
  for (std::int64_t m = 0; m < micro_steps; ++m) {
    Batch& batch = batches_[static_cast<std::size_t>(m)];
    batch.index = (step * micro_steps + m) * ranks_ + place_;
    const Staging* staging =
        staging_.empty() ? nullptr : staging_[static_cast<std::size_t>(m)].get();
    batch.items = source_.fill(batch.index * samples_, samples_,
                               staging != nullptr ? staging->inputs() : batch.inputs.view(),
                               staging != nullptr ? staging->targets() : batch.targets.view());
  }
}

void MicroBatches::send(Stream& stream) const {
  for (std::size_t m = 0; m < staging_.size(); ++m) staging_[m]->send(batches_[m], stream);
}

std::int64_t MicroBatches::items() const {
  std::int64_t sum = 0;
  for (const Batch& batch : batches_) sum += batch.items;
  return sum;
}

}  // namespace tessera
