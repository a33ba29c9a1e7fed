#include "execution/device_loss_scaler.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr int kElementBits = 40;

}  // namespace

DeviceLossScaler::DeviceLossScaler(const LossScalerRule& rule, Memory& memory, int steps_in_flight,
                                   bool on_host)
    : rule_(rule),
      words_(memory, kLossScalerWords, "the loss scaler", on_host, steps_in_flight),
      candidates_(memory, steps_in_flight * kOptimizerScalars, "scalars to choose from",
                  steps_in_flight),
      base_(memory, 1, "the count of skipped steps", steps_in_flight) {}

void DeviceLossScaler::set(const LossScalerState& state, Stream& stream) {
  store_scaler(state, words_.host());
  words_.host()[kFirstBadWord] = kNoElement;
  words_.upload(stream);
}

void DeviceLossScaler::begin_step(std::size_t turn, std::int64_t skipped,
                                  std::span<const OptimizerScalars> candidates) {
  *base_.host(turn) = skipped;
  float* row = candidates_.host(turn);
  for (const OptimizerScalars& scalars : candidates) row = std::ranges::copy(scalars, row).out;
}

void DeviceLossScaler::send(Stream& stream, std::size_t turn) {
  candidates_.upload(stream, turn);
  base_.upload(stream, turn);
}

void DeviceLossScaler::judge(const KernelTable& kernels, const TensorView& squares,
                             const TensorView& scalars, Stream& stream) const {
  kernels.update_loss_scaler({.rule = rule_,
                              .squares = squares,
                              .scaler = words_.view(),
                              .candidates = candidates_.view(),
                              .base = base_.view(),
                              .scalars = scalars},
                             stream);
}

LossScaleResult DeviceLossScaler::result(std::size_t turn) const {
  const std::int64_t* const words = words_.host(turn);
  return {.scale = used_scale_of(words),
          .skipped = words[kSkipWord] != 0,
          .exhausted = words[kExhaustedWord] != 0};
}

std::int64_t number_of(const GradientPlace& place) {
  return (std::int64_t{place.unit} << kElementBits) + place.element;
}

GradientPlace gradient_place(std::int64_t number) {
  return {.unit = static_cast<int>(number >> kElementBits),
          .element = number & ((std::int64_t{1} << kElementBits) - 1)};
}

}  // namespace tessera
