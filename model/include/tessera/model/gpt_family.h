#pragma once

#include <array>
#include <span>
#include <string_view>

#include "tessera/kernels/kernel_table.h"
#include "tessera/model/gpt.h"

namespace tessera {

/// The facts that a family of models fixes. Its sizes are in GptConfig.
struct FamilyRow {
  GptFamily family;
  std::string_view name;                  ///< here, and "model_type" in Hugging Face's config.json
  std::string_view architecture;          ///< class of the model in transformers
  std::string_view base_class;            ///< of the model without its head
  std::string_view block_class;           ///< of a block, by which wrap policies of others name it
  std::string_view prefix;                ///< of names in Hugging Face's files; the head has none
  std::string_view classifier = "score";  ///< module that classifies, in transformers and PEFT
  bool qkv_bias = false;                  ///< of query, key and value; GPT-2 has biases everywhere
  bool head_norm = false;                 ///< RMS norm of each query and key before their rotation
  bool fused_files = false;               ///< files have qkv_proj and gate_up_proj as we do
  bool post_norms = false;        ///< norms of what attention and MLP add to the residual, too
  bool scaled_embedding = false;  ///< embeddings times the root of the width
  bool encoder = false;           ///< tokens attend to all of their sequence: no next token is told
  GateFunction gate = GateFunction::kSilu;
  float norm_offset = 0.0F;  ///< added to the weights of RMS norms, which begin as 1 less that
  /// The modules that PEFT adapts unless told; empty: it must be told.
  std::array<std::string_view, 2> lora_targets{};
  std::array<std::string_view, 3> ia3_targets{};
  std::string_view ia3_feedforward{};  ///< of these, the one whose input is scaled
};

/// All families, in the order of GptFamily.
std::span<const FamilyRow> gpt_families();
const FamilyRow& family_of(const GptConfig& config);

/// The frequencies of a head's rotation in radians per token, R / 2 of them, for sequences of
/// `length` tokens, computed as transformers does in modeling_rope_utils.py. `rotary` is one of the
/// configuration's.
std::vector<float> rotary_frequencies(const GptConfig& config, const RotaryConfig& rotary,
                                      std::int64_t length);
/// Whether those of sequences longer than the trained context are others.
bool depends_on_length(const RotaryConfig& rotary);
/// The factor of cosine and sine; 1 but for kLongRope and kYarn.
float rotary_amplitude(const GptConfig& config, const RotaryConfig& rotary);
/// Longrope's factor for a context that became `factor` times as long.
double longrope_amplitude(double factor, std::int64_t trained_context);

}  // namespace tessera
