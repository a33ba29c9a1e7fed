#include <array>
#include <vector>

#include "gpt_config.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// A row of the presets.
struct Preset {
  std::string_view name;
  std::string_view hugging_face;  ///< what it is called there, with its owner; empty if ours alone
  GptConfig config;
};

GptConfig gpt2(std::int64_t layers, std::int64_t heads, std::int64_t width) {
  return {.vocab_size = 50257,
          .context_length = 1024,
          .layers = layers,
          .heads = heads,
          .width = width};
}

/// Bytes as tokens, so that a preset of any family runs on any text.
GptConfig tiny(GptFamily family) {
  return {.vocab_size = 256,
          .context_length = 256,
          .layers = 4,
          .heads = 4,
          .width = 128,
          .tie_embedding = false,
          .family = family,
          .kv_heads = 2,
          .head_width = 32,
          .mlp_width = 352};
}

struct LlamaSizes {
  std::int64_t vocab_size, context_length, layers, heads, kv_heads, head_width, width, mlp_width;
  double base;
  bool tie_embedding = false;
};

GptConfig sized(GptFamily family, const LlamaSizes& s, float epsilon = 1e-5F) {
  return {.vocab_size = s.vocab_size,
          .context_length = s.context_length,
          .layers = s.layers,
          .heads = s.heads,
          .width = s.width,
          .tie_embedding = s.tie_embedding,
          .family = family,
          .kv_heads = s.kv_heads,
          .head_width = s.head_width,
          .mlp_width = s.mlp_width,
          .norm_epsilon = epsilon,
          .rotary = {.base = s.base}};
}

GptConfig llama(const LlamaSizes& sizes) { return sized(GptFamily::kLlama, sizes); }

/// Llama 3.1 and 3.2, whose context was made longer by `factor`.
GptConfig llama_scaled(const LlamaSizes& sizes, double factor) {
  GptConfig config = llama(sizes);
  config.rotary.scaling = RotaryConfig::Scaling::kLlama3;
  config.rotary.factor = factor;
  config.rotary.trained_context = 8192;
  return config;
}

GptConfig qwen2(const LlamaSizes& sizes) { return sized(GptFamily::kQwen2, sizes, 1e-6F); }
GptConfig qwen3(const LlamaSizes& sizes) { return sized(GptFamily::kQwen3, sizes, 1e-6F); }

/// Gemma 2: half of the layers have a window, scores and logits a soft cap.
GptConfig gemma2(const LlamaSizes& sizes, double attention_scalar = 0.0) {
  GptConfig config = sized(GptFamily::kGemma2, sizes, 1e-6F);
  config.window = 4096;
  config.window_period = 2;
  config.attention_scalar = attention_scalar;
  config.attention_cap = 50.0;
  config.logit_cap = 30.0;
  return config;
}

/// Gemma 3: five of six layers have a window and a rotary base of their own.
GptConfig gemma3(const LlamaSizes& sizes, std::int64_t window) {
  GptConfig config = sized(GptFamily::kGemma3, sizes, 1e-6F);
  config.window = window;
  config.window_period = 6;
  config.window_rotary = RotaryConfig{.base = 1e4};
  return config;
}

/// The 27B's, whose context was made longer.
GptConfig gemma3_scaled(const LlamaSizes& sizes, std::int64_t window) {
  GptConfig config = gemma3(sizes, window);
  config.attention_scalar = 168.0;
  config.rotary.scaling = RotaryConfig::Scaling::kLinear;
  config.rotary.factor = 8.0;
  return config;
}

/// Some of four layers have a window, and some do not.
GptConfig bert(std::int64_t vocab_size, std::int64_t context_length, std::int64_t layers,
               std::int64_t heads, std::int64_t width) {
  return {.vocab_size = vocab_size,
          .context_length = context_length,
          .layers = layers,
          .heads = heads,
          .width = width,
          .family = GptFamily::kBert,
          .norm_epsilon = 1e-12F,
          .token_types = 2};
}

