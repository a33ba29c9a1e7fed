#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter_modules.h"
#include "tessera/autograd/layer.h"
#include "tessera/autograd/ops.h"
#include "tessera/model/gpt.h"

// The layers of a GPT, and the functions that they share.
namespace tessera::gpt {

inline constexpr float kInitialStddev = 0.02F;

ParameterSpec matrix(std::string name, std::int64_t outputs, std::int64_t inputs, float stddev);
/// Without weight decay.
ParameterSpec vector(std::string name, std::int64_t size, float value);

/// Throws Error{kInvalidArgument} unless there are as many as the layer has, tied ones included.
void check_parameters(const Layer& layer, std::span<const Parameter> parameters);

/// A batch's tokens (B, L) int32 and, of packed samples, where the document of each begins.
struct TokenInputs {
  TensorView tokens, starts;
};
TokenInputs inputs_of(const Tape& tape);

/// Freezes what config.adapter does not train, and checks that all that it trains can be trained.
void freeze(const GptConfig& config, std::vector<ParameterSpec>& parameters);

/// The adapters of a block's matrices. A block declares its own parameters, and these add theirs:
/// of each matrix the A's of all modules that it joins, then the rest of each module's, so that A's
/// are neighbours ([Note: neighbouring a's] in low_rank_parts.h).
class BlockAdapters {
 public:
  BlockAdapters(const GptConfig& config, std::vector<ParameterSpec>& parameters);

  /// x weight^T [+ bias] [+ residual] with what the adapters of `weight` do to it. `weight` is one
  /// of `parameters`, the block's.
  Value linear(Tape& tape, Value x, Parameter& weight, Parameter* bias,
               std::span<Parameter> parameters, const Value* residual = nullptr) const;
  /// Whether the parameter at this index has adapters.
  bool adapt(std::size_t parameter) const;

 private:
  using Place = adapter::ModuleAdapter::Place;
  struct Adapter {
    std::size_t weight = 0;  ///< index of the parameter
    std::size_t first = 0;   ///< index of its own: A, or l
    std::size_t rest = 0;    ///< of B [and magnitudes]
    Place place = Place::kBeside;
    std::int64_t first_row = 0;
    float scale = 1.0F, dropout = 0.0F;  ///< of kBeside
    bool has_magnitudes = false;         ///< DoRA
    bool scales_output() const { return place == Place::kOutput || has_magnitudes; }
    /// Whether its product reads what the matrix reads, and nothing follows it.
    bool is_plain(const Tape& tape) const {
      return place == Place::kBeside && !has_magnitudes &&
             (dropout == 0.0F || !tape.options().training);
    }
  };
  static ops::LowRank product_of(const Adapter& adapter, std::span<Parameter> parameters);
  static Value add_product(Tape& tape, Value y, const Value& x, const Adapter& adapter,
                           const Parameter& weight, std::span<Parameter> parameters);
  std::vector<Adapter> adapters_;
};

struct AttentionSizes {
  std::int64_t heads = 0, kv_heads = 0, width = 0;  ///< a head's
  std::int64_t window = 0;                          ///< 0: none
  AttentionScores scores{};

  std::int64_t cache_numel(std::int64_t positions) const {
    return 2 * kv_heads * positions * width;
  }
};

/// A pass over some tokens of one text (B = 1), of which those before have been passed over: their
/// keys and values are in what the blocks keep.
struct CachedPass {
  std::int64_t first = 0;   ///< the pass's first token, of those in the batch
  std::int64_t tokens = 0;  ///< and how many it is over
  std::int64_t prompt = 0;  ///< positions before the first token's
  std::int64_t length =
      0;  ///< of the text as a whole, by which longrope and dynamic choose frequencies

  /// The position of the pass's first row. A prompt's or prefix's rows come with the first token.
  std::int64_t first_position() const { return first == 0 ? 0 : prompt + first; }
};

/// A layer that can pass over the next tokens of a text.
class CachingLayer : public Layer {
 public:
  using Layer::Layer;
  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const final {
    return run(tape, input, parameters, nullptr);
  }
  /// Forward of the whole batch if `pass` is null.
  virtual Value run(Tape& tape, const Value& input, std::span<Parameter> parameters,
                    const CachedPass* pass) const = 0;
  /// Elements of the keys and values of `positions`, for Layer::kept_numel.
  virtual std::int64_t cache_numel(std::int64_t /*positions*/) const { return 0; }
};

/// Attention over qkv as ops::attention takes it, of `kv_heads` different heads of keys and values.
/// With a pass those are in Tape::kept, (2, kv_heads, positions, D).
Value attend(Tape& tape, const Value& qkv, const AttentionSizes& sizes, const TensorView& starts,
             const CachedPass* pass);

/// (vocabulary, width).
ParameterSpec vocabulary_matrix(std::string name, const GptConfig& config);

/// Logits (B, L, V) in fp32, whatever the compute dtype: sampling divides them by a temperature.
/// `bias` and `low_rank`, a product that is added: may be null.
Value logits_of(Tape& tape, const Value& x, const Parameter& weight, const Parameter* bias,
                float soft_cap, const ops::LowRankLogits* low_rank = nullptr);

/// All layers of make_gpt().
std::vector<std::unique_ptr<Layer>> make_layers(const GptConfig& config);

/// Block `index` of a GPT-2, and of any other family.
std::unique_ptr<Layer> make_gpt2_block(const GptConfig& config, std::int64_t index);
std::unique_ptr<Layer> make_llama_block(const GptConfig& config, std::int64_t index);

/// The layers of a BERT.
std::unique_ptr<Layer> make_bert_embedding(const GptConfig& config);
std::unique_ptr<Layer> make_bert_block(const GptConfig& config, std::int64_t index);
std::unique_ptr<Layer> make_bert_head(const GptConfig& config);

}  // namespace tessera::gpt
