#include "tessera/sharding/learning_rate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Kind = LearningRateSchedule::Kind;
constexpr std::array kKinds{Kind::kConstant, Kind::kLinear, Kind::kCosine, Kind::kWsd};

// How much of [begin, end] has passed at `step`, in [0, 1].
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
  if (step >= end) return 1.0;
  if (step <= begin) return 0.0;
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

}  // namespace

LearningRateSchedule resolved(LearningRateSchedule s) {
  constexpr std::int64_t kMostWarmup = 100;
  if (!s.minimum) s.minimum = s.peak / 10;
  if (!s.warmup_steps) s.warmup_steps = std::min(kMostWarmup, s.total_steps / 10);
  if (!s.decay_steps) {
    s.decay_steps =
        std::min(s.total_steps / 5, s.total_steps - std::min(s.total_steps, *s.warmup_steps));
  }
  return s;
}

double LearningRateSchedule::at(std::int64_t step) const {
  const LearningRateSchedule all = resolved(*this);
  const double lowest = *all.minimum;
  const std::int64_t warmup = *all.warmup_steps;
  const std::int64_t decay = *all.decay_steps;
  if (step < warmup) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  switch (kind) {
    case Kind::kConstant:
      return peak;
    case Kind::kLinear: {
      const double t = progress(step, warmup, total_steps);
      return peak * (1.0 - t) + lowest * t;
    }
    case Kind::kCosine: {
      const double t = progress(step, warmup, total_steps);
      return lowest + (peak - lowest) * 0.5 * (1.0 + std::cos(std::numbers::pi * t));
    }
    case Kind::kWsd: {
      if (decay == 0) return peak;
      const double t = progress(step, total_steps - decay, total_steps);
      return peak * (1.0 - t) + lowest * t;
    }
  }
  fail(ErrorCode::kInternal, "unknown kind of learning rate ", static_cast<int>(kind));
}

std::string_view to_string(LearningRateSchedule::Kind kind) {
  switch (kind) {
    case Kind::kConstant:
      return "constant";
    case Kind::kLinear:
      return "linear";
    case Kind::kCosine:
      return "cosine";
    case Kind::kWsd:
      return "wsd";
  }
  return "unknown";
}

LearningRateSchedule::Kind parse_learning_rate_kind(std::string_view text) {
  const auto* found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](Kind k) { return to_string(k) == text; });
  require(found != kKinds.end(), ErrorCode::kConfig, "unknown learning rate schedule '", text,
          "'; choose constant, linear, cosine or wsd");
  return *found;
}

void check(const LearningRateSchedule& schedule) {
  const LearningRateSchedule s = resolved(schedule);
  require(std::isfinite(s.peak) && s.peak >= 0.0, ErrorCode::kConfig, "a peak learning rate of ",
          s.peak, " is not a number of at least 0");
  require(std::isfinite(*s.minimum) && *s.minimum >= 0.0, ErrorCode::kConfig,
          "a minimum learning rate of ", *s.minimum, " is not a number of at least 0");
  require(*s.minimum <= s.peak, ErrorCode::kConfig, "the minimum learning rate ", *s.minimum,
          " is above the peak ", s.peak);
  require(s.total_steps >= 1, ErrorCode::kConfig, "a learning rate over ", s.total_steps,
          " steps needs at least one");
  require(*s.warmup_steps >= 0 && *s.warmup_steps <= s.total_steps, ErrorCode::kConfig,
          *s.warmup_steps, " warm-up steps do not fit into ", s.total_steps,
          " steps; warm up for fewer steps, or train for more");
  require(*s.decay_steps >= 0, ErrorCode::kConfig, *s.decay_steps, " decay steps are negative");
  require(s.kind != Kind::kWsd || *s.decay_steps <= s.total_steps - *s.warmup_steps,
          ErrorCode::kConfig, *s.decay_steps, " decay steps do not fit between ", *s.warmup_steps,
          " warm-up steps and step ", s.total_steps, "; decay over fewer steps, or train for more");
}

}  // namespace tessera
