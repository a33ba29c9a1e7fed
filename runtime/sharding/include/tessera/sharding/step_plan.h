#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/sharding/gradient_sums.h"
#include "tessera/sharding/layout.h"
#include "tessera/sharding/plan_options.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/validate.h"

namespace tessera {

/// One step of all ranks: a schedule for each pipeline rank, which the ranks that differ along
/// other axes share.
struct StepPlan {
  std::vector<Schedule> ranks;

  const Mesh& mesh() const { return ranks.front().mesh; }
  bool operator==(const StepPlan&) const = default;
};

/// plan() for each pipeline rank of the options' mesh, whatever rank they name.
StepPlan plan_step(const ModelLayout& layout, const PlanOptions& options,
                   std::string_view last = "");

/// with_snapshot() for each pipeline rank.
StepPlan with_snapshot(const StepPlan& step, bool rounded_at_random);

/// The schedules' texts one after the other, each below a line "pipeline-rank N"; of one rank the
/// schedule's alone. `parse_step_plan` is its exact inverse, and throws Error{kConfig} that names
/// the pipeline rank and the line of the whole text.
std::string to_string(const StepPlan& step);
StepPlan parse_step_plan(std::string_view text);

/// Validates each schedule, and that pipeline ranks fit together: they describe one step of one
/// model; the k-th message that a rank sends to another on a communicator is the k-th that the
/// other receives, of the same content and size (Rule::kMessages); and no circle of lanes, waits,
/// messages and sums over all ranks keeps two consecutive steps from going on, even where each
/// action blocks its rank until it is over (Rule::kProgress). Violations name the pipeline rank.
std::vector<Violation> validate(const StepPlan& step);

/// Throws Error{kInternal} with every violation if there are any.
void require_valid(const StepPlan& step);

/// The expressions of all pipeline ranks; see gradient_sums() of a schedule.
std::vector<GradientSum> gradient_sums(const StepPlan& step);

}  // namespace tessera
