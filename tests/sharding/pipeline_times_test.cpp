#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

PipelineShape shape_of(const VirtualPipeline& pipeline) {
  const auto stages = static_cast<int>(pipeline.first_layers.size());
  return test::shape_of(PipelineKind{pipeline.order, pipeline.virtual_stages},
                        stages / pipeline.virtual_stages, pipeline.micro_steps);
}

/// Ranks with equal stages, whose whole forwards cost f, and whose backwards i and w.
VirtualPipeline equal_ranks(const PipelineKind& kind, int ranks, double f, double i, double w) {
  const int v = kind.virtual_stages;
  VirtualPipeline even = equal_stages(ranks * v, f / v, (i + w) / v);
  even.virtual_stages = v;
  even.order = kind.order;
  even.weight_share = w / (i + w);
  return even;
}

/// The makespan worked out from the order of passes alone: a pass begins when the one before it on
/// its rank is over and what it needs of another stage has been there for a message's time. There
/// is room for any number of messages, each on its way by itself.
double expected_makespan(const VirtualPipeline& pipeline) {
  const PipelineShape shape = shape_of(pipeline);
  const int head = static_cast<int>(pipeline.forward.size()) - 1;
  const auto cost = [&](const StagePass& pass) {
    const auto s = static_cast<std::size_t>(pass.stage);
    const int end = pass.stage + 1 < shape.stages ? pipeline.first_layers[s + 1] : head + 1;
    double sum = 0.0;
    for (int layer = pipeline.first_layers[s]; layer < end; ++layer) {
      const double forward = pipeline.forward.at(layer), backward = pipeline.backward.at(layer);
      const double weights = layer == head ? 0.0 : backward * pipeline.weight_share;
      switch (pass.kind) {
        case PassKind::kForward:  // the head's is in its backward
          sum += layer == head ? 0.0 : forward;
          break;
        case PassKind::kBackward:
          sum += backward;
          break;
        case PassKind::kBackwardInput:
          sum += backward - weights;
          break;
        case PassKind::kBackwardWeight:
          sum += weights;
          break;
      }
      if (layer == head && pass.is_backward()) sum += forward;
    }
    return sum;
  };
  std::map<std::tuple<int, int, bool>, double> ends;
  const std::vector<std::vector<StagePass>> passes = passes_of(pipeline.order, shape);
  std::vector<std::size_t> next(passes.size(), 0);
  std::vector<double> now(passes.size(), 0.0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < passes.size(); ++r) {
      if (next[r] == passes[r].size()) continue;
      const StagePass& pass = passes[r][next[r]];
      const bool back = pass.is_backward();
      const int other = pass.stage + (back ? 1 : -1);
      double begin = now[r];
      if (pass.kind != PassKind::kBackwardWeight && other >= 0 && other < shape.stages) {
        const auto made = ends.find({other, pass.micro_step, back});
        if (made == ends.end()) continue;
        const bool is_sent = shape.rank_of(other) != static_cast<int>(r);
        begin = std::max(begin, made->second + (is_sent ? pipeline.message : 0.0));
      }
      now[r] = begin + cost(pass);
      if (pass.kind != PassKind::kBackwardWeight) {
        ends[{pass.stage, pass.micro_step, back}] = now[r];
      }
      ++next[r];
      moved = true;
    }
  }
  return *std::ranges::max_element(now);
}

std::string text_of(const VirtualPipeline& pipeline) {
  return concat(to_string(pipeline.order), ", ", pipeline.first_layers.size(), " stages, ",
                pipeline.virtual_stages, " on a rank, ", pipeline.micro_steps, " micro-steps, ",
                pipeline.prefetch, " messages ahead, each of ", pipeline.message);
}

/// In percent of the step: what a rank waits. `work`: seconds of a rank's passes.
double bubble(double work, double makespan) { return 100.0 * (1.0 - work / makespan); }

