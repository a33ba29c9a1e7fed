#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

struct GptConfig;

/// Low-rank adapters (LoRA, Hu et al. 2021) as PEFT's LoraConfig describes them: of each module W
/// (outputs, inputs) that is a target, y = W x becomes W x + scale * B A dropout(x) with A (r,
/// inputs) and B (outputs, r).
///
/// The scale multiplies A x, and the sum with W x is rounded once: in bf16, PEFT rounds B A x and
/// the scaled product, too.
struct LoraOptions {
  enum class Initialization : std::uint8_t {
    kDefault,   ///< A uniform in (-1, 1) / sqrt(inputs), B zero
    kGaussian,  ///< A normal with standard deviation 1 / r, B zero
    kRandomB,   ///< A as by default, B uniform in (-1, 1) / sqrt(r): not the base model, for tests
    /// PiSSA (Meng et al. 2024): of the singular value decomposition of W, the r largest singular
    /// values are in scale * B A, sqrt(s) in either factor, and the frozen W is the rest.
    kPissa,
  };

  std::int64_t rank = 8;  ///< r
  double alpha = 8.0;     ///< scale = alpha / r
  float dropout = 0.0F;
  bool rank_stabilized = false;  ///< scale = alpha / sqrt(r) (Kalajdzievski 2023)
  /// DoRA (Liu et al. 2024): y = m / n * (W x + scale * B A x) with a trained vector m (outputs)
  /// and n (outputs), the norms of the rows of W + scale * B A, which count as constants in
  /// backward. m begins as the norms of the rows of W.
  bool dora = false;
  Initialization initialization = Initialization::kDefault;
  std::vector<std::int64_t> layers{};         ///< of the targets, those of these blocks; empty: all
  std::vector<std::string> layers_pattern{};  ///< what stands before a block's number
  std::map<std::string, std::int64_t> rank_pattern{};  ///< by an expression for ends of paths
  std::map<std::string, double> alpha_pattern{};

  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

/// Vectors that rescale (IA3, Liu et al. 2022) as PEFT's IA3Config describes them: of each module
/// that is a target, y = W x + b becomes l * y with l (outputs, 1), or, if it is a feed-forward
/// module, W (l * x) + b with l (1, inputs). They begin as ones.
struct Ia3Options {
  /// Ends of the paths of feed-forward modules, each one of the targets.
  std::vector<std::string> feedforward{};
  std::string feedforward_pattern{};  ///< instead: a regular expression that matches whole paths
  bool begins_as_ones = true;         ///< false: as normal numbers: not the base model, for tests

  friend bool operator==(const Ia3Options&, const Ia3Options&) = default;
};

/// A prompt (Lester et al. 2021): so many trained rows stand in front of the embeddings of each
/// sequence. They take that many positions of the context.
struct PromptOptions {
  std::int64_t tokens = 0;
  /// How PEFT begins it: "RANDOM" (normal numbers) is ours, too.
  std::string initialization = "RANDOM";

  friend bool operator==(const PromptOptions&, const PromptOptions&) = default;
};

/// A prompt that an MLP of three layers with ReLU makes of trained rows (P-tuning, Liu et al. 2021;
/// PEFT's PromptEncoder): it stands in front of each sequence as a PromptOptions' does.
struct PromptEncoderOptions {
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;  ///< outputs of the first two layers; 0: the model's width
  /// The encoder's output alone, as PEFT keeps it for inference: nothing of the encoder is there.
  bool encoded = false;

  friend bool operator==(const PromptEncoderOptions&, const PromptEncoderOptions&) = default;
};

/// Keys and values of so many places, of each block its own, that stand before those of a sequence
/// (prefix tuning, Li and Liang 2021; PEFT's PrefixEncoder): every query attends to them. The
/// places take positions of the context; the keys are as attention reads them, behind rotation.
struct PrefixOptions {
  std::int64_t tokens = 0;
  /// They are made of trained rows by two layers with tanh between them, which are trained.
  bool projection = false;
  std::int64_t hidden = 0;  ///< outputs of the first of these; 0: the width of all keys of a place
  bool zero = false;        ///< begins as zeros, not as normal numbers
  /// With `projection`: what it makes alone, as PEFT keeps it for inference.
  bool encoded = false;

