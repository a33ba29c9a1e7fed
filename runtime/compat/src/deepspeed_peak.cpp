#include <algorithm>

#include "deepspeed.h"
#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

constexpr const char* kLr = "lr";
constexpr const char* kMaximum = "warmup_max_lr";

/// The value of "type", which must be one of `ours`; `others` are DeepSpeed's, for a good message.
std::string read_type(Section& section, const std::vector<std::string>& ours,
                      const std::vector<std::string>& others) {
  const auto type = section.text("type");
  // Another optimizer is AdamW here; a schedule of another form is left out.
  const bool optimizer = ours.front() == "AdamW";
  const std::vector<ConfigChange> change{optimizer ? section.with("type", ours.front())
                                                   : ConfigChange{.key = "scheduler"}};
  if (!type) section.refuse_for(change, "type", "is missing; use ", joined(ours));
  const auto same = [&](const std::string& name) { return lowercase(name) == lowercase(*type); };
  const auto found = std::ranges::find_if(ours, same);
  if (found != ours.end()) return *found;
  if (std::ranges::any_of(others, same)) {
    section.refuse_for(change, "type", "'", *type, "' is not supported; use ", joined(ours));
  }
  const std::string nearest = near_word(*type, ours);
  section.refuse_for(nearest.empty() ? change : std::vector{section.with("type", nearest)}, "type",
                     unknown_value(*type, nearest, ours));
}

/// Opens the section `name`, whose type must be one of `ours`.
std::optional<TypedSection> open(Section& top, const char* name,
                                 const std::vector<std::string>& ours,
                                 const std::vector<std::string>& others) {
  if (top.open(name) == nullptr) return std::nullopt;
  Section section = top.below(name);
  std::string type;
  attempt([&] { type = read_type(section, ours, others); });
  if (type.empty()) return std::nullopt;
  if (section.has("params")) section.agree("params", "see its keys");
  const Section params = section.below("params");
  return TypedSection{.section = section, .type = std::move(type), .params = params};
}

/// The peak that a scheduler sets, whatever the optimizer's lr is; nothing if it takes that.
std::optional<double> scheduled_peak(TypedSection* scheduler) {
  if (scheduler == nullptr) return std::nullopt;
  const auto rate = scheduler->params.number(kMaximum);
  const bool has_default = scheduler->type == "WarmupDecayLR" && !scheduler->params.has(kMaximum);
  return has_default ? std::optional(kDefaultLearningRate) : rate;
}

}  // namespace

std::optional<TypedSection> open_optimizer(Section& top) {
  return open(top, "optimizer", {"AdamW", "Adam", "SGD", "Lion"},
              {"Adagrad", "Lamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam", "Muon", "MuAdam",
               "MuAdamW", "MuSGD", "Adafactor"});
}

std::optional<TypedSection> open_scheduler(Section& top) {
  return open(top, "scheduler", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"},
              {"LRRangeTest", "OneCycle"});
}

bool has_norm_in_optimizer(const Section& top) {
  const Node* const optimizer = top.node("optimizer");
  const Node::Member* const params = optimizer == nullptr ? nullptr : optimizer->find("params");
  const Node::Member* const norm =
      params == nullptr ? nullptr : params->value.find("max_grad_norm");
  return norm != nullptr && !norm->value.is_null();
}

PeakRate decide_peak(TypedSection* optimizer, TypedSection* scheduler, const KnownSettings& known) {
  PeakRate peak;
  const auto scheduled = scheduled_peak(scheduler);
  const auto lr = optimizer == nullptr ? std::nullopt : optimizer->params.number(kLr);
  const bool has_default = optimizer != nullptr && !optimizer->params.has(kLr);
  peak.by_scheduler = scheduled.has_value();
  peak.in_file = scheduled.value_or(
      lr.value_or(has_default ? kDefaultLearningRate : known.number("learning_rate")));
  peak.value = known.override_number("learning_rate").value_or(peak.in_file);
  return peak;
}

}  // namespace tessera::compat
