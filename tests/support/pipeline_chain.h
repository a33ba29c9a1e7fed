#pragma once

#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/tied_chain.h"
#include "tessera/sharding/pipeline.h"
#include "tessera/sharding/step_plan.h"

// Pipelines of a chain of small layers whose ends share a weight: a sample of the options that
// there are, and what it takes to run one on threads.
namespace tessera::test {

/// Orders that can have one stage on each rank.
inline constexpr std::array kPipelineOrders{
    PipelineOrder::kGPipe, PipelineOrder::kOneForwardOneBackward, PipelineOrder::kZeroBubble};

/// An order, and how many stages it has on each rank.
struct PipelineKind {
  PipelineOrder order;
  int virtual_stages = 1;
};
inline constexpr std::array kPipelineKinds{PipelineKind{PipelineOrder::kGPipe},
                                           PipelineKind{PipelineOrder::kOneForwardOneBackward},
                                           PipelineKind{PipelineOrder::kZeroBubble},
                                           PipelineKind{PipelineOrder::kInterleaved, 2},
                                           PipelineKind{PipelineOrder::kZeroBubbleV, 2},
                                           PipelineKind{PipelineOrder::kInterleaved, 3},
                                           PipelineKind{PipelineOrder::kGPipe, 2},
                                           PipelineKind{PipelineOrder::kZeroBubble, 2}};

inline PipelineShape shape_of(const PipelineKind& kind, int ranks, int micro_steps) {
  const int stages = ranks * kind.virtual_stages;
  return {.ranks = ranks,
          .stages = stages,
          .micro_steps = micro_steps,
          .stage_ranks = stage_ranks(kind.order, ranks, stages)};
}

/// The passes of all pipeline ranks.
inline std::vector<std::vector<StagePass>> passes_of(PipelineOrder order,
                                                     const PipelineShape& shape) {
  std::vector<std::vector<StagePass>> all;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    all.push_back(pipeline_passes(order, shape, rank));
  }
  return all;
}

/// The options of a step plan.
struct PipelineSubject {
  std::string name;
  SmallRun run;
  Purpose purpose = Purpose::kTrain;
  int layers = 4;
  bool trains_first = true;  ///< else the first layer, and what is tied to it, is frozen
  bool overlaps = false;     ///< the optimizer has a lane of its own
  bool snapshot = false;     ///< each step copies the state to the host
};

/// A step plan, and the model and the data that it is for.
class PipelineChain {
 public:
  explicit PipelineChain(const PipelineSubject& subject)
      : run_(subject.run),
        model_(make_tied(subject.layers, subject.trains_first)),
        source_(subject.run.dtype),
        layout_(layout_of(subject.run, model_)) {
    PlanOptions options = plan_options(run_, model_, layout_, source_);
    options.purpose = subject.purpose;
    options.overlap_optimizer = subject.overlaps;
    step_ = plan_step(layout_, options);
    if (subject.snapshot) step_ = with_snapshot(step_, true);
  }

  const SmallRun& run() const { return run_; }
  const Model& model() const { return model_; }
  const RandomVectors& source() const { return source_; }
  const ModelLayout& layout() const { return layout_; }
  const StepPlan& step() const { return step_; }

 private:
  SmallRun run_;
  Model model_;
  RandomVectors source_;
  ModelLayout layout_;
  StepPlan step_;
};

/// Stages that begin with these layers, as evenly as `layers` goes, the earlier ones larger.
inline std::vector<int> even_stages(int layers, int stages) {
  std::vector<int> first;
  for (int s = 0, layer = 0; s < stages; ++s) {
    first.push_back(layer);
    layer += layers / stages + (s < layers % stages ? 1 : 0);
  }
  return first;
}

/// Every preset x pipeline ranks x number of micro-steps, orders by turns; the rest is drawn.
inline std::vector<PipelineSubject> pipeline_subjects() {
  std::vector<PipelineSubject> all;
  std::mt19937 random(1);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const auto share = [&] {
    return std::array{0.0, 0.0, 0.5, 1.0}[static_cast<std::size_t>(draw(4))];
  };
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {2, 3, 4}) {
      for (const int micro_steps : {1, 2, 4, 5}) {
        for (int i = 0; i < 3; ++i) {
          const auto& [order, virtual_stages] = kPipelineKinds[all.size() % kPipelineKinds.size()];
          const int stages = ranks * virtual_stages;
          const bool bf16 = draw(2) == 0;
          PipelineSubject s{.name = {}, .run = {.strategy = strategy.name}};
          s.layers = stages + draw(3);
          s.trains_first = draw(6) != 0;
          s.purpose = draw(10) == 0 ? Purpose::kEvaluate : Purpose::kTrain;
          s.overlaps = draw(2) == 0;
          s.snapshot = s.purpose == Purpose::kTrain && draw(4) == 0;
          SmallRun& run = s.run;
          run.ranks = std::array{1, 1, 2, 4}[static_cast<std::size_t>(draw(ranks == 4 ? 3 : 4))];
          run.replicas = run.ranks == 4 ? 2 : 0;
          run.first_layers = even_stages(s.layers, stages);
          run.virtual_stages = virtual_stages;
          run.pipeline_order = order;
          run.pipeline_prefetch = draw(3);
          run.micro_steps = micro_steps;
          run.dtype = bf16 ? DType::kBFloat16 : DType::kFloat32;
          run.reduce_dtype = bf16 && draw(2) == 0 ? DType::kBFloat16 : DType::kFloat32;
          run.reduction_order =
              draw(2) == 0 ? ReductionOrder::kRank : ReductionOrder::kHierarchical;
          run.accumulate_unsharded = draw(3) == 0;
          run.policy = {draw(3), draw(3),
                        std::array{Recompute::kNone, Recompute::kSelective,
                                   Recompute::kFull}[static_cast<std::size_t>(draw(3))]};
          run.policy.split_backward = draw(3) == 0;
          run.policy.prefetch_disk = draw(3);
          run.policy.prefetch_host = draw(2);
          run.offload_optimizer = share();
          run.offload_parameters = draw(3) == 0 ? share() : 0.0;
          run.offload_gradients = share();
          run.disk_optimizer = draw(3) == 0 ? share() : 0.0;
          run.disk_parameters = draw(4) == 0 ? share() : 0.0;
          run.offload_activations = run.policy.recompute == Recompute::kFull &&
                                    s.purpose == Purpose::kTrain && draw(2) == 0;
          s.name = concat(strategy.name, ", ", stages, " stages on ", ranks, " ranks, of ",
                          s.layers, " layers, ", to_string(order), ", ", run.pipeline_prefetch,
                          " messages ahead, ", run.ranks, " ranks each, ", micro_steps,
                          " micro-steps, ", to_string(run.dtype), '/', to_string(run.reduce_dtype),
                          ", ", to_string(run.policy.recompute), ", ", to_string(s.purpose),
                          s.trains_first ? "" : ", first layer frozen",
                          s.overlaps ? ", overlapping" : "", s.snapshot ? ", with snapshots" : "",
                          run.policy.split_backward ? ", split" : "", ", offloaded ",
                          run.offload_optimizer, ", ", run.offload_parameters, " and ",
                          run.offload_gradients, ", on disk ", run.disk_optimizer, " and ",
                          run.disk_parameters, run.offload_activations ? ", activations" : "");
          all.push_back(std::move(s));
        }
      }
    }
  }
  return all;
}

}  // namespace tessera::test