TEST(PipelineTimes, AreTheClosedFormsWhereMessagesAreFree) {
  for (const PipelineOrder order : {PipelineOrder::kGPipe, k1F1B}) {
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

// Interleaved stages wait for 1/v of a pass each, (p - 1) (F + B) / v; of zb-h1 weight gradients
// fill the time of waiting, (p - 1) (F + I - W); of zb-v, with F = I = W, half a forward is left of
// each rank, (p - 1) F / 2.
TEST(PipelineTimes, OfInterleavedStagesAndZeroBubblesAreClosedForms) {
  for (const int ranks : {2, 4, 8}) {
    for (const int prefetch : {0, 1, 2}) {
      const auto expect = [&](const PipelineKind& kind, int micro_steps, double f, double i,
                              double w, double waits) {
        VirtualPipeline even = equal_ranks(kind, ranks, f, i, w);
        even.micro_steps = micro_steps;
        even.prefetch = prefetch;
        EXPECT_NEAR(makespan(even), micro_steps * (f + i + w) + (ranks - 1) * waits, 1e-9)
            << text_of(even);
      };
      for (const int groups : {1, 2, 4}) {
        for (const int v : {2, 3, 4}) {
          expect({PipelineOrder::kInterleaved, v}, groups * ranks, 1.0, 1.0, 1.0, 3.0 / v);
        }
        expect({PipelineOrder::kZeroBubble}, groups * ranks, 1.0, 1.0, 1.0, 1.0);
        expect({PipelineOrder::kZeroBubble}, groups * ranks, 1.0, 1.2, 0.8, 1.4);
        expect({PipelineOrder::kZeroBubble}, groups * ranks, 1.0, 2.0, 1.0, 2.0);
      }
      expect({PipelineOrder::kZeroBubbleV, 2}, 4 * ranks, 1.0, 1.0, 1.0, 0.5);
    }
  }
}

/// Shares of a step of eight ranks and 32 micro-steps, of 1f1b, zb-h1, interleaved stages, two and
/// four on a rank, and zb-v.
struct KnownBubbles {
  double f, i, w, message;
  std::array<double, 5> percent;
};

TEST(PipelineTimes, HaveTheKnownBubbles) {
  constexpr std::array kKinds{PipelineKind{k1F1B}, PipelineKind{PipelineOrder::kZeroBubble},
                              PipelineKind{PipelineOrder::kInterleaved, 2},
                              PipelineKind{PipelineOrder::kInterleaved, 4},
                              PipelineKind{PipelineOrder::kZeroBubbleV, 2}};
  for (const KnownBubbles& known :
       {KnownBubbles{1.0, 1.0, 1.0, 0.0, {17.9, 6.8, 9.9, 5.2, 3.5}},
        KnownBubbles{1.0, 1.2, 0.8, 0.0, {17.9, 9.3, 9.9, 5.2, 4.2}},
        KnownBubbles{1.0, 1.5, 0.5, 0.0, {17.9, 12.7, 9.9, 5.2, 6.8}},
        KnownBubbles{1.0, 2.0, 1.0, 0.0, {17.9, 9.9, 9.9, 5.2, 5.2}},
        KnownBubbles{1.0, 1.0, 1.0, 0.1, {22.5, 9.3, 12.3, 10.7, 6.6}},
        KnownBubbles{1.0, 2.0, 1.0, 0.1, {21.4, 11.6, 11.7, 9.3, 7.9}}}) {
    for (std::size_t k = 0; k < kKinds.size(); ++k) {
      VirtualPipeline even = equal_ranks(kKinds[k], 8, known.f, known.i, known.w);
      even.micro_steps = 32;
      even.message = known.message;
      even.prefetch = 2;
      EXPECT_NEAR(bubble(32.0 * (known.f + known.i + known.w), makespan(even)), known.percent[k],
                  0.05)
          << text_of(even) << ", F " << known.f << ", I " << known.i << ", W " << known.w;
    }
  }
}

TEST(PipelineTimes, AreThoseOfTheOrderAloneWithMessagesAhead) {
  for (const PipelineKind& kind : kPipelineKinds) {
    for (const int ranks : {2, 3, 4, 8}) {
      for (const int micro_steps : {1, 2, 5, 8}) {
        VirtualPipeline even = equal_ranks(kind, ranks, 1.0, 1.0, 1.0);
        even.micro_steps = micro_steps;
        // All micro-steps of a stage come before the next stage of the rank takes the first.
        const bool loops = kind.order == PipelineOrder::kGPipe && kind.virtual_stages > 1;
        even.prefetch = loops ? micro_steps : 1;
        const int head = static_cast<int>(even.forward.size()) - 1;
        VirtualPipeline heavy = even;  // a head that costs two layers
        heavy.forward[head] = 2.0 / kind.virtual_stages;
        heavy.backward[head] = 4.0 / kind.virtual_stages;
        VirtualPipeline uneven = even;  // the first stage has all layers that others do not need
        uneven.first_layers.front() = 0;
        for (std::size_t s = 1; s < uneven.first_layers.size(); ++s) {
          uneven.first_layers[s] =
              static_cast<int>(uneven.forward.size() - uneven.first_layers.size() + s);
        }
        for (VirtualPipeline pipeline : {even, heavy, uneven}) {
          for (const double message : {0.0, 0.1}) {
            pipeline.message = message;
            EXPECT_NEAR(makespan(pipeline), expected_makespan(pipeline), 1e-9) << text_of(pipeline);
          }
        }
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
      for (const PipelineOrder order : {PipelineOrder::kGPipe, k1F1B}) {
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

/// The most micro-steps whose forwards have been and whose gradients of weights are to come, over
/// all stages of a rank.
int held(const PipelineKind& kind, int ranks, int micro_steps, int rank) {
  const PipelineShape shape = shape_of(kind, ranks, micro_steps);
  int now = 0, most = 0;
  for (const StagePass& pass : pipeline_passes(kind.order, shape, rank)) {
    if (pass.kind == PassKind::kForward) most = std::max(most, ++now);
    if (pass.kind == PassKind::kBackward || pass.kind == PassKind::kBackwardWeight) --now;
  }
  EXPECT_EQ(now, 0);
  return most;
}

TEST(PipelineMemory, OfInterleavedStagesAndZeroBubblesIsAClosedForm) {
  for (const int p : {2, 4, 8}) {
    for (int r = 0; r < p; ++r) {
      const int m = 4 * p;
      for (const int v : {2, 3, 4}) {
        EXPECT_EQ(held({PipelineOrder::kInterleaved, v}, p, m, r),
                  2 * (p - r - 1) + (v - 1) * p + 1);
      }
      EXPECT_EQ(held({PipelineOrder::kZeroBubble}, p, m, r), p);
      EXPECT_EQ(held({PipelineOrder::kZeroBubbleV, 2}, p, m, r), 2 * p);  // of half a rank each
    }
  }
}

}  // namespace
}  // namespace tessera::test::pipeline_times_test
