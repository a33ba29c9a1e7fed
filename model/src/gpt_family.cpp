#include "tessera/model/gpt_family.h"

#include <array>

namespace tessera {
namespace {

constexpr std::array kFamilies{
    FamilyRow{.family = GptFamily::kGpt2,
              .name = "gpt2",
              .architecture = "GPT2LMHeadModel",
              .base_class = "GPT2Model",
              .block_class = "GPT2Block",
              .prefix = "transformer.",
              .lora_targets = {"c_attn"},
              .ia3_targets = {"c_attn", "mlp.c_proj"},
              .ia3_feedforward = "mlp.c_proj"},
    FamilyRow{.family = GptFamily::kLlama,
              .name = "llama",
              .architecture = "LlamaForCausalLM",
              .base_class = "LlamaModel",
              .block_class = "LlamaDecoderLayer",
              .prefix = "model.",
              .lora_targets = {"q_proj", "v_proj"},
              .ia3_targets = {"k_proj", "v_proj", "down_proj"},
              .ia3_feedforward = "down_proj"},
    FamilyRow{.family = GptFamily::kMistral,
              .name = "mistral",
              .architecture = "MistralForCausalLM",
              .base_class = "MistralModel",
              .block_class = "MistralDecoderLayer",
              .prefix = "model.",
              .lora_targets = {"q_proj", "v_proj"},
              .ia3_targets = {"k_proj", "v_proj", "down_proj"},
              .ia3_feedforward = "down_proj"},
    FamilyRow{.family = GptFamily::kQwen2,
              .name = "qwen2",
              .architecture = "Qwen2ForCausalLM",
              .base_class = "Qwen2Model",
              .block_class = "Qwen2DecoderLayer",
              .prefix = "model.",
              .qkv_bias = true,
              .lora_targets = {"q_proj", "v_proj"},
              .ia3_targets = {"q_proj", "v_proj", "down_proj"},
              .ia3_feedforward = "down_proj"},
    FamilyRow{.family = GptFamily::kQwen3,
              .name = "qwen3",
              .architecture = "Qwen3ForCausalLM",
              .base_class = "Qwen3Model",
              .block_class = "Qwen3DecoderLayer",
              .prefix = "model.",
              .head_norm = true,
              .lora_targets = {"q_proj", "v_proj"},
              .ia3_targets = {"q_proj", "v_proj", "down_proj"},
              .ia3_feedforward = "down_proj"},
    FamilyRow{.family = GptFamily::kPhi3,
              .name = "phi3",
              .architecture = "Phi3ForCausalLM",
              .base_class = "Phi3Model",
              .block_class = "Phi3DecoderLayer",
              .prefix = "model.",
              .fused_files = true},
};

}  // namespace

std::span<const FamilyRow> gpt_families() { return kFamilies; }

const FamilyRow& family_of(const GptConfig& config) {
  return kFamilies.at(static_cast<std::size_t>(config.family));
}

}  // namespace tessera
