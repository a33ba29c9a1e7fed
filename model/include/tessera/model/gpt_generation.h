#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/model/gpt.h"

namespace tessera {

/// A GPT that continues a text over sharded parameters: a model whose evaluation by a Session gives
/// the logits of the next token, and the data that it reads, which are the text so far.
///
///   GptGeneration gpt(config, 64);
///   options.micro_batch = 1;
///   options.evaluation_samples = options.ranks / options.pipeline.ranks;  // one pass of each
///   Session session(gpt.model(), gpt, options, &gpt);
///   gpt.set_context(tokens);
///   session.evaluate();
///   gpt.logits();
///
/// Every rank computes the same pass, so that parameters are gathered as in any forward pass, and
/// every process that has a rank of the last stage of a pipeline has the logits; set_logits() gives
/// them to others. Its parameters are frozen (but for the last bias, without which no
/// session can be planned): a rank has its shard of them in the run's precision, and neither
/// gradients nor masters nor optimizer state.
///
/// With a cache each rank keeps the keys and values of the text so far (GptConfig::layers x 2 x
/// kv_heads x window x head width elements, of its stage's layers), and a pass is over what differs
/// from the last text: a token, if the text goes on, all of it if its beginning was dropped.
/// Without one, and in training of any kind, a pass is over the whole window, whatever the length
/// of the text is.
///
/// [Note: rounding with a cache] Both compute the same logits but for rounding: products of one row
/// and of many add in other orders. So do the same text by sample_token() unless two tokens are as
/// near to each other as that, about 1e-6 of the logits in fp32 and 1e-2 in bf16. With a cache, as
/// without, all strategies and numbers of ranks give the same bits.
class GptGeneration : public BatchSource {
 public:
  enum class Cache : std::uint8_t { kNone, kKeysAndValues };

  /// `window`: tokens of the longest text, from 1 to the model's context. Throws
  /// Error{kInvalidArgument}. With a cache for one session, whose ranks have it.
  GptGeneration(const GptConfig& config, std::int64_t window, Cache cache = Cache::kNone);
  ~GptGeneration() override;

  const Model& model() const { return model_; }
  std::int64_t window() const { return static_cast<std::int64_t>(tokens_.size()); }

  /// The text of the next pass. `stop`: this process asks all to stop; the mean loss of the pass is
  /// above 0 if one does. Throws Error{kInvalidArgument} if the text is empty, longer than the
  /// window or has a token outside of the vocabulary. Not during a pass.
  void set_context(std::span<const std::int32_t> context, bool stop = false);
  /// Logits (vocab_size) of the token after the last pass's context.
  std::span<const float> logits() const { return logits_; }
  /// Whether this process has them.
  bool has_logits() const { return has_logits_; }
  /// Takes those of a process that has them. Throws Error{kInvalidArgument} on another number.
  void set_logits(std::span<const float> logits);
  /// Tokens that the next pass is over.
  std::int64_t pass_tokens() const { return tokens_of_pass_; }

  Shape input_shape(std::int64_t micro_batch) const override { return {micro_batch, window()}; }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t micro_batch) const override { return {micro_batch, 1}; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override;

 private:
  class Pass;
  class LogitHead;

  bool caches(const Tape& tape) const;

  Model model_;
  std::int64_t vocab_size_;
  Cache cache_;
  std::int64_t prompt_;                ///< positions before the first of a text
  std::int64_t prompt_rows_;           ///< tuned rows in front of a text
  std::vector<std::int32_t> tokens_;   ///< the context, and zeros behind it
  std::int64_t position_ = 0;          ///< of the context's last token
  std::vector<std::int32_t> context_;  ///< that of the last pass, or of the next
  std::int64_t first_of_pass_ = 0, tokens_of_pass_ = 0;
  bool stop_ = false;
  std::vector<float> logits_;
  mutable std::atomic<bool> is_read_ = false;  ///< context_, by a rank of this process, for a pass
  std::atomic<bool> has_logits_ = false;       ///< a rank of this process has written them
};

}  // namespace tessera
