#include <array>

#include "deepspeed.h"

namespace tessera::compat {
namespace {

/// A number; what DeepSpeed takes if the key is absent.
void number(Section& params, const char* key, const char* setting, double fallback) {
  if (params.pass_on(key, setting)) return;
  if (params.has(key)) {
    params.agree(key, concat("\"auto\": is ", flag_name(setting)));
  } else {
    params.derive(key, setting, fallback, concat("DeepSpeed's default is ", fallback));
  }
}

void learning_rate(Section& params, const PeakRate& peak) {
  const char* key = "lr";
  const auto rate = params.number(key);
  if (!peak.by_scheduler) {
    number(params, key, "learning_rate", kDefaultLearningRate);
  } else if (rate == peak.in_file) {
    params.honour(key, "learning_rate", *rate);
  } else if (params.has(key)) {
    params.no_effect(key, concat("the scheduler's warmup_max_lr decides: ", peak.in_file),
                     told_if(rate.has_value()));
  }
}

/// `defaults`: DeepSpeed's for this optimizer.
void betas(Section& params, std::array<double, 2> defaults) {
  const char* key = "betas";
  if (params.is_auto(key)) {
    params.agree(key, "\"auto\": are --beta1 and --beta2");
    return;
  }
  if (!params.has(key)) {
    params.derive(key, "beta1", defaults[0], concat("DeepSpeed's default is ", defaults[0]));
    params.derive(key, "beta2", defaults[1], concat("DeepSpeed's default is ", defaults[1]));
    return;
  }
  const Node* list = params.node(key);
  if (list == nullptr || list->items.size() != defaults.size()) {
    params.refuse(key, "must be two numbers");
  }
  for (std::size_t i = 0; i < defaults.size(); ++i) {
    const auto value = as_number(list->items[i]);
    if (!value || *value < 0 || *value >= 1) {
      params.refuse(key, "must be two numbers of at least 0 and below 1");
    }
    params.honour(key, i == 0 ? "beta1" : "beta2", *value);
  }
}

void check_adam(Section& params, bool adamw) {
  const auto decoupled = params.flag("adam_w_mode");
  if (!decoupled) return;
  const bool decays =
      params.number("weight_decay").value_or(params.is_auto("weight_decay") ? 1 : 0) > 0;
  if (!*decoupled && !adamw && decays) {
    params.refuse_for(
        {params.with("adam_w_mode", true)}, "adam_w_mode",
        "false adds weight decay to the gradient (L2), which Tessera does not do; use "
        "true, or \"weight_decay\": 0");
  }
  params.agree("adam_w_mode", adamw || *decoupled ? "the optimizer is AdamW"
                                                  : "without weight decay Adam is AdamW");
}

/// Translates the options of torch.optim.SGD, which has other defaults than ours.
void translate_sgd(Section& params) {
  attempt([&] { number(params, "momentum", "momentum", 0.0); });
  attempt([&] {
    const bool nesterov = params.flag("nesterov").value_or(false);
    params.set("nesterov", "nesterov", nesterov, "", "DeepSpeed's default is false");
    if (nesterov && params.number("momentum").value_or(0.0) == 0.0) {
      params.refuse("nesterov", "needs a momentum above 0");
    }
  });
}

void translate_adam(TypedSection& optimizer) {
  Section& params = optimizer.params;
  attempt([&] { check_adam(params, optimizer.type == "AdamW"); });
  attempt([&] { betas(params, {0.9, 0.999}); });
  attempt([&] { number(params, "eps", "epsilon", 1e-8); });
}

/// A key of another optimizer, with which DeepSpeed would not make this one.
void refuse_foreign(TypedSection& optimizer, std::initializer_list<const char*> keys) {
  for (const char* const key : keys) {
    if (!optimizer.params.has(key)) continue;
    attempt(
        [&] { optimizer.params.refuse(key, optimizer.type, " has no such parameter; remove it"); });
  }
}

void norm(Section& params, bool clips) {
  constexpr const char* kKey = "max_grad_norm";
  const auto value = params.number(kKey);
  if (!value) return;
  if (clips) return params.no_effect(kKey, "gradient_clipping decides", Told::kByRun);
  params.honour(kKey, "clip_norm", *value);
  params.differ(kKey, "DeepSpeed's newer versions read gradient_clipping alone", Told::kByExplain);
}

}  // namespace

void translate_optimizer(TypedSection& optimizer, const PeakRate& peak, bool clips) {
  Section& params = optimizer.params;
  if (optimizer.type == "SGD") {
    optimizer.section.honour("type", "optimizer", "sgd");
    refuse_foreign(optimizer, {"betas", "eps", "adam_w_mode"});
    translate_sgd(params);
  } else if (optimizer.type == "Lion") {
    optimizer.section.honour("type", "optimizer", "lion");
    refuse_foreign(optimizer, {"momentum", "nesterov", "eps", "adam_w_mode"});
    attempt([&] { betas(params, {0.9, 0.99}); });
  } else {
    optimizer.section.agree("type", "it is AdamW here, unless --optimizer names another");
    refuse_foreign(optimizer, {"momentum", "nesterov"});
    translate_adam(optimizer);
  }
  attempt([&] { learning_rate(params, peak); });
  attempt([&] { number(params, "weight_decay", "weight_decay", 0.0); });
  attempt([&] { norm(params, clips); });
  if (params.number("weight_decay").value_or(0) > 0) {
    params.differ("weight_decay", "DeepSpeed decays every parameter; here only matrices decay");
  }
}

}  // namespace tessera::compat
