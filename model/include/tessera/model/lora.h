#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct GptConfig;

/// Low-rank adapters (LoRA, Hu et al. 2021) as PEFT's LoraConfig describes them: of each module W
/// (outputs, inputs) that is a target, y = W x becomes W x + scale * B A dropout(x) with A (r,
/// inputs) and B (outputs, r). A and B are trained, and W and all other parameters are not, but for
/// those of `saved_modules`.
///
/// The scale multiplies A x, and the sum with W x is rounded once: in bf16, PEFT rounds B A x and
/// the scaled product, too.
struct LoraConfig {
  enum class Initialization : std::uint8_t {
    kDefault,   ///< A uniform in (-1, 1) / sqrt(inputs), B zero
    kGaussian,  ///< A normal with standard deviation 1 / r, B zero
    kRandomB,   ///< A as by default, B uniform in (-1, 1) / sqrt(r): not the base model, for tests
  };

  std::int64_t rank = 0;  ///< r; 0: no adapters
  double alpha = 8.0;     ///< scale = alpha / r
  float dropout = 0.0F;
  bool rank_stabilized = false;  ///< scale = alpha / sqrt(r) (Kalajdzievski 2023)
  Initialization initialization = Initialization::kDefault;
  /// Module names, or ends of their paths, such as "q_proj" or "layers.3.mlp.up_proj".
  std::vector<std::string> targets{};
  /// Instead: a regular expression that matches whole paths, or "all-linear", all but the head.
  std::string target_pattern{};
  std::vector<std::string> excluded{};
  std::string excluded_pattern{};
  std::vector<std::int64_t> layers{};         ///< of `targets`, those of these blocks; empty: all
  std::vector<std::string> layers_pattern{};  ///< what stands before a block's number
  std::map<std::string, std::int64_t> rank_pattern{};  ///< by an expression for ends of paths
  std::map<std::string, double> alpha_pattern{};
  std::vector<std::string> saved_modules{};  ///< trained themselves: ends of their paths

  bool is_set() const { return rank > 0; }
  friend bool operator==(const LoraConfig&, const LoraConfig&) = default;
};

/// One adapter: of a module whose weights are rows of one of our matrices.
struct LoraModule {
  std::string name;            ///< "layers.0.self_attn.q_proj": of the module, without prefix
  std::int64_t first_row = 0;  ///< in our matrix
  std::int64_t rows = 0;
  std::int64_t rank = 0;
  float scale = 0.0F;

  std::string a() const { return name + ".lora_A.weight"; }
  std::string b() const { return name + ".lora_B.weight"; }
};

/// The adapters of one of our parameters, by its name, in order of rows; none if it has none.
/// `rows`: of the parameter. Throws Error{kConfig} if a pattern is no regular expression.
std::vector<LoraModule> lora_modules(const GptConfig& config, const std::string& parameter,
                                     std::int64_t rows);
/// Whether config.lora leaves a parameter to train. Throws Error{kConfig} where it names some of
/// the modules that are one matrix here, and leaves out others.
bool is_saved(const GptConfig& config, const std::string& parameter);

/// The targets that PEFT takes for a family if none are given; empty: there are none.
std::vector<std::string> default_lora_targets(const GptConfig& config);

/// "r=16,alpha=32,targets=q_proj,v_proj,dropout=0.05": what is left out is as PEFT has it, targets
/// those of the family. Throws Error{kConfig} that lists the keys.
LoraConfig parse_lora(std::string_view text, const GptConfig& config);

/// PEFT's adapter_config.json: keys sorted; on one line unless `indent` is 0 or more. `base`: where
/// the base model is, for whoever loads the adapter.
std::string to_adapter_json(const LoraConfig& lora, const GptConfig& config,
                            const std::string& base = "", int indent = -1);
/// The reverse, of PEFT's own files as well. Keys that change what is computed and that Tessera
/// does not have are refused by name. `path`: of the file, for errors. Throws Error{kConfig}.
LoraConfig parse_adapter_json(std::string_view text, const std::string& path,
                              const GptConfig& config);

/// Throws Error{kConfig} if a number is out of its range, or no module of the model is a target.
void check(const LoraConfig& lora, const GptConfig& config);

}  // namespace tessera
