#include "step_keys.h"

#include "tessera/kernels/philox.h"

namespace tessera {

StepKeys::StepKeys(const Schedule& schedule, const ModelLayout& layout, const MicroBatches& batches,
                   std::uint64_t seed, Memory& memory)
    : batches_(batches),
      seed_(seed),
      layers_(static_cast<int>(layout.layers.size())),
      micro_steps_(schedule.micro_steps),
      keys_(memory, place_of(0, micro_steps_) + kRandomKeyWords, "keys of random numbers") {}

void StepKeys::begin_step(std::int64_t step) {
  for (int m = 0; m < micro_steps_; ++m) {
    const auto micro_batch = static_cast<std::uint64_t>(batches_.at(m).index);
    for (int layer = 0; layer < layers_; ++layer) {
      store_random_key({seed_, dropout_stream(micro_batch, static_cast<std::uint64_t>(layer))},
                       keys_.host() + place_of(layer, m));
    }
  }
  store_random_key({seed_, stream_of("rounding", static_cast<std::uint64_t>(step))},
                   keys_.host() + place_of(0, micro_steps_));
}

std::int64_t StepKeys::place_of(int layer, int micro_step) const {
  return (std::int64_t{micro_step} * layers_ + layer) * kRandomKeyWords;
}

TensorView StepKeys::dropout(int layer, int micro_step) const {
  return keys_.view(place_of(layer, micro_step), kRandomKeyWords);
}

TensorView StepKeys::rounding() const {
  return keys_.view(place_of(0, micro_steps_), kRandomKeyWords);
}

}  // namespace tessera
