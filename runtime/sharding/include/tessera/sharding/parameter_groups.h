#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"

namespace tessera {

/// Parameters that are trained at another rate than the others: those whose names `pattern`
/// matches, in which * stands for any characters and ? for one ("h.*.attn.*").
struct ParameterGroup {
  std::string pattern;
  float learning_rate_factor = 1.0F;  ///< times the learning rate of the step; 0: they stay
  /// Instead of OptimizerOptions::weight_decay, and like that times
  /// ParameterSpec::weight_decay_scale.
  std::optional<float> weight_decay{};
  bool operator==(const ParameterGroup&) const = default;
};

/// The first group that has a parameter of this name; null: none has.
const ParameterGroup* find_group(const std::vector<ParameterGroup>& groups, std::string_view name);

/// Throws Error{kConfig} if a group has no trained parameter of the model, which names near ones,
/// or a factor or weight decay that is negative or not finite.
void check_groups(const std::vector<ParameterGroup>& groups, const Model& model);

/// "h.*.attn.*=0.1,wte.*=0.5:0", pattern=factor or pattern=factor:decay.
std::string to_string(const std::vector<ParameterGroup>& groups);
/// The reverse. Throws Error{kConfig}.
std::vector<ParameterGroup> parse_groups(std::string_view text);

}  // namespace tessera
