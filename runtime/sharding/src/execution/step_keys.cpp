#include "execution/step_keys.h"

#include "tessera/kernels/philox.h"

namespace tessera {

StepKeys::StepKeys(const Schedule& schedule, const ModelLayout& layout, const MicroBatches& batches,
                   std::uint64_t seed, Memory& memory, int steps_in_flight)
    : batches_(batches),
      seed_(seed),
      layers_(static_cast<int>(layout.layers.size())),
      micro_steps_(schedule.micro_steps),
      keys_(memory, place_of(layers_) + micro_steps_, "keys of dropout", steps_in_flight) {}

void StepKeys::begin_step(std::int64_t step, std::size_t turn) {
  std::int64_t* const host = keys_.host(turn);
  for (int layer = 0; layer < layers_; ++layer) {
    store_random_key({seed_, dropout_stream(static_cast<std::uint64_t>(layer))},
                     host + place_of(layer));
  }
  for (int m = 0; m < micro_steps_; ++m) {
    host[place_of(layers_) + m] = batches_.first_sample_of(step, m);
  }
}

TensorView StepKeys::dropout(int layer) const {
  return keys_.view(place_of(layer), kRandomKeyWords);
}

TensorView StepKeys::first_sample(int micro_step) const {
  return keys_.view(place_of(layers_) + micro_step, 1);
}

}  // namespace tessera
