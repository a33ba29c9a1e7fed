#include "tessera/model/gpt.h"

#include <utility>

#include "gpt_config.h"
#include "gpt_layers.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_family.h"

namespace tessera {
namespace {

/// Everything that config.adapter names must be there.
void check_adapters(const Model& model, const GptConfig& config) {
  if (!config.adapter.is_set() || config.adapter.is_prompt()) return;
  const std::string_view kind = kind_of(config.adapter).name;
  bool adapts = false, saves = config.adapter.saved_modules.empty();
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      const bool is_adapter = is_adapter_parameter(spec.name);
      adapts = adapts || is_adapter;
      saves = saves || (spec.trainable && !is_adapter);
    }
  }
  require(
      adapts, ErrorCode::kConfig, kind, ": no linear module of this ", family_of(config).name,
      " is a target; its modules are ",
      is_encoder(config)                  ? "query, key, value and dense"
      : config.family == GptFamily::kGpt2 ? "c_attn, c_proj and c_fc; wte and lm_head"
      : family_of(config).fused_files
          ? "qkv_proj, o_proj, gate_up_proj and down_proj; embed_tokens and lm_head"
          : "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj; embed_tokens and "
            "lm_head");
  require(saves, ErrorCode::kConfig, kind, ": modules_to_save names no module of this ",
          family_of(config).name);
}

}  // namespace

Model make_gpt(const GptConfig& config) {
  check(config);
  Model model;
  model.name = family_of(config).name;
  model.layers = gpt::make_layers(config);
  check_adapters(model, config);
  model.flops_per_item = gpt_flops_per_token(config);
  model.configuration = configuration_of(config);
  check(model);
  return model;
}

Tensor gpt_logits(const Model& model, std::span<std::vector<Parameter>> parameters, Memory& memory,
                  Stream& stream, const Tensor& tokens, LogitPositions positions, int threads) {
  require(parameters.size() == model.layers.size(), ErrorCode::kInvalidArgument,
          "gpt_logits: ", model.layers.size(), " layers, but parameters of ", parameters.size());
  const bool last_only = positions == LogitPositions::kLast;
  const bool is_packed = !last_only && tokens.shape().rank() == 3 && tokens.shape()[0] == 2;
  require((is_packed || tokens.shape().rank() == 2) && tokens.shape()[1] > 0,
          ErrorCode::kInvalidArgument, "gpt_logits: tokens must be (batch, length > 0), got ",
          tokens.shape());
  require(!last_only || tokens.shape()[0] == 1, ErrorCode::kInvalidArgument,
          "gpt_logits: the last position alone is for one sequence, got ", tokens.shape()[0]);
  const Batch batch{.inputs = tokens, .targets = {}};
  Tensor x = tokens;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    // Behind a prompt, too.
    if (last_only && i + 1 == model.layers.size()) x = x.narrow(1, x.shape()[1] - 1, 1);
    Tape tape(memory, stream, batch, {.record = false, .training = false, .threads = threads});
    const Value input = tape.input(std::move(x), false);
    x = model.layers[i]->forward(tape, input, parameters[i]).tensor;
  }
  return x;
}

}  // namespace tessera
