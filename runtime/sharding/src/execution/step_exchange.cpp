#include "execution/step_exchange.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

namespace tessera {
namespace {

/// Checks how many terms all ranks together add to the squared norm.
void check_terms(const ModelLayout& layout) {
  std::int64_t blocks = 0;
  for (const Unit& unit : layout.units) {
    for (const FlatParameter& flat : unit.flats) {
      if (flat.trainable) blocks += flat.padded_numel / kNormBlock;
    }
  }
  require(blocks <= kExactSumTerms, ErrorCode::kInvalidArgument, "the gradient norm of ", blocks,
          " blocks of ", kNormBlock, " elements is not possible; at most ", kExactSumTerms);
}

}  // namespace

StepExchange::StepExchange(const ModelLayout& layout, double clip_norm, const LossScalerRule* rule,
                           ProcessGroup* control, Memory& memory, int steps_in_flight, bool on_host,
                           std::int64_t hit_words, bool updates_early)
    : kernels_(kernels_for(memory.device())),
      control_(control),
      clip_norm_(clip_norm),
      hit_words_(hit_words),
      count_(memory, 1, "the item count", steps_in_flight),
      sums_(memory, 2 * kExactSumWords + hit_words,
            "the sums of losses and squared gradients, and hits", steps_in_flight),
      loss_scale_(memory, 1, "the loss scale"),
      optimizer_(memory, kOptimizerScalars, "scalars of the optimizer", on_host, steps_in_flight),
      rounding_(memory, kRandomKeyWords, "key of stochastic rounding", on_host, steps_in_flight),
      clip_factor_(memory, 1, "the clip factor", on_host),
      results_(memory, 2, "loss and gradient norm", steps_in_flight) {
  check_terms(layout);
  if (updates_early) {
    no_clipping_.emplace(memory, 1, "a clip factor of 1", on_host);
    *no_clipping_->host() = 1.0F;
  }
  if (rule != nullptr) scaler_.emplace(*rule, memory, steps_in_flight, on_host);
}

void StepExchange::begin_step(std::size_t turn, const Given& given, bool replayed) {
  turn_ = turn;
  replayed_ = replayed;
  *count_.host(turn) = given.items;
  std::fill_n(sums_.host(turn), sums_.numel(), 0);
  if (scaler_) {
    scaler_->begin_step(turn, given.skipped, given.optimizer);
  } else {
    std::ranges::copy(given.optimizer.front(), optimizer_.host(turn));
  }
  store_random_key(given.rounding, rounding_.host(turn));
}

void StepExchange::send(Stream& stream) {
  count_.upload(stream, turn_);
  sums_.upload(stream, turn_);
  if (scaler_) scaler_->send(stream, turn_);
}

void StepExchange::send_to_optimizer(Stream& stream) {
  if (!scaler_) optimizer_.upload(stream, turn_);
  rounding_.upload(stream, turn_);
  optimizer_.copy_to_host(stream);
  rounding_.copy_to_host(stream);
  clip_factor_.copy_to_host(stream);
  if (no_clipping_) {
    no_clipping_->upload(stream);
    no_clipping_->copy_to_host(stream);
  }
  if (scaler_) scaler_->copy_to_host(stream);
}

void StepExchange::receive(Stream& stream) {
  sums_.download(stream, turn_);
  results_.download(stream, turn_);
  count_.download(stream, turn_);
  if (scaler_) scaler_->receive(stream, turn_);
}

/// Before every loss, which needs the loss scale, and before all squares, on the same lane.
void StepExchange::count_tokens(bool updates_early, Stream& stream) {
  if (!replayed_) send(stream);
  if (!replayed_ && updates_early) send_to_optimizer(stream);
  if (control_ != nullptr) control_->all_reduce(count_.view(), stream);
  stream.submit({.name = "loss scale"}, [this, &stream] {
    kernels_.loss_scale({.count = count_.view(),
                         .scale = loss_scale_.view(),
                         .scaler = scaler_ ? scaler_->words() : TensorView()},
                        stream);
  });
}

void StepExchange::reduce_results(bool with_norm, bool updates_early, Stream& stream) {
  const TensorView sums = with_norm ? sums_.view(0, 2 * kExactSumWords)
                                    : sums_.view(kExactSumWords, sums_.numel() - kExactSumWords);
  if (control_ != nullptr) control_->all_reduce(sums, stream);
  stream.submit({.name = "combine"}, [this, with_norm, &stream] {
    kernels_.step_results({.losses = loss_sum(),
                           .squares = square_sum(),
                           .clip_norm = clip_norm_,
                           .results = results_.view(),
                           .clip_factor = clip_factor_.view(),
                           .scaler = scaler_ ? scaler_->words() : TensorView()},
                          stream);
    if (scaler_ && with_norm) scaler_->judge(kernels_, square_sum(), optimizer_.view(), stream);
  });
  if (replayed_) return;
  // The optimizer waits for the clip factor, and so for these.
  if (!updates_early) send_to_optimizer(stream);
  receive(stream);
}

double StepExchange::mean_loss(std::size_t turn) const {
  const std::int64_t items = total_items(turn);
  return items > 0 ? results_.host(turn)[0] / static_cast<double>(items) : 0.0;
}

}  // namespace tessera
