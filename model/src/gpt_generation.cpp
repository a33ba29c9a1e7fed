#include "tessera/model/gpt_generation.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "frozen_layer.h"
#include "gpt_config.h"
#include "gpt_layers.h"
#include "tessera/core/error.h"

namespace tessera {

/// A layer that is not trained and that may pass over the next tokens alone.
class GptGeneration::Pass : public gpt::FrozenLayer {
 public:
  Pass(std::unique_ptr<Layer> layer, GptGeneration& owner)
      : FrozenLayer(std::move(layer)),
        owner_(owner),
        caching_(dynamic_cast<const gpt::CachingLayer*>(&inner())) {}

  std::int64_t kept_numel() const override {
    if (owner_.cache_ == Cache::kNone || caching_ == nullptr) return 0;
    return caching_->cache_numel(owner_.prompt_ + owner_.window());
  }

  Shape pass_shape(const Shape& whole) const override {
    if (owner_.cache_ == Cache::kNone) return whole;
    const std::int64_t prompt = owner_.first_of_pass_ == 0 ? owner_.prompt_rows_ : 0;
    return whole.with(1, prompt + owner_.tokens_of_pass_);
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    if (caching_ == nullptr || !owner_.caches(tape)) {
      return FrozenLayer::forward(tape, input, parameters);
    }
    const gpt::CachedPass pass{.first = owner_.first_of_pass_,
                               .tokens = owner_.tokens_of_pass_,
                               .prompt = owner_.prompt_,
                               .length = owner_.prompt_ + owner_.window()};
    return caching_->run(tape, input, parameters, &pass);
  }

 protected:
  GptGeneration& owner_;

 private:
  const gpt::CachingLayer* caching_;  ///< the same, unless it is the head
};

/// The last layer: hands out the logits of one position. Its loss says whether to stop.
class GptGeneration::LogitHead : public Pass {
 public:
  LogitHead(std::unique_ptr<Layer> head, GptGeneration& owner) : Pass(std::move(head), owner) {
    train_first_parameter();  // the last norm's
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    const bool caches = owner_.caches(tape);
    const std::int64_t rows = input.shape()[1];
    const std::int64_t prompt = rows - owner_.window();  // tuned rows in front, without a cache
    // Without targets the head gives logits.
    Tape apart(tape.memory(), tape.stream(), {.inputs = tape.batch().inputs, .targets = {}},
               forward_only(tape.options()));
    const Value last = apart.input(
        input.tensor.narrow(1, caches ? rows - 1 : prompt + owner_.position_, 1), false);
    const Tensor logits = Pass::forward(apart, last, parameters).tensor;
    hand_out(tape, logits);
    Tensor loss = tape.activation(Shape{1}, DType::kFloat32, "whether to stop");
    tape.kernels().fill({.dst = loss, .value = owner_.stop_ ? 1.0F : 0.0F}, tape.stream());
    return tape.output(std::move(loss), nullptr);
  }

 private:
  void hand_out(Tape& tape, const Tensor& logits) const {
    // A plan is of no text.
    if (!owner_.is_read_ || owner_.has_logits_.exchange(true)) return;
    const TensorView to(owner_.logits_.data(), DType::kFloat32, logits.shape());
    if (tape.memory().device().host_accessible()) {
      tape.kernels().cast({.src = logits, .dst = to}, tape.stream());
    } else {
      tape.stream().copy(to.data, logits.view().data, static_cast<std::size_t>(to.bytes()));
    }
  }
};

GptGeneration::GptGeneration(const GptConfig& config, std::int64_t window, Cache cache)
    : model_(make_gpt(config)),
      vocab_size_(config.vocab_size),
      cache_(cache),
      prompt_(config.adapter.prompt_tokens()),
      prompt_rows_(config.adapter.prompt_rows()),
      tokens_of_pass_(window) {
  require_writes_text(config);
  const std::int64_t most = config.context_length - prompt_;
  require(window >= 1 && window <= most, ErrorCode::kInvalidArgument, "a window of ", window,
          " tokens; this model takes between 1 and ", most);
  tokens_.resize(static_cast<std::size_t>(window));
  logits_.resize(static_cast<std::size_t>(vocab_size_));
  auto& layers = model_.layers;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    layers[i] = std::make_unique<Pass>(std::move(layers[i]), *this);
  }
  layers.back() = std::make_unique<LogitHead>(std::move(layers.back()), *this);
}

GptGeneration::~GptGeneration() = default;

/// A session's plan has a training step, too, which is over the whole window.
bool GptGeneration::caches(const Tape& tape) const {
  return cache_ != Cache::kNone && !tape.options().training;
}

void GptGeneration::set_context(std::span<const std::int32_t> context, bool stop) {
  require(!context.empty() && context.size() <= tokens_.size(), ErrorCode::kInvalidArgument,
          "a context of ", context.size(), " tokens; this window takes between 1 and ", window());
  for (std::size_t i = 0; i < context.size(); ++i) {
    require(context[i] >= 0 && context[i] < vocab_size_, ErrorCode::kInvalidArgument, "token ", i,
            " of the context is ", context[i], ", outside of the vocabulary of ", vocab_size_);
  }
  // The beginning that is the same as in the last context, if there was a pass over it, needs no
  // other pass. The last token does: its logits are wanted.
  const auto same = std::ranges::mismatch(context_, context).in1 - context_.begin();
  first_of_pass_ =
      is_read_ ? std::min<std::int64_t>(same, static_cast<std::int64_t>(context.size()) - 1) : 0;
  tokens_of_pass_ = static_cast<std::int64_t>(context.size()) - first_of_pass_;
  if (cache_ == Cache::kNone) {
    first_of_pass_ = 0;
    tokens_of_pass_ = window();
  }
  context_.assign(context.begin(), context.end());
  std::fill(std::ranges::copy(context, tokens_.begin()).out, tokens_.end(), 0);
  position_ = static_cast<std::int64_t>(context.size()) - 1;
  stop_ = stop;
  is_read_ = false;
  has_logits_ = false;
}

void GptGeneration::set_logits(std::span<const float> logits) {
  require(logits.size() == logits_.size(), ErrorCode::kInvalidArgument, logits.size(),
          " logits are given, and the vocabulary has ", logits_.size(), " tokens");
  std::ranges::copy(logits, logits_.begin());
  has_logits_ = true;
}

std::int64_t GptGeneration::fill(std::int64_t /*first*/, std::int64_t micro_batch,
                                 TensorView inputs, TensorView targets) const {
  for (std::int64_t i = 0; i < micro_batch; ++i) {
    std::ranges::copy(tokens_, inputs.as<std::int32_t>() + i * window());
  }
  is_read_ = true;
  std::fill_n(targets.as<std::int32_t>(), micro_batch, 0);
  return micro_batch;
}

}  // namespace tessera
