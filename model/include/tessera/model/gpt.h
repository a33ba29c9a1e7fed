#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/model/adapter_config.h"

namespace tessera {

/// How the position of a token enters attention in all families but GPT-2: channels i and i + R/2
/// of a head's first R channels are turned by position * frequency i (RoFormer, Su et al. 2021).
struct RotaryConfig {
  enum class Scaling : std::uint8_t { kNone, kLlama3, kLongRope, kLinear, kDynamic, kYarn };

  double base = 10000.0;  ///< frequency i is base^(-2 i / R) before scaling
  double share = 1.0;     ///< R = head width * share, rounded down
  Scaling scaling = Scaling::kNone;
  /// So many times longer become waves: all (kLinear), or the long ones (kLlama3, kYarn). kDynamic:
  /// the base grows with sequences longer than `trained_context`, by so much for each of its
  /// lengths.
  double factor = 1.0;
  double low_frequency = 1.0, high_frequency = 4.0;  ///< kLlama3: where that begins and ends
  /// kYarn: turns within the trained context of the shortest waves that become longer, and of the
  /// longest that do not by the whole factor; and whether both ends are rounded to whole channels.
  double fast_turns = 32.0, slow_turns = 1.0;
  bool whole_channels = true;
  /// The context of the model before its context was made longer; kLlama3, kLongRope, kDynamic and
  /// kYarn.
  std::int64_t trained_context = 0;
  /// The factor of cosine and sine; 0: kLongRope: as context_length / trained_context
  /// asks; kYarn: as the factor asks.
  double amplitude = 0.0;
  /// kLongRope: divisors of the R/2 frequencies for sequences up to `trained_context` and beyond.
  std::vector<double> short_factors{}, long_factors{};

  friend bool operator==(const RotaryConfig&, const RotaryConfig&) = default;
};

/// Decoder-only transformers that share one skeleton: a norm before attention and MLP, residuals
/// around both (Gemma: with a norm on their way), one more norm before the head; and an encoder,
/// BERT, whose norms follow the residuals and whose tokens attend to all of their sequence. What
/// differs is in gpt_family.h, a row for each.
enum class GptFamily : std::uint8_t {
  kGpt2,
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kPhi3,
  kGemma2,
  kGemma3,
  kBert
};

struct GptConfig {
  std::int64_t vocab_size = 256;
  /// The longest sequence; GPT-2 and BERT: rows of the position embedding.
  std::int64_t context_length = 256;
  std::int64_t layers = 4;
  std::int64_t heads = 4;     ///< of queries
  std::int64_t width = 128;   ///< channels C
  float dropout = 0.0F;       ///< after the embedding and on both residual branches
  bool tie_embedding = true;  ///< the head's matrix is the token embedding
  GptFamily family = GptFamily::kGpt2;
  // Members below are for the families other than GPT-2.
  std::int64_t kv_heads = 0;    ///< of keys and values, each for heads / kv_heads queries; 0: heads
  std::int64_t head_width = 0;  ///< channels of a head; 0: width / heads
  std::int64_t mlp_width = 0;   ///< hidden channels of the MLP; 0: 4 * width
  std::int64_t window = 0;      ///< a token attends to that many, itself included; 0: to all before
  std::int64_t first_window_layer = 0;  ///< earlier layers attend to all
  std::int64_t window_period = 0;  ///< and so does the last of so many layers in a row; 0: none
  float norm_epsilon = 1e-5F;
  std::int64_t token_types =
      0;  ///< BERT: rows of the embedding of segments; a text is of the first
  double attention_scalar = 0.0;  ///< scores are divided by its root; 0: the width of a head
  double attention_cap = 0.0;     ///< soft cap of the scores; 0: none
  double logit_cap = 0.0;         ///< soft cap of the logits; 0: none
  RotaryConfig rotary{};
  std::optional<RotaryConfig> window_rotary{};  ///< of layers with a window, if not the same
  /// The classes of sequences that the model tells apart; none: it tells the next token. The head's
  /// matrix is "score.weight" (classes, width) then, also beside a tied embedding.
  std::vector<std::string> labels{};
  /// Trained instead of the model's own parameters, in any family.
  AdapterConfig adapter{};
  /// How the matrices of the blocks that adapters leave frozen are stored: those that transformers
  /// hands to bitsandbytes.
  WeightFormat base_format = WeightFormat::kNone;
  /// Matrices of the blocks that are not stored so, where a published base leaves them out: our
  /// names.
  std::vector<std::string> unquantized{};

