#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"

namespace tessera {

/// A decoder-only transformer as GPT-2 has it (Radford et al. 2019): learned positions, layer norm
/// before attention and MLP, GELU in its tanh form, biases everywhere.
struct GptConfig {
  std::int64_t vocab_size = 256;
  std::int64_t context_length = 256;  ///< longest sequence; rows of the position embedding
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;   ///< channels C; a multiple of heads
  float dropout = 0.0F;       ///< after the embedding and on both residual branches
  bool tie_embedding = true;  ///< the head's matrix is the token embedding
};

/// "gpt2-tiny" (bytes as tokens, for tests and first steps) and the four sizes of GPT-2:
/// "gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m", which are also known by the names that
/// Hugging Face has for them: "gpt2", "gpt2-medium", "gpt2-large" and "gpt2-xl", with or without
/// "openai-community/" in front. Throws Error{kConfig} naming the choices.
GptConfig gpt_preset(std::string_view name);
/// The first of a preset's names, for any of them; empty if there is none of that name.
std::string gpt_preset_name(std::string_view name);

/// All names, each preset's first one and then its others; without an owner.
std::vector<std::string> gpt_preset_names();

/// The layers "embedding" (type "Embedding"), "h.0".. (type "TransformerBlock") and "head" (type
/// "Head"), with the parameter names of GPT-2's published weights and their initialisation: normal
/// numbers of standard deviation 0.02, divided by sqrt(2 * layers) for the projections that write
/// to the residual stream; norms 1 and 0; biases 0. Matrices are stored (outputs, inputs). Weight
/// decay is for matrices, embeddings included.
/// Throws Error{kConfig} if the sizes do not fit together.
///
/// Inputs and targets are (B, L) int32, L <= context_length; a target of -1 does not count, nor one
/// of -100 in what a BatchSource fills. Where nothing is recorded and the batch has no targets, the
/// head gives logits (B, L, vocab_size) fp32 instead of losses.
Model make_gpt(const GptConfig& config);

/// A configuration in words, as Model::configuration has it, and back. Throws Error{kConfig} if the
/// words are not those of a GPT.
std::vector<NamedText> configuration_of(const GptConfig& config);
GptConfig parse_gpt_configuration(const std::vector<NamedText>& words);

/// FLOPs of forward and backward per token of a full context: 6 for each matrix element, the head's
/// included and the embeddings' lookups not, plus 6 * layers * context_length * width for
/// attention, which is the count of the PaLM paper (Chowdhery et al. 2022, appendix B) halved
/// because the scores above the diagonal are never computed. Norms, GELU and softmax are not
/// counted.
double gpt_flops_per_token(const GptConfig& config);

/// Which positions gpt_logits is wanted for.
enum class LogitPositions { kLast, kAll };

/// Runs the model forward on tokens (B, L) int32 without recording; returns logits (B, L, vocab
/// size) fp32, or for the last position only (1, 1, vocab size), where B must be 1.
/// `parameters`: for each layer what its forward takes. `memory` and `stream` are of one device;
/// the kernels run as kernels do there: on the CPU, to their end on the calling thread, which
/// should be the stream's.
/// `threads`: of the stream.
Tensor gpt_logits(const Model& model, std::span<std::vector<Parameter>> parameters, Memory& memory,
                  Stream& stream, const Tensor& tokens,
                  LogitPositions positions = LogitPositions::kLast, int threads = 1);

}  // namespace tessera
