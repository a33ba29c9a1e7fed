#include "step_keys.h"

#include "tessera/kernels/philox.h"

namespace tessera {

StepKeys::StepKeys(const Schedule& schedule, const ModelLayout& layout, const MicroBatches& batches,
                   std::uint64_t seed, Memory& memory, int steps_in_flight)
    : batches_(batches),
      seed_(seed),
      layers_(static_cast<int>(layout.layers.size())),
      micro_steps_(schedule.micro_steps),
      keys_(memory, place_of(0, micro_steps_), "keys of dropout", steps_in_flight) {}

void StepKeys::begin_step(std::int64_t step, std::size_t turn) {
  for (int m = 0; m < micro_steps_; ++m) {
    const auto micro_batch = static_cast<std::uint64_t>(batches_.index_of(step, m));
    for (int layer = 0; layer < layers_; ++layer) {
      store_random_key({seed_, dropout_stream(micro_batch, static_cast<std::uint64_t>(layer))},
                       keys_.host(turn) + place_of(layer, m));
    }
  }
}

std::int64_t StepKeys::place_of(int layer, int micro_step) const {
  return (std::int64_t{micro_step} * layers_ + layer) * kRandomKeyWords;
}

TensorView StepKeys::dropout(int layer, int micro_step) const {
  return keys_.view(place_of(layer, micro_step), kRandomKeyWords);
}

}  // namespace tessera
