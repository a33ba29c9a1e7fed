#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/model/gpt.h"

namespace tessera {

/// Tokens of which the last ones are scored, given those before them.
struct ScoredText {
  std::vector<std::int32_t> tokens{};
  std::int64_t scored = 0;  ///< from 1 to the number of tokens less one
};

/// A GPT that says how likely texts are, over sharded parameters: a model whose predictions by
/// Session::forward are the losses of the targets that it is given.
///
///   GptScoring gpt(config, 128);
///   options.forward = true;
///   Session session(gpt.model(), gpt, options);
///   gpt.log_likelihoods(texts, [&](const TensorView& inputs, const TensorView& targets) {
///     return session.forward(inputs, targets).values;
///   });
///
/// Its parameters are frozen, as those of GptGeneration, and of the logits a chunk of rows is held
/// at a time, as in training. The bits depend on TrainerOptions::micro_batch, and neither on the
/// strategy nor on the number of ranks.
class GptScoring : public BatchSource {
 public:
  /// `window`: inputs of the longest text, from 1 to the model's context. Throws
  /// Error{kInvalidArgument}.
  GptScoring(const GptConfig& config, std::int64_t window);

  const Model& model() const { return model_; }
  std::int64_t window() const { return window_; }

  /// Losses (N, window) of samples: inputs (N, window) int32, targets (N, window) int32, of which
  /// -1 has none.
  using Losses =
      std::function<std::vector<float>(const TensorView& inputs, const TensorView& targets)>;
  /// The sum of the natural logarithms of the probabilities of each text's scored tokens, added in
  /// their order in fp64. Of a text that is longer than the window and one token, the first tokens
  /// are left out. Throws Error{kInvalidArgument} if there is none, if more tokens are scored than
  /// fit the window, or a token is outside of the vocabulary.
  std::vector<double> log_likelihoods(std::span<const ScoredText> texts,
                                      const Losses& losses) const;

  Shape input_shape(std::int64_t micro_batch) const override { return {micro_batch, window()}; }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t micro_batch) const override { return {micro_batch, window()}; }
  DType target_dtype() const override { return DType::kInt32; }
  /// There is nothing to train on: throws Error{kInvalidArgument}.
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override;
  /// There are no data but the texts, which the caller gives every process.
  std::vector<NamedText> identity() const override { return {{"data", "texts to score"}}; }

 private:
  class LossHead;

  Model model_;
  std::int64_t vocab_size_;
  std::int64_t window_;
};

}  // namespace tessera
