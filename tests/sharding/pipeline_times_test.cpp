#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "support/pipeline_chain.h"
#include "support/virtual_pipeline.h"

// How long a step of a pipeline takes, and what its ranks hold meanwhile.
namespace tessera::test::pipeline_times_test {
namespace {

constexpr auto k1F1B = PipelineOrder::kOneForwardOneBackward;

double makespan(const VirtualPipeline& pipeline) { return simulate(pipeline).makespan(); }

/// The makespan worked out from the order of passes alone: a pass begins when the one before it on
/// its rank is over and what it needs of another stage has been there for a message's time. There
/// is room for any number of messages, each on its way by itself.
double expected_makespan(const VirtualPipeline& pipeline) {
  const auto stages = static_cast<int>(pipeline.first_layers.size());
  const PipelineShape shape{.ranks = stages, .stages = stages, .micro_steps = pipeline.micro_steps};
  const auto cost = [&](const StagePass& pass) {
    const std::map<int, double>& costs = pass.backward ? pipeline.backward : pipeline.forward;
    const auto s = static_cast<std::size_t>(pass.stage);
    const int end = pass.stage + 1 < stages ? pipeline.first_layers[s + 1]
                                            : static_cast<int>(pipeline.forward.size());
    double sum = 0.0;
    for (int layer = pipeline.first_layers[s]; layer < end; ++layer) sum += costs.at(layer);
    const int head = static_cast<int>(pipeline.forward.size()) - 1;
    // The head's forward and backward are one pass, the first of its stage's backward.
    if (end > head) sum += (pass.backward ? 1.0 : -1.0) * pipeline.forward.at(head);
    return sum;
  };
  std::map<std::tuple<int, int, bool>, double> ends;
  std::vector<std::vector<StagePass>> passes;
  for (int r = 0; r < stages; ++r) passes.push_back(pipeline_passes(pipeline.order, shape, r));
  std::vector<std::size_t> next(passes.size(), 0);
  std::vector<double> now(passes.size(), 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < passes.size(); ++r) {
      if (next[r] == passes[r].size()) continue;
      const StagePass& pass = passes[r][next[r]];
      const int other = pass.stage + (pass.backward ? 1 : -1);
      double begin = now[r];
      if (other >= 0 && other < stages) {
        const auto made = ends.find({other, pass.micro_step, pass.backward});
        if (made == ends.end()) continue;
        begin = std::max(begin, made->second + pipeline.message);
      }
      now[r] = begin + cost(pass);
      ends[{pass.stage, pass.micro_step, pass.backward}] = now[r];
      ++next[r];
      moved = true;
    }
  }
  return *std::ranges::max_element(now);
}

std::string text_of(const VirtualPipeline& pipeline) {
  return concat(to_string(pipeline.order), ", ", pipeline.first_layers.size(), " stages, ",
                pipeline.micro_steps, " micro-steps, ", pipeline.prefetch,
                " messages ahead, each of ", pipeline.message);
}

/// In percent of the step: what a rank waits. `work`: seconds of a rank's passes.
double bubble(double work, double makespan) { return 100.0 * (1.0 - work / makespan); }

TEST(PipelineTimes, AreTheClosedFormsWhereMessagesAreFree) {
  for (const PipelineOrder order : kPipelineOrders) {
    for (const int stages : {1, 2, 4, 8}) {
      for (const int micro_steps : {1, 3, 4, 8, 32}) {
        for (const int prefetch : {0, 1, 2}) {
          VirtualPipeline even = equal_stages(stages, 1.0, 2.0);
          even.order = order;
          even.micro_steps = micro_steps;
          even.prefetch = prefetch;
          EXPECT_DOUBLE_EQ(makespan(even), (micro_steps + stages - 1) * 3.0) << text_of(even);
        }
      }
    }
  }
}

// The last stage has its last input after all forwards and p - 1 passes and messages through the
// stages before; its gradients come back the same way.
TEST(PipelineTimes, OfGPipeAreAClosedFormWithMessagesToo) {
  for (const int stages : {2, 4, 8}) {
    for (const int micro_steps : {1, 4, 32}) {
      for (const int prefetch : {0, 1, 2}) {
        VirtualPipeline even = equal_stages(stages, 1.0, 2.0);
        even.order = PipelineOrder::kGPipe;
        even.micro_steps = micro_steps;
        even.prefetch = prefetch;
        even.message = 0.1;
        EXPECT_NEAR(makespan(even), (stages - 1) * (3.0 + 0.2) + micro_steps * 3.0, 1e-9)
            << text_of(even);
      }
    }
  }
}

TEST(PipelineTimes, HaveTheKnownBubbles) {
  VirtualPipeline even = equal_stages(8, 1.0, 2.0);
  even.micro_steps = 32;
  for (const PipelineOrder order : kPipelineOrders) {
    even.order = order;
    EXPECT_NEAR(bubble(96.0, makespan(even)), 17.9, 0.05) << text_of(even);
  }
  even.order = k1F1B;
  even.message = 0.1;
  EXPECT_NEAR(bubble(96.0, makespan(even)), 22.5, 0.05);
}

TEST(PipelineTimes, AreThoseOfTheOrderAloneWithOneMessageAhead) {
  std::vector<VirtualPipeline> all;
  for (const int stages : {2, 3, 4, 8}) {
    for (const int micro_steps : {1, 2, 5, 8}) {
      VirtualPipeline even = equal_stages(stages, 1.0, 2.0);
      even.micro_steps = micro_steps;
      all.push_back(even);
      VirtualPipeline heavy = even;  // a head that costs two layers
      heavy.forward[stages + 1] = 2.0;
      heavy.backward[stages + 1] = 4.0;
      all.push_back(heavy);
      VirtualPipeline uneven = even;  // the first stage has all layers that the others do not need
      uneven.first_layers.front() = 0;
      for (std::size_t s = 1; s < uneven.first_layers.size(); ++s) {
        uneven.first_layers[s] =
            static_cast<int>(uneven.forward.size() - uneven.first_layers.size() + s);
      }
      all.push_back(uneven);
    }
  }
  for (VirtualPipeline& pipeline : all) {
    for (const PipelineOrder order : kPipelineOrders) {
      for (const double message : {0.0, 0.1}) {
        pipeline.order = order;
        pipeline.message = message;
        EXPECT_NEAR(makespan(pipeline), expected_makespan(pipeline), 1e-9) << text_of(pipeline);
      }
    }
  }
}

// Two stages of F = 1 and B = 2, three micro-steps, messages of 0.1, under 1F1B:
//   stage 0: F0 0-1, F1 1-2, B0 after B0 of stage 1 and a message: 4.2-6.2, F2 6.2-7.2,
//            B1 (there since 7.2) 7.2-9.2, B2 10.4-12.4
//   stage 1: F0 1.1-2.1, B0 2.1-4.1, F1 4.1-5.1, B1 5.1-7.1, F2 (sent at 7.2) 7.3-8.3, B2 8.3-10.3
TEST(PipelineTimes, AreThoseWorkedOutByHand) {
  VirtualPipeline two = equal_stages(2, 1.0, 2.0);
  two.micro_steps = 3;
  two.message = 0.1;
  EXPECT_NEAR(makespan(two), 12.4, 1e-9);
}

/// Stages before the last: what they hold from a forward on until its backward is what a message
/// does not take with it.
std::int64_t held(const VirtualStep& run, std::size_t rank, int micro_step) {
  const Schedule& schedule = run.step.ranks[rank];
  const StepMemory& memory = run.ranks[rank].step_memory.front();
  std::int64_t most = 0;
  const int last_block =
      schedule.layers_of(static_cast<int>(rank)).end - (rank + 1 == run.step.ranks.size() ? 2 : 1);
  for (std::size_t a = 0; a < schedule.actions.size(); ++a) {
    const Action& action = schedule.actions[a];
    const bool is_forward = action.operation == &operations::kForward && action.layer == last_block;
    if (!is_forward || (micro_step >= 0 && action.micro_step != micro_step)) continue;
    most = std::max(most, memory.actions[a].after[MemoryCategory::kActivations]);
  }
  return most;
}

// An activation that is sent is in no message yet when its forward is over: it counts once. Slots
// of messages are as many for two micro-steps as for more.
TEST(PipelineMemory, HoldsAsManyMicroStepsAsTheOrderSays) {
  for (const int stages : {2, 4}) {
    for (const int micro_steps : {2, 3, 8}) {
      for (const PipelineOrder order : kPipelineOrders) {
        VirtualPipeline even = equal_stages(stages, 1.0, 2.0);
        even.micro_steps = micro_steps;
        even.order = order;
        const VirtualStep run = simulate(even);
        VirtualPipeline twice = even;
        twice.order = PipelineOrder::kGPipe;
        twice.micro_steps = 2;
        const VirtualStep two = simulate(twice);
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(stages); ++rank) {
          const std::int64_t first = held(two, rank, 0), each = held(two, rank, 1) - first;
          ASSERT_GT(each, 0);
          const int left = stages - static_cast<int>(rank);
          const int expected =
              order == PipelineOrder::kGPipe ? micro_steps : std::min(left, micro_steps);
          EXPECT_EQ(held(run, rank, -1), first + (expected - 1) * each)
              << text_of(even) << ", rank " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test::pipeline_times_test