  friend bool operator==(const PrefixOptions&, const PrefixOptions&) = default;
};

/// The adapters that are trained instead of a model's own parameters, which are frozen but for
/// those of `saved_modules`. The names of modules and the rules by which they match are PEFT's.
struct AdapterConfig {
  std::variant<std::monostate, LoraOptions, Ia3Options, PromptOptions, PromptEncoderOptions,
               PrefixOptions>
      kind{};
  /// Module names, or ends of their paths, such as "q_proj" or "layers.3.mlp.up_proj". A prompt
  /// has none.
  std::vector<std::string> targets{};
  /// Instead: a regular expression that matches whole paths, or "all-linear", all but the head.
  std::string target_pattern{};
  std::vector<std::string> excluded{};
  std::string excluded_pattern{};
  std::vector<std::string> saved_modules{};  ///< trained themselves: ends of their paths

  bool is_set() const { return kind.index() != 0; }
  const LoraOptions* lora() const { return std::get_if<LoraOptions>(&kind); }
  const Ia3Options* ia3() const { return std::get_if<Ia3Options>(&kind); }
  const PromptOptions* prompt() const { return std::get_if<PromptOptions>(&kind); }
  const PromptEncoderOptions* prompt_encoder() const {
    return std::get_if<PromptEncoderOptions>(&kind);
  }
  const PrefixOptions* prefix() const { return std::get_if<PrefixOptions>(&kind); }
  std::int64_t prefix_tokens() const { return prefix() != nullptr ? prefix()->tokens : 0; }
  /// Rows in front of the embeddings of each sequence.
  std::int64_t prompt_rows() const {
    return prompt() != nullptr           ? prompt()->tokens
           : prompt_encoder() != nullptr ? prompt_encoder()->tokens
                                         : 0;
  }
  /// Positions before the first of each sequence.
  std::int64_t prompt_tokens() const { return prompt_rows() + prefix_tokens(); }
  /// Whether an encoder makes it.
  bool is_encoder() const {
    return prompt_encoder() != nullptr || (prefix() != nullptr && prefix()->projection);
  }
  /// Whether it is what an encoder has made, without the encoder.
  bool is_encoded() const {
    return (prompt_encoder() != nullptr && prompt_encoder()->encoded) ||
           (prefix() != nullptr && prefix()->encoded);
  }
  void set_encoded(bool encoded) {
    if (auto* const encoder = std::get_if<PromptEncoderOptions>(&kind)) encoder->encoded = encoded;
    auto* const prefix_options = std::get_if<PrefixOptions>(&kind);
    if (prefix_options != nullptr) prefix_options->encoded = prefix_options->projection && encoded;
  }
  /// Whether it stands in front of sequences, and adapts no module.
  bool is_prompt() const {
    return prompt() != nullptr || prompt_encoder() != nullptr || prefix() != nullptr;
  }

  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

/// A kind of adapter, as users name it.
struct AdapterKind {
  std::string_view setting;    ///< the setting that begins new ones: "lora"
  std::string_view peft_type;  ///< in adapter_config.json: "LORA"
  std::string_view name;       ///< in texts: "LoRA"
  std::string_view help;       ///< of the setting
};
/// All kinds, in the order of AdapterConfig::kind.
std::vector<AdapterKind> adapter_kinds();
/// The kind of a configuration that is set.
AdapterKind kind_of(const AdapterConfig& adapter);

/// New adapters of the kind with this setting, such as "lora", by a text such as
/// "r=16,alpha=32,targets=q_proj,v_proj,dropout=0.05": what is left out is as PEFT has it, targets
/// those of the family. Throws Error{kConfig} that lists the keys.
AdapterConfig parse_adapter(std::string_view setting, std::string_view text,
                            const GptConfig& config);

/// PEFT's adapter_config.json: keys sorted; on one line unless `indent` is 0 or more. `base`: where
/// the base model is, for whoever loads the adapter.
std::string to_adapter_json(const AdapterConfig& adapter, const GptConfig& config,
                            const std::string& base = "", int indent = -1);
/// The reverse, of PEFT's own files as well. Keys that change what is computed and that Tessera
/// does not have are refused by name. `path`: of the file, for errors. Throws Error{kConfig}.
AdapterConfig parse_adapter_json(std::string_view text, const std::string& path,
                                 const GptConfig& config);

/// The parameter of a tuned prompt, (prompt tokens, width).
inline constexpr std::string_view kPromptParameter = "prompt_embeddings";
/// Begins the names of the parameters of what makes a prompt.
inline constexpr std::string_view kPromptEncoder = "prompt_encoder.";
/// Behind a block's name: its parameters of a prefix begin with it. Without more, keys and values
/// (prefix tokens, 2 * all keys of a place).
inline constexpr std::string_view kPrefixParameter = ".prefix";
/// Whether a parameter belongs to adapters or is a prompt.
bool is_adapter_parameter(std::string_view name);

}  // namespace tessera
