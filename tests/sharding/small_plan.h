#pragma once

#include <algorithm>

#include "support/small_layout.h"
#include "support/small_run.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/planner.h"

namespace tessera::test {

/// The schedule of a small run, which does not run.
inline Schedule plan_of(const SmallRun& run) {
  GptConfig config = small_gpt(0.0F, run.family);
  config.adapter = run.adapter;
  config.layers = run.layers;
  const Model model = make_gpt(config);
  return plan(layout_of(run, model), plan_options(run));
}

/// The actions of a schedule that are this operation.
inline int count(const Schedule& schedule, const Operation& operation) {
  return static_cast<int>(std::ranges::count(schedule.actions, &operation, &Action::operation));
}

}  // namespace tessera::test
