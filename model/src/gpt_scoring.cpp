#include "tessera/model/gpt_scoring.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "frozen_layer.h"
#include "gpt_config.h"
#include "tessera/core/error.h"

namespace tessera {

/// The last layer: returns losses (B, L), where others return logits if there is nothing to learn.
class GptScoring::LossHead : public gpt::FrozenLayer {
 public:
  explicit LossHead(std::unique_ptr<Layer> head) : FrozenLayer(std::move(head)) {
    train_first_parameter();  // the last norm's
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    Tape apart(tape.memory(), tape.stream(), tape.batch(), forward_only(tape.options()));
    const Value rows = apart.input(input.tensor, false);
    const Tensor losses = FrozenLayer::forward(apart, rows, parameters).tensor;
    return tape.output(losses.reshape(tape.batch().targets.shape()), nullptr);
  }
};

GptScoring::GptScoring(const GptConfig& config, std::int64_t window)
    : model_(make_gpt(config)), vocab_size_(config.vocab_size), window_(window) {
  require_writes_text(config);
  const std::int64_t most = config.context_length - config.adapter.prompt_tokens();
  require(window >= 1 && window <= most, ErrorCode::kInvalidArgument, "a window of ", window,
          " tokens; this model takes between 1 and ", most);
  auto& layers = model_.layers;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    layers[i] = std::make_unique<gpt::FrozenLayer>(std::move(layers[i]));
  }
  layers.back() = std::make_unique<LossHead>(std::move(layers.back()));
}

std::vector<double> GptScoring::log_likelihoods(std::span<const ScoredText> texts,
                                                const Losses& losses) const {
  require(!texts.empty(), ErrorCode::kInvalidArgument, "there are no texts to score");
  const auto rows = std::ssize(texts);
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(rows * window_));
  std::vector<std::int32_t> targets(inputs.size(), -1);
  std::vector<std::size_t> ends;  // of each text's targets
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto& [tokens, scored] = texts[static_cast<std::size_t>(row)];
    const auto count = std::ssize(tokens);
    require(scored >= 1 && scored < count && scored <= window_, ErrorCode::kInvalidArgument, scored,
            " tokens of text ", row, " are to be scored, which has ", count,
            "; one at least must be before them, and a window of ", window_,
            " tokens takes no more than that");
    for (const std::int32_t token : tokens) {
      require(token >= 0 && token < vocab_size_, ErrorCode::kInvalidArgument, "text ", row,
              " has the token ", token, ", outside of the vocabulary of ", vocab_size_);
    }
    const std::int64_t length = std::min(count - 1, window_);
    const auto first = tokens.end() - length - 1;
    const std::int64_t at = row * window_;
    std::copy_n(first, length, inputs.begin() + at);
    std::copy_n(tokens.end() - scored, scored, targets.begin() + at + length - scored);
    ends.push_back(static_cast<std::size_t>(at + length));
  }
  const Shape shape{rows, window_};
  const std::vector<float> values = losses(TensorView(inputs.data(), DType::kInt32, shape),
                                           TensorView(targets.data(), DType::kInt32, shape));
  require(values.size() == inputs.size(), ErrorCode::kInvalidArgument, "there are ", values.size(),
          " losses of ", inputs.size(), " targets");
  std::vector<double> sums;
  for (std::size_t row = 0; row < texts.size(); ++row) {
    double sum = 0.0;
    const auto scored = static_cast<std::size_t>(texts[row].scored);
    for (std::size_t i = ends[row] - scored; i < ends[row]; ++i) {
      sum -= static_cast<double>(values[i]);
    }
    sums.push_back(sum);
  }
  return sums;
}

std::int64_t GptScoring::fill(std::int64_t /*first*/, std::int64_t /*micro_batch*/,
                              TensorView /*inputs*/, TensorView /*targets*/) const {
  fail(ErrorCode::kInvalidArgument, "a model that scores texts is not trained");
}

}  // namespace tessera