  std::int64_t kv_heads_used() const { return kv_heads == 0 ? heads : kv_heads; }
  std::int64_t head_width_used() const { return head_width == 0 ? width / heads : head_width; }
  std::int64_t mlp_width_used() const { return mlp_width == 0 ? 4 * width : mlp_width; }
  /// The window of a layer; 0: it attends to all.
  std::int64_t window_of(std::int64_t layer) const {
    const bool is_full =
        layer < first_window_layer || (window_period != 0 && (layer + 1) % window_period == 0);
    return is_full ? 0 : window;
  }
  const RotaryConfig& rotary_of(std::int64_t layer) const {
    return window_rotary && window_of(layer) != 0 ? *window_rotary : rotary;
  }

  friend bool operator==(const GptConfig&, const GptConfig&) = default;
};

/// A published model by name, such as "gpt2-124m", "llama3.2-1b" or "phi3-mini", or a tiny one of a
/// family for tests and first steps, whose tokens are bytes: "gpt2-tiny", "llama-tiny", ... Hugging
/// Face's names are known, too, with or without their owner: "gpt2-medium",
/// "meta-llama/Llama-3.2-1B". Throws Error{kConfig} naming the choices.
GptConfig gpt_preset(std::string_view name);
/// The first of a preset's names, for any of them; empty if there is none of that name.
std::string gpt_preset_name(std::string_view name);

/// All names, each preset's first one and then its others; without an owner.
std::vector<std::string> gpt_preset_names();

/// The layers "embedding" (type "Embedding"), the blocks and "head" (type "Head"). Blocks of GPT-2
/// are "h.0".. (type "TransformerBlock"), of BERT "encoder.layer.0".., those of others "layers.0"..
/// with the type that transformers has, such as "LlamaDecoderLayer".
///
/// Parameters have the names of the family's published weights without their prefix ("model.",
/// "transformer."). As in Phi-3, query, key and value are one matrix, "self_attn.qkv_proj.weight"
/// of (heads + 2 * kv heads) * head width rows in that order, and so are gate and up,
/// "mlp.gate_up_proj.weight"; other families' files have them apart. Matrices are stored (outputs,
/// inputs). They begin as normal numbers of standard deviation 0.02, in GPT-2 divided by
/// sqrt(2 * layers) for the projections that write to the residual stream; norms begin as 1 and 0,
/// biases as 0. Weight decay is for matrices, embeddings included. With adapters, a block's come
/// behind its own parameters, which are frozen then.
/// Throws Error{kConfig} if the sizes do not fit together.
///
/// Inputs and targets are (B, L) int32, L <= context_length; inputs may be (2, B, L) instead,
/// tokens and for each of them where in its sequence its document begins: then positions begin anew
/// with each document, and attention stays within it. A target of -1 does not count, nor one of
/// -100 in what a BatchSource fills. Of a model with labels the target of a sequence's last token,
/// of an encoder its first, is its class, and no other counts. To an encoder padding is a document
/// of its own: without where documents begin, it would see it. Where nothing is recorded and the
/// batch has no targets, the head gives logits (B, L, vocab_size) fp32 instead of losses, or (B, L,
/// classes).
Model make_gpt(const GptConfig& config);

/// A configuration in words, as Model::configuration has it, and back. Throws Error{kConfig} if the
/// words are not those of a GPT.
std::vector<NamedText> configuration_of(const GptConfig& config);
GptConfig parse_gpt_configuration(const std::vector<NamedText>& words);

/// FLOPs of forward and backward per token of a full context: 6 for each matrix element, the head's
/// included and the embeddings' lookups not, plus 6 * layers * context_length * heads * head width
/// for attention, which is the count of the PaLM paper (Chowdhery et al. 2022, appendix B) halved
/// because the scores above the diagonal are never computed; nor are those outside of a window.
/// Norms, activation functions, rotations and softmax are not counted. A frozen matrix takes 4
/// instead of 6: it has no gradient.
double gpt_flops_per_token(const GptConfig& config);
/// FLOPs of gpt_flops_per_token() with all scores of attention counted, those above the diagonal
/// and outside of windows too: 12 * layers * context_length * heads * head width, as the PaLM paper
/// and torchtitan count.
double gpt_full_flops_per_token(const GptConfig& config);

/// Which positions gpt_logits is wanted for.
enum class LogitPositions { kLast, kAll };

/// Runs the model forward on tokens (B, L) int32, or for all positions the (2, B, L) of packed
/// samples, without recording; returns logits (B, L, vocab
/// size) fp32, or for the last position only (1, 1, vocab size), where B must be 1.
/// `parameters`: for each layer what its forward takes. `memory` and `stream` are of one device;
/// the kernels run as kernels do there: on the CPU, to their end on the calling thread, which
/// should be the stream's.
/// `threads`: of the stream.
Tensor gpt_logits(const Model& model, std::span<std::vector<Parameter>> parameters, Memory& memory,
                  Stream& stream, const Tensor& tokens,
                  LogitPositions positions = LogitPositions::kLast, int threads = 1);

}  // namespace tessera
