#include <algorithm>
#include <limits>

#include "setting_rows.h"
#include "tessera/core/error.h"
#include "tessera/core/named_text.h"
#include "tessera/kernels/optimizer.h"

namespace tessera {

// The values of the members' types; see bound_setting.h.
constexpr auto choices_of(LearningRateSchedule::Kind) {
  using enum LearningRateSchedule::Kind;
  return std::array{kConstant, kLinear, kCosine, kWsd};
}
constexpr auto choices_of(LossScaleDialect) {
  using enum LossScaleDialect;
  return std::array{kTorch, kDeepSpeed, kMegatron};
}
static void parse_into(std::string_view text, LossScaleChoice& choice) {
  choice = parse_loss_scale(text);
}

namespace {

using O = TrainerOptions;
using Opt = OptimizerOptions;
using Rate = LearningRateSchedule;
using nlohmann::json;
using Fp32 = std::numeric_limits<float>;

void check_loss_scale(const json& value) { parse_loss_scale(value.get<std::string>()); }

// Numbers that are used in fp32 must not become 0, 1 or infinite when they are converted.
void check_fp32(const json& value) {
  require(value.get<double>() <= Fp32::max(), ErrorCode::kConfig, value.dump(),
          " is out of range of fp32; it must be at most about 3.4e38");
}
void check_positive(const json& value) {
  require(value.get<double>() > 0.0, ErrorCode::kConfig, value.dump(),
          " is out of range; it must be above 0");
  require(value.get<double>() >= Fp32::min() && value.get<double>() <= Fp32::max(),
          ErrorCode::kConfig, value.dump(),
          " is out of range of fp32; it must be about 1.2e-38 to 3.4e38");
}
void check_below_one(const json& value) {
  const auto number = value.get<double>();
  require(number < 1.0, ErrorCode::kConfig, value.dump(),
          " is out of range; it must be at least 0 and below 1");
  require(static_cast<float>(number) < 1.0F, ErrorCode::kConfig, value.dump(),
          " is 1 in fp32; it must be at most about 0.99999994");
}

/// "adamw, adamw8bit: 0.9; lion: 0.95" for the default of each optimizer: equal ones are told once.
std::string defaults_in_words(const std::vector<NamedText>& defaults) {
  std::vector<NamedText> told;  // names in the place of a name
  for (const auto& [optimizer, value] : defaults) {
    const auto known = std::ranges::find(told, value, &NamedText::value);
    if (known == told.end()) {
      told.push_back({optimizer, value});
    } else {
      known->name += ", " + optimizer;
    }
  }
  std::string words;
  for (const auto& [names, value] : told) {
    words += concat(words.empty() ? "" : "; ", names, ": ", value);
  }
  return words;
}

/// Rows for the hyperparameters of all optimizers, each with the values that it has where.
std::vector<Row> hyperparameter_rows() {
  std::vector<Row> rows;
  std::vector<std::vector<NamedText>> defaults;  // of each row
  for (const Optimizer& optimizer : optimizers()) {
    for (const Hyperparameter& h : optimizer.hyperparameters) {
      const std::string name(h.name);
      const auto known = std::ranges::find(rows, name, [](const Row& r) { return r.setting.name; });
      const std::string value =
          h.is_flag ? (h.value != 0.0 ? "true" : "false") : json(h.value).dump();
      if (known != rows.end()) {
        defaults[static_cast<std::size_t>(known - rows.begin())].push_back(
            {std::string(optimizer.name), value});
        continue;
      }
      defaults.push_back({{std::string(optimizer.name), value}});
      rows.push_back(
          {{.name = name,
            .type = h.is_flag ? SettingType::kFlag : SettingType::kNumber,
            .help = std::string(h.meaning),
            .minimum = h.is_flag ? -std::numeric_limits<double>::infinity() : h.minimum,
            .check = h.is_flag ? nullptr
                     : h.below == 1.0
                         ? check_below_one
                         : std::function<void(const json&)>(
                               h.minimum > 0.0 || name == "epsilon" ? check_positive : check_fp32)},
           [name, flag = h.is_flag](const O& o) {
             const auto given = o.optimizer.hyperparameters.find(name);
             if (given == o.optimizer.hyperparameters.end()) return json();
             return flag ? json(given->second != 0.0) : json(given->second);
           },
           [name](O& o, const json& given) {
             o.optimizer.hyperparameters[name] =
                 given.is_boolean() ? (given.get<bool>() ? 1.0 : 0.0) : given.get<double>();
           }});
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].setting.help += concat(" [", defaults_in_words(defaults[i]), "]");
  }
  return rows;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Optimizer& optimizer : optimizers()) names.emplace_back(optimizer.name);
  return names;
}

std::vector<std::pair<std::string, std::string>> other_names_of_optimizers() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Optimizer& optimizer : optimizers()) {
    for (const std::string_view name : optimizer.other_names)
      all.emplace_back(name, optimizer.name);
  }
  return all;
}

