#include <algorithm>

#include "foreign/deepspeed_keys.h"
#include "foreign/deepspeed_parts.h"

namespace tessera::foreign {
namespace {

class Scheduler {
 public:
  Scheduler(Section& scheduler, Section& params, Section* optimizer, double rate,
            const KnownSettings& known)
      : scheduler_(scheduler), params_(params), optimizer_(optimizer), known_(known), rate_(rate) {}

  void translate(const std::string& type) {
    if (type == "WarmupLR") {
      warmup_lr();
    } else if (type == "WarmupDecayLR") {
      warmup_decay_lr();
    } else {
      warmup_cosine_lr();
    }
  }

 private:
  void warmup_lr() {
    reject("WarmupLR", {"total_num_steps", "warmup_min_ratio", "cos_min_ratio"});
    scheduler_.honour("type", "learning_rate_schedule", "constant");
    maximum(rate_);
    warmup(known_.integer("steps"));
    start("warmup_min_lr");
  }

  void warmup_decay_lr() {
    reject("WarmupDecayLR", {"warmup_min_ratio", "cos_min_ratio"});
    scheduler_.honour("type", "learning_rate_schedule", "linear");
    scheduler_.honour("type", "minimum_learning_rate", 0.0);
    maximum(kDefaultLearningRate);
    warmup(total());
    start("warmup_min_lr");
  }

  void warmup_cosine_lr() {
    const char* ratio = "cos_min_ratio";
    reject("WarmupCosineLR", {"warmup_min_lr", "warmup_max_lr"});
    scheduler_.honour("type", "learning_rate_schedule", "cosine");
    scheduler_.differ("type", "DeepSpeed is one step ahead on its cosine", true);
    const double floor = params_.number(ratio).value_or(1e-4);
    if (floor < 0 || floor > 1) params_.refuse(ratio, "is ", floor, "; it must be from 0 to 1");
    const std::string note = concat(floor, " x the learning rate");
    if (params_.has(ratio)) {
      params_.honour(ratio, "minimum_learning_rate", floor * rate_, note);
    } else {
      params_.derive(ratio, "minimum_learning_rate", floor * rate_, "DeepSpeed's default: " + note);
    }
    warmup(total());
    start("warmup_min_ratio");
  }

  void reject(const char* type, const std::vector<const char*>& keys) const {
    for (const char* key : keys) {
      if (params_.has(key)) params_.refuse(key, type, " has no such parameter; remove it");
    }
  }

  /// The peak: the scheduler sets it, whatever the optimizer's lr is.
  void maximum(double fallback) {
    const char* key = "warmup_max_lr";
    if (const auto rate = params_.number(key)) {
      if (*rate < 0) params_.refuse(key, "is ", *rate, "; it must be at least 0");
      overrule(*rate);
      params_.honour(key, "learning_rate", *rate);
    } else if (params_.has(key)) {
      params_.agree(key, "\"auto\": is the optimizer's lr");
    } else {
      overrule(fallback);
      params_.derive(key, "learning_rate", fallback, concat("DeepSpeed's default is ", fallback));
    }
  }

  void overrule(double rate) {
    const auto lr = optimizer_ == nullptr ? std::nullopt : optimizer_->number("lr");
    if (lr && *lr != rate) {
      optimizer_->no_effect("lr", concat("the scheduler's warmup_max_lr decides: ", rate), true);
    }
  }

  /// Where the warm-up begins: ours begins one step above 0.
  void start(const char* key) {
    if (!params_.has(key)) return;
    const double from = params_.number(key).value_or(0.0);
    if (from < 0) params_.refuse(key, "is ", from, "; it must be at least 0");
    if (from == 0.0) {
      params_.agree(key, "the warm-up begins near 0");
    } else {
      params_.no_effect(key, concat("the warm-up begins near 0 here, at ", from, " there"), true);
    }
  }

