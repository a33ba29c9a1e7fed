#include "block_prefix.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "tessera/autograd/ops.h"

namespace tessera::gpt {
namespace {

void add_prefix_linear(const std::string& name, std::int64_t outputs, std::int64_t inputs,
                       bool zero, std::vector<ParameterSpec>& parameters) {
  const auto initializer = zero
                               ? Initializer::constant(0.0F)
                               : Initializer::uniform(1.0F / std::sqrt(static_cast<float>(inputs)));
  parameters.push_back(
      {.name = name + "weight", .shape = {outputs, inputs}, .initializer = initializer});
  parameters.push_back({.name = name + "bias",
                        .shape = {outputs},
                        .initializer = initializer,
                        .weight_decay_scale = 0.0F});
}

}  // namespace

std::vector<std::string> prefix_trunk_names() {
  const std::string prefix(kPromptEncoder);
  return {prefix + "embedding.weight", prefix + "transform.0.weight", prefix + "transform.0.bias"};
}

BlockPrefix::BlockPrefix(const GptConfig& config, const std::string& name, std::int64_t index,
                         const AttentionSizes& sizes, std::vector<ParameterSpec>& parameters,
                         std::vector<std::string>& tied)
    : sizes_(sizes), tokens_(config.adapter.prefix_tokens()) {
  const PrefixOptions* const prefix = config.adapter.prefix();
  if (prefix == nullptr) return;
  projects_ = prefix->projection && !prefix->encoded;
  const std::int64_t keys = sizes.kv_heads * sizes.width;
  first_ = parameters.size();
  const std::string own = concat(name, kPrefixParameter);
  if (!projects_) {
    parameters.push_back(matrix(own, tokens_, 2 * keys, 1.0F));
    if (prefix->zero) parameters.back().initializer = Initializer::constant(0.0F);
    return;
  }
  const std::int64_t hidden = prefix->hidden == 0 ? keys : prefix->hidden;
  add_prefix_linear(own + "_transform.", 2 * keys, hidden, prefix->zero, parameters);
  trunk_ = parameters.size();  // a tied parameter is behind all of the block's own, too
  if (index > 0) {
    tied = prefix_trunk_names();
    return;
  }
  parameters.push_back(matrix(prefix_trunk_names().front(), tokens_, keys, 1.0F));
  add_prefix_linear(std::string(kPromptEncoder) + "transform.0.", hidden, keys, false, parameters);
}

Value BlockPrefix::with_room(Tape& tape, const Value& x) const {
  return ops::zeros_in_front(tape, x, tokens_);
}

Value BlockPrefix::rows(Tape& tape, std::span<Parameter> parameters) const {
  Value x;
  if (projects_) {
    x = ops::value_of(tape, parameters[trunk_]);
    x = ops::linear(tape, x, parameters[trunk_ + 1], &parameters[trunk_ + 2]);
    x = ops::tanh(tape, std::move(x));
    x = ops::linear(tape, x, parameters[first_], &parameters[first_ + 1]);
  } else {
    x = ops::value_of(tape, parameters[first_]);
  }
  x = ops::zeros_beside(tape, x, sizes_.heads * sizes_.width);
  if (sizes_.kv_heads == sizes_.heads) return x;
  return ops::heads(tape, x,
                    {.heads = sizes_.heads, .kv_heads = sizes_.kv_heads, .width = sizes_.width});
}

Value BlockPrefix::attend_behind(Tape& tape, const Value& qkv, bool has_room,
                                 const CachedPass* pass, std::span<Parameter> parameters) const {
  const Value all = ops::rows_in_front(tape, rows(tape, parameters), qkv, has_room ? tokens_ : 0);
  return ops::without_first(tape, attend(tape, all, sizes_, {}, pass), tokens_);
}

}  // namespace tessera::gpt
