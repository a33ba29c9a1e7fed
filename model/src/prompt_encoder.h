#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/tape.h"
#include "tessera/model/gpt.h"

// Trained rows in front of sequences, and the encoder that makes them in P-tuning.
namespace tessera::gpt {

/// The parameters that stand for rows in front of sequences: the rows, or the encoder that makes
/// them.
std::vector<ParameterSpec> prompt_parameters(const GptConfig& config);

/// The rows (P, C) that an encoder makes: `parameters` are those of prompt_parameters().
Value encoded_prompt(Tape& tape, std::span<Parameter> parameters);

/// Computes what PEFT's file has instead of the parameters that make a prompt or a prefix.
class PromptFold {
 public:
  explicit PromptFold(const GptConfig& config);
  /// Whether `config` has a prompt whose parameters are not those of the file.
  static bool folds(const GptConfig& config);

  bool takes(std::string_view name) const { return shapes_.contains(name); }
  /// Throws Error{kInvalidArgument} on another size, or a second time.
  void add(std::string_view name, std::span<const float> values);
  bool is_complete() const { return values_.size() == shapes_.size(); }
  /// The prompt or prefixes, by the names of parameters of a model that is encoded.
  std::map<std::string, std::vector<float>> made() const;

 private:
  std::vector<float> prompt() const;
  const std::vector<float>& value(const std::string& name) const { return values_.at(name); }

  bool is_prefix_;
  std::map<std::string, Shape, std::less<>> shapes_;
  std::map<std::string, std::vector<float>, std::less<>> values_;
};

}  // namespace tessera::gpt