  /// Steps of the whole schedule.
  std::int64_t total() {
    const char* key = "total_num_steps";
    if (!params_.has(key)) {
      params_.refuse(key, "is missing, which DeepSpeed refuses; set it, or \"auto\" for --steps");
    }
    if (params_.is_auto(key)) {
      params_.agree(key, "\"auto\": is --steps");
      return known_.integer("steps");
    }
    const std::int64_t steps = params_.integer(key).value_or(0);
    if (steps < 1) params_.refuse(key, "is ", steps, "; it must be at least 1");
    const std::int64_t given = known_.override_integer("steps").value_or(steps);
    params_.honour(key, "steps", steps);
    if (given != steps) {
      params_.differ(key, concat("DeepSpeed's rate ends after ", steps,
                                 " steps; here with the run, "
                                 "after ",
                                 given));
    }
    return given;
  }

  void warmup(std::int64_t steps) {
    const char* key = "warmup_num_steps";
    if (params_.is_auto(key)) {
      params_.agree(key, "\"auto\": is --warmup-steps");
    } else {
      const std::int64_t count = params_.integer(key).value_or(1000);
      if (count < 0) params_.refuse(key, "is ", count, "; it must be at least 0");
      if (!known_.override_integer("warmup_steps") && count > steps) {
        params_.refuse(key, count, " warm-up steps",
                       params_.has(key) ? "" : ", DeepSpeed's default,", " do not fit into ", steps,
                       " steps; change it, or give --steps");
      }
      if (params_.has(key)) {
        params_.honour(key, "warmup_steps", count);
      } else {
        params_.derive(key, "warmup_steps", count, "DeepSpeed's default is 1000");
      }
    }
    shape();
  }

  void shape() {
    const char* key = "warmup_type";
    constexpr const char* kLine =
        "the warm-up is a straight line here; DeepSpeed's rises with the logarithm of the step";
    if (params_.text(key) == "linear") {
      params_.agree(key, "the warm-up is a straight line");
      params_.differ(key, "DeepSpeed's first step has rate 0; here each step is one further", true);
    } else if (params_.has(key)) {
      params_.no_effect(key, kLine, true);
    } else {
      params_.absent(key, kLine, true);
    }
  }

  Section& scheduler_;
  Section& params_;
  Section* optimizer_;
  const KnownSettings& known_;
  double rate_;
};

}  // namespace

const Node& params_of(const Section& section) {
  static const Node kEmpty{.kind = Node::Kind::kMap};
  const Node* node = section.node("params");
  return node != nullptr ? *node : kEmpty;
}

std::string read_type(const Section& section, const std::vector<std::string>& ours,
                      const std::vector<std::string>& others) {
  const auto type = section.text("type");
  if (!type) section.refuse("type", "is missing; use ", joined(ours));
  const auto same = [&](const std::string& name) { return lower(name) == lower(*type); };
  const auto found = std::ranges::find_if(ours, same);
  if (found != ours.end()) return *found;
  if (std::ranges::any_of(others, same)) {
    section.refuse("type", "'", *type, "' is not supported; use ", joined(ours));
  }
  section.refuse("type", unknown_value(*type, ours));
}

void translate_scheduler(Section& top, Section* optimizer, double rate, const std::string& file,
                         const KnownSettings& known, ConfigTranslation& translation) {
  const Node* node = top.node("scheduler");
  if (top.has("scheduler")) top.agree("scheduler", node != nullptr ? "see its keys" : "is empty");
  if (node == nullptr) return;
  Section scheduler(translation, file, *node, scheduler_keys(), {.name = "scheduler"});
  const std::string type = read_type(scheduler, {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"},
                                     {"LRRangeTest", "OneCycle"});
  if (scheduler.has("params")) scheduler.agree("params", "see its keys");
  Section params(translation, file, params_of(scheduler), scheduler_params_keys(),
                 {.name = "scheduler.params"});
  Scheduler(scheduler, params, optimizer, rate, known).translate(type);
}

}  // namespace tessera::foreign
