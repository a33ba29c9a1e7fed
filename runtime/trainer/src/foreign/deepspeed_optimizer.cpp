#include <algorithm>
#include <array>

#include "foreign/deepspeed_keys.h"
#include "foreign/deepspeed_parts.h"

namespace tessera::foreign {
namespace {

/// A number of at least 0; what DeepSpeed takes if the key is absent.
void number(Section& params, const char* key, const char* setting, double fallback) {
  if (const auto value = params.number(key)) {
    if (*value < 0) params.refuse(key, "is ", *value, "; it must be at least 0");
    params.honour(key, setting, *value);
  } else if (params.has(key)) {
    params.agree(key, concat("\"auto\": is ", flag_name(setting)));
  } else {
    params.derive(key, setting, fallback, concat("DeepSpeed's default is ", fallback));
  }
}

void betas(Section& params, const Node* list) {
  if (params.is_auto("betas")) {
    params.agree("betas", "\"auto\": are --beta1 and --beta2");
    return;
  }
  std::array<double, 2> values{0.9, 0.999};
  if (list == nullptr) {
    params.derive("betas", "beta1", values[0], "DeepSpeed's default is 0.9");
    params.derive("betas", "beta2", values[1], "DeepSpeed's default is 0.999");
    return;
  }
  if (list->items.size() != values.size()) params.refuse("betas", "must be two numbers");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = as_number(list->items[i]);
    if (!value || *value < 0 || *value >= 1) {
      params.refuse("betas", "must be two numbers of at least 0 and below 1");
    }
    params.honour("betas", i == 0 ? "beta1" : "beta2", *value);
  }
}

void check_adam(Section& params, bool adamw) {
  const auto decoupled = params.flag("adam_w_mode");
  if (!decoupled) return;
  const bool decays =
      params.number("weight_decay").value_or(params.is_auto("weight_decay") ? 1 : 0) > 0;
  if (!*decoupled && !adamw && decays) {
    params.refuse("adam_w_mode",
                  "false adds weight decay to the gradient (L2), which Tessera does not do; use "
                  "true, or \"weight_decay\": 0");
  }
  params.agree("adam_w_mode", adamw || *decoupled ? "the optimizer is AdamW"
                                                  : "without weight decay Adam is AdamW");
}

void translate_params(Section& params, const Node& map) {
  const Node* list = nullptr;
  for (const Node::Member& member : map.members) {
    if (member.key == "betas") list = &member.value;
  }
  number(params, "lr", "learning_rate", kDefaultLearningRate);
  betas(params, list);
  number(params, "eps", "epsilon", 1e-8);
  number(params, "weight_decay", "weight_decay", 0.0);
  if (params.number("weight_decay").value_or(0) > 0) {
    params.differ("weight_decay", "DeepSpeed decays every parameter; here only matrices decay");
  }
}

}  // namespace

void translate_optimizer(Section& top, const std::string& file, const KnownSettings& known,
                         ConfigTranslation& translation) {
  double rate = known.number("learning_rate");
  std::optional<Section> params;
  if (const Node* node = top.node("optimizer")) {
    Section optimizer(translation, file, *node, optimizer_keys(), {.name = "optimizer"});
    const std::string type =
        read_type(optimizer, {"AdamW", "Adam"},
                  {"Adagrad", "Lamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "Lion", "Muon",
                   "MuAdam", "MuAdamW", "MuSGD", "SGD"});
    optimizer.agree("type", "AdamW is the only optimizer here");
    if (optimizer.has("params")) optimizer.agree("params", "see its keys");
    const Node& map = params_of(optimizer);
    params.emplace(translation, file, map, optimizer_params_keys(),
                   Section::Options{.name = "optimizer.params"});
    check_adam(*params, type == "AdamW");
    translate_params(*params, map);
    if (!params->is_auto("lr")) {
      rate = known.override_number("learning_rate")
                 .value_or(params->number("lr").value_or(kDefaultLearningRate));
    }
    if (top.node("scheduler") == nullptr) {
      top.absent(
          "scheduler",
          concat("DeepSpeed then keeps the learning rate unless the script changes it; here ",
                 "learning_rate_schedule shapes it, give --learning-rate-schedule constant "
                 "--warmup-steps 0 for the same"),
          true);
    }
    top.agree("optimizer", "see its keys");
  } else if (top.has("optimizer")) {
    top.agree("optimizer", "is empty");
  }
  translate_scheduler(top, params ? &*params : nullptr, rate, file, known, translation);
}

}  // namespace tessera::foreign
