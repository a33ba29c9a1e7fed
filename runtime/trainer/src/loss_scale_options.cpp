#include "tessera/trainer/loss_scale_options.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Kind = LossScaleChoice::Kind;

/// The options of a dialect where nothing else is said; it lacks those that are absent.
LossScaleOptions defaults_of(LossScaleDialect dialect) {
  constexpr double k16 = 65536.0, k32 = 4294967296.0;
  switch (dialect) {
    case LossScaleDialect::kTorch:
      return {.initial = k16, .growth_factor = 2.0, .backoff_factor = 0.5, .window = 2000};
    case LossScaleDialect::kDeepSpeed:
      return {.initial = k16,
              .window = 1000,
              .minimum = 1.0,
              .hysteresis = 2,
              .consecutive_hysteresis = false};
    case LossScaleDialect::kMegatron:
      return {.initial = k32,
              .growth_factor = 2.0,
              .backoff_factor = 0.5,
              .window = 1000,
              .minimum = 1.0,
              .hysteresis = 2};
  }
  fail(ErrorCode::kInternal, "unknown loss scale dialect");
}

/// One that has a default may be given; another may not.
template <typename T>
void fill_in(const char* name, LossScaleDialect dialect, const std::optional<T>& usual,
             std::optional<T>& given) {
  require(usual || !given, ErrorCode::kConfig, name, " is given, and the loss scale dialect ",
          to_string(dialect), " has none; leave it out, or choose another `loss_scale.dialect`");
  if (!given) given = usual;
}

template <typename T>
void require_absent(const char* name, const LossScaleChoice& choice,
                    const std::optional<T>& given) {
  require(!given, ErrorCode::kConfig, name, " is given, and `loss_scale.choice` is ",
          to_string(choice),
          ": only dynamic has it; leave it out, or give `loss_scale.choice` dynamic");
}

void check_numbers(const LossScaleOptions& o) {
  const auto is_scale = [](double value) {
    return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
  };
  require(is_scale(*o.initial), ErrorCode::kConfig, "loss_scale_initial is ", *o.initial,
          "; it must be about 1.2e-38 to 3.4e38");
  require(o.growth_factor.value_or(2.0) > 1.0 && std::isfinite(o.growth_factor.value_or(2.0)),
          ErrorCode::kConfig, "loss_scale_growth_factor is ", *o.growth_factor,
          "; it must be above 1");
  const double backoff = o.backoff_factor.value_or(0.5);
  require(backoff > 0.0 && backoff < 1.0, ErrorCode::kConfig, "loss_scale_backoff_factor is ",
          backoff, "; it must be above 0 and below 1");
  require(!o.minimum || (is_scale(*o.minimum) && *o.minimum <= *o.initial), ErrorCode::kConfig,
          "loss_scale_minimum is ", o.minimum.value_or(0.0), " and the initial scale ", *o.initial,
          "; the minimum must be above 0, and at most that");
}

}  // namespace

std::string_view to_string(LossScaleDialect dialect) {
  switch (dialect) {
    case LossScaleDialect::kTorch:
      return "torch";
    case LossScaleDialect::kDeepSpeed:
      return "deepspeed";
    case LossScaleDialect::kMegatron:
      return "megatron";
  }
  return "unknown";
}

std::string to_string(const LossScaleChoice& choice) {
  if (choice.kind == Kind::kNone) return "none";
  return choice.kind == Kind::kDynamic ? std::string("dynamic") : concat(choice.scale);
}

LossScaleChoice parse_loss_scale(std::string_view text) {
  if (text == "none") return {};
  if (text == "dynamic") return {.kind = Kind::kDynamic};
  LossScaleChoice choice{.kind = Kind::kFixed, .scale = 0.0};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, choice.scale);
  require(read.ec == std::errc() && read.ptr == end &&
              choice.scale >= std::numeric_limits<float>::min() &&
              choice.scale <= std::numeric_limits<float>::max(),
          ErrorCode::kConfig, "'", text,
          "' is no loss scale; give none, dynamic, or a number of about 1.2e-38 to 3.4e38, such as "
          "1024");
  return choice;
}

LossScaleOptions resolved(LossScaleOptions o, DType precision) {
  if (!o.choice) {
    const bool is_half = to_string(precision) == "fp16";
    o.choice = LossScaleChoice{.kind = is_half ? Kind::kDynamic : Kind::kNone};
  }
  const auto for_each = [&](const auto& visit) {
    using O = LossScaleOptions;
    visit("loss_scale_initial", &O::initial);
    visit("loss_scale_growth_factor", &O::growth_factor);
    visit("loss_scale_backoff_factor", &O::backoff_factor);
    visit("loss_scale_window", &O::window);
    visit("loss_scale_minimum", &O::minimum);
    visit("loss_scale_hysteresis", &O::hysteresis);
    visit("loss_scale_consecutive_hysteresis", &O::consecutive_hysteresis);
  };
  if (o.choice->kind != Kind::kDynamic) {
    for_each([&](const char* name, auto member) { require_absent(name, *o.choice, o.*member); });
    return o;
  }
  const LossScaleOptions usual = defaults_of(o.dialect);
  for_each(
      [&](const char* name, auto member) { fill_in(name, o.dialect, usual.*member, o.*member); });
  check_numbers(o);
  return o;
}

std::optional<LossScaling> loss_scaling(const LossScaleOptions& o) {
  if (!o.choice || o.choice->kind == Kind::kNone) return std::nullopt;
  if (o.choice->kind == Kind::kFixed) {
    return LossScaling{.rule = {.dynamic = false},
                       .initial_scale = static_cast<float>(o.choice->scale)};
  }
  return LossScaling{.rule = {.dialect = o.dialect,
                              .growth_factor = o.growth_factor.value_or(2.0),
                              .backoff_factor = o.backoff_factor.value_or(0.5),
                              .window = *o.window,
                              .minimum = static_cast<float>(o.minimum.value_or(0.0)),
                              .hysteresis = o.hysteresis.value_or(1),
                              .refills_hysteresis = o.consecutive_hysteresis.value_or(false)},
                     .initial_scale = static_cast<float>(*o.initial)};
}

}  // namespace tessera
