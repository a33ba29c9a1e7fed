#include "step_exchange.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

/// What all ranks together add to the squared norm.
void check_terms(const Schedule& schedule) {
  std::int64_t blocks = 0;
  for (const ScheduleUnit& unit : schedule.units) blocks += unit.trainable_numel / kNormBlock;
  require(blocks <= kExactSumTerms, ErrorCode::kInvalidArgument, "the gradient norm of ", blocks,
          " blocks of ", kNormBlock, " elements is not possible; at most ", kExactSumTerms);
}

}  // namespace

StepExchange::StepExchange(const Schedule& schedule, const RankState& state, ProcessGroup* control,
                           Memory& memory)
    : state_(state),
      kernels_(kernels_for(memory.device())),
      control_(control),
      count_(memory, 1, "the item count"),
      sums_(memory, 2 * kExactSumWords, "the sums of losses and squares"),
      loss_scale_(memory, 1, "the loss scale"),
      adamw_(memory, kAdamWScalars, "scalars of the optimizer"),
      results_(memory, 2, "loss and gradient norm") {
  check_terms(schedule);
}

void StepExchange::begin_step(std::int64_t items, const std::array<float, kAdamWScalars>& adamw) {
  *count_.host() = items;
  std::fill_n(sums_.host(), sums_.numel(), 0);
  std::copy_n(adamw.begin(), kAdamWGradientScale, adamw_.host());
}

void StepExchange::send_scalars(Stream& stream) {
  // All but the last, the clip factor, which exchange_results makes on the device.
  static_assert(kAdamWGradientScale == kAdamWScalars - 1);
  adamw_.upload(stream, kAdamWGradientScale);
}

/// Before every loss, which needs the loss scale, and before all squares, on the same lane: so the
/// sums begin at zero.
void StepExchange::exchange_items(Stream& stream) {
  count_.upload(stream);
  sums_.upload(stream);
  if (control_ != nullptr) control_->all_reduce(count_.view(), stream);
  stream.submit({.name = "loss scale"}, [this, &stream] {
    kernels_.loss_scale({.count = count_.view(), .scale = loss_scale_.view()}, stream);
  });
}

void StepExchange::add_squares(int unit, Stream& stream) {
  kernels_.exact_squares(
      {.x = state_.gradient_range(unit, state_.nesting().all_axes()), .words = square_sum()},
      stream);
}

void StepExchange::exchange_results(double clip_norm, Stream& stream) {
  if (control_ != nullptr) control_->all_reduce(sums_.view(), stream);
  stream.submit({.name = "combine"}, [this, clip_norm, &stream] {
    kernels_.step_results({.losses = loss_sum(),
                           .squares = square_sum(),
                           .clip_norm = clip_norm,
                           .results = results_.view(),
                           .clip_factor = adamw_.view(kAdamWGradientScale, 1)},
                          stream);
  });
  results_.download(stream);
  count_.download(stream);
}

double StepExchange::mean_loss() const {
  const std::int64_t items = total_items();
  return items > 0 ? results_.host()[0] / static_cast<double>(items) : 0.0;
}

}  // namespace tessera