GptConfig tiny_gemma(GptFamily family) {
  GptConfig config = tiny(family);
  config.tie_embedding = true;
  config.window = 64;
  config.norm_epsilon = 1e-6F;
  if (family == GptFamily::kGemma2) {
    config.window_period = 2;
    config.attention_cap = 50.0;
    config.logit_cap = 30.0;
  } else {
    config.window_period = 3;
    config.rotary.base = 1e6;
    config.window_rotary = RotaryConfig{.base = 1e4};
  }
  return config;
}

GptConfig windowed(GptConfig config, std::int64_t window) {
  config.window = window;
  return config;
}

GptConfig with_share(GptConfig config, double share) {
  config.rotary.share = share;
  return config;
}

/// Sizes as in the published config.json of each.
const std::vector<Preset>& presets() {
  constexpr std::int64_t kLlama2 = 32000, kLlama3 = 128256, kQwen = 151936, kLong = 131072;
  constexpr std::int64_t kGemma2 = 256000, kGemma3 = 262144;
  static const std::vector<Preset> all{
      {"gpt2-tiny", "", GptConfig{}},
      {"gpt2-124m", "openai-community/gpt2", gpt2(12, 12, 768)},
      {"gpt2-350m", "openai-community/gpt2-medium", gpt2(24, 16, 1024)},
      {"gpt2-774m", "openai-community/gpt2-large", gpt2(36, 20, 1280)},
      {"gpt2-1558m", "openai-community/gpt2-xl", gpt2(48, 25, 1600)},
      {"llama-tiny", "", tiny(GptFamily::kLlama)},
      {"llama2-7b", "meta-llama/Llama-2-7b-hf",
       llama({kLlama2, 4096, 32, 32, 32, 128, 4096, 11008, 1e4})},
      {"llama2-13b", "meta-llama/Llama-2-13b-hf",
       llama({kLlama2, 4096, 40, 40, 40, 128, 5120, 13824, 1e4})},
      {"llama2-70b", "meta-llama/Llama-2-70b-hf",
       llama({kLlama2, 4096, 80, 64, 8, 128, 8192, 28672, 1e4})},
      {"llama3-8b", "meta-llama/Meta-Llama-3-8B",
       llama({kLlama3, 8192, 32, 32, 8, 128, 4096, 14336, 5e5})},
      {"llama3-70b", "meta-llama/Meta-Llama-3-70B",
       llama({kLlama3, 8192, 80, 64, 8, 128, 8192, 28672, 5e5})},
      {"llama3.1-8b", "meta-llama/Llama-3.1-8B",
       llama_scaled({kLlama3, kLong, 32, 32, 8, 128, 4096, 14336, 5e5}, 8.0)},
      {"llama3.1-70b", "meta-llama/Llama-3.1-70B",
       llama_scaled({kLlama3, kLong, 80, 64, 8, 128, 8192, 28672, 5e5}, 8.0)},
      {"llama3.2-1b", "meta-llama/Llama-3.2-1B",
       llama_scaled({kLlama3, kLong, 16, 32, 8, 64, 2048, 8192, 5e5, true}, 32.0)},
      {"llama3.2-3b", "meta-llama/Llama-3.2-3B",
       llama_scaled({kLlama3, kLong, 28, 24, 8, 128, 3072, 8192, 5e5, true}, 32.0)},
      {"mistral-tiny", "", windowed(tiny(GptFamily::kMistral), 64)},
      {"mistral-7b", "mistralai/Mistral-7B-v0.1",
       windowed(sized(GptFamily::kMistral, {32000, 32768, 32, 32, 8, 128, 4096, 14336, 1e4}),
                4096)},
      {"qwen2-tiny", "", tiny(GptFamily::kQwen2)},
      {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B",
       qwen2({kQwen, 32768, 24, 14, 2, 64, 896, 4864, 1e6, true})},
      {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B",
       qwen2({kQwen, kLong, 28, 12, 2, 128, 1536, 8960, 1e6, true})},
      {"qwen2.5-7b", "Qwen/Qwen2.5-7B", qwen2({152064, kLong, 28, 28, 4, 128, 3584, 18944, 1e6})},
      {"qwen3-tiny", "", tiny(GptFamily::kQwen3)},
      {"qwen3-0.6b", "Qwen/Qwen3-0.6B",
       qwen3({kQwen, 40960, 28, 16, 8, 128, 1024, 3072, 1e6, true})},
      {"qwen3-1.7b", "Qwen/Qwen3-1.7B",
       qwen3({kQwen, 40960, 28, 16, 8, 128, 2048, 6144, 1e6, true})},
      {"qwen3-8b", "Qwen/Qwen3-8B", qwen3({kQwen, 40960, 36, 32, 8, 128, 4096, 12288, 1e6})},
      {"phi3-tiny", "", with_share(tiny(GptFamily::kPhi3), 0.75)},
      {"phi3-mini", "microsoft/Phi-3-mini-4k-instruct",
       windowed(sized(GptFamily::kPhi3, {32064, 4096, 32, 32, 32, 96, 3072, 8192, 1e4}), 2047)},
      {"gemma2-tiny", "", tiny_gemma(GptFamily::kGemma2)},
      {"gemma2-2b", "google/gemma-2-2b",
       gemma2({kGemma2, 8192, 26, 8, 4, 256, 2304, 9216, 1e4, true})},
      {"gemma2-9b", "google/gemma-2-9b",
       gemma2({kGemma2, 8192, 42, 16, 8, 256, 3584, 14336, 1e4, true})},
      {"gemma2-27b", "google/gemma-2-27b",
       gemma2({kGemma2, 8192, 46, 32, 16, 128, 4608, 36864, 1e4, true}, 144.0)},
      {"gemma3-tiny", "", tiny_gemma(GptFamily::kGemma3)},
      {"gemma3-1b", "google/gemma-3-1b-pt",
       gemma3({kGemma3, 32768, 26, 4, 1, 256, 1152, 6912, 1e6, true}, 512)},
      {"gemma3-27b", "google/gemma-3-27b-pt",
       gemma3_scaled({262208, kLong, 62, 32, 16, 128, 5376, 21504, 1e6, true}, 1024)},
      {"bert-tiny", "", bert(256, 256, 4, 4, 128)},
      {"bert-base", "google-bert/bert-base-uncased", bert(30522, 512, 12, 12, 768)},
      {"bert-large", "google-bert/bert-large-uncased", bert(30522, 512, 24, 16, 1024)},
  };
  return all;
}

std::string_view without_owner(std::string_view name) {
  return name.substr(name.find('/') == std::string_view::npos ? 0 : name.find('/') + 1);
}

/// Null if there is none of that name.
const Preset* find_preset(std::string_view name) {
  if (name.empty()) return nullptr;
  for (const Preset& preset : presets()) {
    if (name == preset.name || name == preset.hugging_face ||
        name == without_owner(preset.hugging_face)) {
      return &preset;
    }
  }
  return nullptr;
}

}  // namespace

GptConfig gpt_preset(std::string_view name) {
  if (const Preset* preset = find_preset(name)) return preset->config;
  std::string choices;
  for (const std::string& choice : gpt_preset_names()) {
    choices += (choices.empty() ? "" : ", ") + choice;
  }
  fail(ErrorCode::kConfig, "there is no model '", name, "'; choose one of ", choices);
}

std::string gpt_preset_name(std::string_view name) {
  const Preset* preset = find_preset(name);
  return preset == nullptr ? "" : std::string(preset->name);
}

std::vector<std::string> gpt_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.emplace_back(preset.name);
    if (!preset.hugging_face.empty()) names.emplace_back(without_owner(preset.hugging_face));
  }
  return names;
}

}  // namespace tessera
