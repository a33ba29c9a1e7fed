#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "support/action_uses.h"
#include "support/chain_run.h"

// No overlap of a plan is lost silently: step time and exposed communication of every preset equal
// closed forms, whether communication is cheaper than passes, as dear, or dearer. Depth 0 has forms
// of its own in simulate_test.cpp.
namespace tessera::test::overlap_test {
namespace {

/// Virtual seconds of every action of a kind; what is not named here takes none.
struct Costs {
  double forward, backward, unshard, reduce, gather_gradient, update, regather;

  double of(const Schedule& schedule, const Action& action) const {
    const Operation* operation = action.operation;
    if (operation == &operations::kForward) return forward;
    if (operation == &operations::kLoss) return forward + backward;
    if (operation == &operations::kBackward) return backward_pass(schedule.policy.recompute);
    if (unshards(schedule, action)) return unshard;
    if (gathers_gradient(schedule, action)) return gather_gradient;
    if (gathers_updated(schedule, action)) return regather;
    if (operation == &operations::kOptimizerStep) return update;
    const bool reduces =
        operation == &operations::kReduceScatter || operation == &operations::kAllReduce;
    return reduces ? reduce : 0.0;
  }
  /// The loss layer is never recomputed.
  double backward_pass(Recompute recompute) const {
    return backward + (recompute == Recompute::kFull ? forward : 0.0);
  }
};

struct Case {
  Strategy strategy;
  int layers;  ///< equal units; the last one's forward and backward are one action
  StepPolicy policy;
  int micro_steps;