std::string weight_decay_help() {
  std::vector<NamedText> defaults;
  for (const Optimizer& optimizer : optimizers()) {
    defaults.push_back({std::string(optimizer.name), json(optimizer.weight_decay).dump()});
  }
  return concat("weight decay of matrices [", defaults_in_words(defaults), "]");
}

/// Absent where there is none.
Row groups_row() {
  return {
      {.name = "learning_rate_groups",
       .help = "other rates for parameters by name: pattern=factor, or pattern=factor:decay with "
               "a weight decay of their own, several with commas between them, of which the "
               "first that fits counts; in a pattern * stands for any characters, as in "
               "'h.*.attn.*=0.1'",
       .check = [](const json& value) { parse_groups(value.get<std::string>()); }},
      [](const O& o) {
        return o.optimizer.groups.empty() ? json() : json(to_string(o.optimizer.groups));
      },
      [](O& o, const json& value) { o.optimizer.groups = parse_groups(value.get<std::string>()); }};
}

}  // namespace

std::vector<Row> loss_scale_rows() {
  using L = LossScaleOptions;
  return in_group(
      "Loss scaling",
      {
          bound<&O::loss_scale, &L::choice>(
              "loss_scale",
              "none, dynamic, or a number: what the loss is multiplied by for backward, so that "
              "small gradients survive 16 bits; a step whose gradient overflows is skipped "
              "[dynamic with fp16, else none]",
              {.check = check_loss_scale}),
          bound<&O::loss_scale, &L::dialect>("loss_scale_dialect",
                                             "whose rules raise and lower a dynamic loss scale"),
          bound<&O::loss_scale, &L::initial>(
              "loss_scale_initial",
              "the first dynamic loss scale [torch, deepspeed: 65536; megatron: 4294967296]",
              {.minimum = 0, .check = check_positive}),
          bound<&O::loss_scale, &L::growth_factor>("loss_scale_growth_factor",
                                                   "what raises the scale [torch, megatron: 2]",
                                                   {.minimum = 1, .check = check_fp32}),
          bound<&O::loss_scale, &L::backoff_factor>("loss_scale_backoff_factor",
                                                    "what lowers the scale [torch, megatron: 0.5]",
                                                    {.minimum = 0, .check = check_below_one}),
          bound<&O::loss_scale, &L::window>(
              "loss_scale_window",
              "steps without overflow before the scale is raised [torch: 2000; deepspeed, "
              "megatron: 1000]",
              {.minimum = 1}),
          bound<&O::loss_scale, &L::minimum>(
              "loss_scale_minimum",
              "the lowest scale; there deepspeed ends the run, and megatron goes on [deepspeed, "
              "megatron: 1]",
              {.minimum = 0, .check = check_positive}),
          bound<&O::loss_scale, &L::hysteresis>(
              "loss_scale_hysteresis",
              "overflows before the scale is lowered [deepspeed, megatron: 2]", {.minimum = 1}),
          bound<&O::loss_scale, &L::consecutive_hysteresis>(
              "loss_scale_consecutive_hysteresis",
              "every step without overflow begins to count overflows anew [deepspeed: false]"),
      });
}

std::vector<Row> optimizer_rows() {
  std::vector<Row> rows({
      bound<&O::optimizer, &Opt::name>(
          "optimizer",
          "the optimizer; adamw8bit keeps its moments in 8 bits, adafactor one for each row and "
          "column of a matrix",
          {.choices = optimizer_names(), .other_spellings = other_names_of_optimizers()}),
      bound<&O::learning_rate, &Rate::peak>("learning_rate", "peak learning rate",
                                            {.minimum = 0, .check = check_fp32}),
      bound<&O::learning_rate, &Rate::minimum>("minimum_learning_rate",
                                               "where the decay ends [a tenth of the peak]",
                                               {.minimum = 0, .check = check_fp32}),
      bound<&O::learning_rate, &Rate::kind>(
          "learning_rate_schedule",
          "shape after warm-up; wsd is stable, then decays over the last "
          "`learning_rate.decay_steps`"),
      bound<&O::learning_rate, &Rate::warmup_steps>(
          "warmup_steps", "steps of linear warm-up [a tenth of the steps, at most 100]",
          {.minimum = 0}),
      bound<&O::learning_rate, &Rate::decay_steps>(
          "decay_steps", "steps of wsd's decay [a fifth of the steps]", {.minimum = 0}),
      bound<&O::optimizer, &Opt::weight_decay>("weight_decay", weight_decay_help(),
                                               {.minimum = 0, .check = check_fp32}),
      groups_row(),
  });
  for (Row& row : hyperparameter_rows()) rows.push_back(std::move(row));
  for (Row& row : std::vector<Row>{
           bound<&O::optimizer, &Opt::clip_norm>(
               "clip_norm", "gradients are scaled down to this global norm; 0: never",
               {.minimum = 0}),
           bound<&O::optimizer, &Opt::stochastic_rounding>(
               "stochastic_rounding",
               "bf16 parameters are rounded up or down at random, so that "
               "small updates move them too; the same bits for every strategy"),
       }) {
    rows.push_back(std::move(row));
  }
  return in_group("Optimizer", std::move(rows));
}

}  // namespace tessera