  bool shards_parameters() const { return !strategy.placement.parameter.empty(); }
  bool regathers() const { return strategy.placement.optimizer != strategy.placement.parameter; }
  bool reduces_once() const { return strategy.placement.gradient.empty(); }
  /// Replicas hold the same optimizer shard, and exchange the gradients that they reduced by rank.
  bool gathers_gradients() const {
    return strategy.hybrid && !strategy.placement.optimizer.contains(Axis::kReplicate);
  }
};

/// Of four ranks; hybrids are two replicas of two.
TimelineSummary run(const Case& c, const Costs& costs,
                    const std::function<void(Schedule&)>& edit = nullptr) {
  const Model model = make_chain({.layers = c.layers});
  const ModelLayout layout = make_layout(model, {}, 4);
  Schedule schedule = plan(layout, plan_options({.ranks = 4,
                                                 .strategy = c.strategy.name,
                                                 .micro_steps = c.micro_steps,
                                                 .policy = c.policy}));
  if (edit) edit(schedule);
  const ExecutorOptions options{
      .cost = [&](const Schedule& s, const Action& action) { return costs.of(s, action); }};
  return summarize(
      simulate(schedule, layout, model, RandomVectors(DType::kFloat32), options).spans);
}

/// What the compute lane does, without a pause.
double compute_seconds(const Case& c, const Costs& t) {
  const int others = c.layers - 1;
  return c.micro_steps *
             (c.layers * t.forward + t.backward + others * t.backward_pass(c.policy.recompute)) +
         c.layers * t.update;
}

double step_seconds(const Case& c, const Costs& t) {
  const int others = c.layers - 1;
  const double backward = t.backward_pass(c.policy.recompute);
  // The first forward waits for its gather; each further layer is bound by its forward or by its
  // gather, which runs beside the forward before it.
  const double forward = c.shards_parameters() ? t.unshard + others * std::max(t.forward, t.unshard)
                                               : others * t.forward;
  const double loss = t.forward + t.backward;
  // Backward is bound by its passes, after which the last gradient is reduced, or by the reduction
  // lane, which works without a pause from the loss on.
  const double reduce = t.reduce + (c.gathers_gradients() ? t.gather_gradient : 0.0);
  const double reduced = std::max(others * backward + reduce, c.layers * reduce);
  // Updates follow each other, and then comes the last one's all-gather; or all-gathers do.
  const double regather = c.regathers() ? t.regather : 0.0;
  const double updated = std::max(c.layers * t.update + regather, t.update + c.layers * regather);
  // Micro-steps before the last are passes alone: their gathers and reductions are hidden.
  const double before =
      (c.micro_steps - 1) * (others * (t.forward + backward) + t.forward + t.backward);
  return before + forward + loss + reduced + updated;
}

/// Whether the form holds: gathers of backward run beside its passes if they take no longer. Over
/// several micro-steps also those of forward and reductions have to, where there are any but in the
/// last; a backlog would run into the next micro-step.
bool is_covered(const Case& c, const Costs& t) {
  const double backward = t.backward_pass(c.policy.recompute);
  const bool depth = c.policy.prefetch_forward > 0 && c.policy.prefetch_backward > 0;
  if (!depth && !c.reduces_once()) return false;
  if (c.shards_parameters() && t.unshard > t.backward) return false;
  if (c.micro_steps == 1 || c.reduces_once()) return true;
  return t.reduce <= backward && (!c.shards_parameters() || t.unshard <= t.forward);
}

/// Unshards and reductions, cheaper than passes, as dear and dearer.
std::vector<Costs> ratios() {
  std::vector<Costs> all;
  for (const double unshard : {0.5, 1.0, 1.5, 2.0}) {
    for (const double reduce : {0.25, 1.0, 1.5, 3.0, 7.0}) {
      for (const double regather : {0.5, 3.0}) {
        all.push_back({.forward = 1.0,
                       .backward = 2.0,
                       .unshard = unshard,
                       .reduce = reduce,
                       .gather_gradient = reduce / 4,
                       .update = 1.0,
                       .regather = regather});
      }
    }
  }
  return all;
}

TEST(Overlap, EveryPresetTakesWhatItsFormSays) {
  int covered = 0;
  for (const Strategy& strategy : strategies()) {
    for (const int layers : {2, 3, 6, 9}) {
      for (const auto& [forward, backward] :
           {std::pair{0, 0}, {1, 1}, {2, 2}, {3, 3}, {1, 3}, {3, 1}}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
          for (const int micro_steps : {1, 2}) {
            const Case c{strategy, layers, {forward, backward, recompute}, micro_steps};
            for (const Costs& costs : ratios()) {
              if (!is_covered(c, costs)) continue;
              ++covered;
              const TimelineSummary t = run(c, costs);
              const double expected = step_seconds(c, costs);
              ASSERT_DOUBLE_EQ(t.step_seconds, expected)
                  << strategy.name << ", " << layers << " layers, depths " << forward << ' '
                  << backward << ", recompute " << to_string(recompute) << ", " << micro_steps
                  << " micro-steps; unshard " << costs.unshard << ", reduce " << costs.reduce;
              // Whenever the compute lane idles, communication is what it waits for.
              ASSERT_DOUBLE_EQ(t.exposed_seconds, expected - compute_seconds(c, costs));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(covered, 10000);
}

/// Lets every pass wait for what a lane has been given to do so far.
void serialize(Schedule& schedule, Lane lane) {
  int last = -1;
  for (int i = 0; i < static_cast<int>(schedule.actions.size()); ++i) {
    Action& action = schedule.actions[static_cast<std::size_t>(i)];
    if (action.lane == lane) last = i;
    if (action.operation->is_pass && last >= 0) action.waits.push_back(last);
  }
}

TEST(Overlap, OfPassesWithGathersOrReductionsIsMissedIfItIsGone) {
  const Costs costs{.forward = 1.0,
                    .backward = 2.0,
                    .unshard = 1.0,
                    .reduce = 1.5,
                    .gather_gradient = 0.5,
                    .update = 1.0,
                    .regather = 0.5};
  for (const Strategy& strategy : strategies()) {
    for (const Lane lane : {Lane::kGather, Lane::kReduce}) {
      const Case c{strategy, 6, {}, 1};
      if (lane == Lane::kGather && !c.shards_parameters()) continue;  // gathers follow updates
      const TimelineSummary t = run(c, costs, [&](Schedule& s) { serialize(s, lane); });
      EXPECT_GT(t.step_seconds, step_seconds(c, costs) + 0.5) << strategy.name;
      EXPECT_GT(t.exposed_seconds, step_seconds(c, costs) - compute_seconds(c, costs) + 0.5);
    }
  }
}

}  // namespace
}  // namespace tessera::test::overlap_test
