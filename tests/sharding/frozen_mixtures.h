#pragma once

#include <array>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "sharding/frozen_configurations.h"
#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"

// Frozen configurations beside the list: choices drawn for every axis at once.
namespace tessera::test {

/// Groups of configurations. Those of one group train the same model with the same optimizer on as
/// many samples per step, so many of them end in the same bits.
class FrozenMixtures {
 public:
  static constexpr int kGroups = 40;
  static constexpr int kMembers = 6;

  /// By group, in a fixed order.
  static std::vector<FrozenConfiguration> make() {
    FrozenMixtures mixtures;
    std::vector<FrozenConfiguration> all;
    for (int group = 0; group < kGroups; ++group) {
      const int contributions = mixtures.one_of({2, 3, 4, 6, 12});
      const FrozenConfiguration trained = mixtures.draw_training();
      for (int member = 0; member < kMembers; ++member) {
        all.push_back(mixtures.draw_placement(trained, contributions));
      }
    }
    return all;
  }

 private:
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    const std::uint32_t word = random_word({11, stream_of("mixtures")}, drawn_++);
    return *std::next(choices.begin(), static_cast<std::ptrdiff_t>(
                                           word % static_cast<std::uint32_t>(choices.size())));
  }
  bool one_in(int count) {
    const std::uint32_t word = random_word({11, stream_of("mixtures")}, drawn_++);
    return word % static_cast<std::uint32_t>(count) == 0;
  }

  /// What decides about bits, but for the order in which gradients are reduced.
  FrozenConfiguration draw_training() {
    FrozenConfiguration c;
    SmallRun& run = c.run;
    run.steps = 2;
    run.dtype = one_of({DType::kFloat32, DType::kBFloat16, DType::kFloat16});
    run.reduce_dtype = one_of({DType::kFloat32, run.dtype});
    run.stochastic_rounding = one_in(3) && run.dtype == DType::kBFloat16;
    if (run.dtype == DType::kFloat16) c.loss_scale = 1024.0F;
    run.family = one_of({GptFamily::kGpt2, GptFamily::kLlama, GptFamily::kMistral,
                         GptFamily::kQwen2, GptFamily::kQwen3, GptFamily::kPhi3});
    run.optimizer = one_of<const char*>({"adamw", "adamw", "sgd", "adamw8bit"});
    run.clip_norm = one_of({0.5, 0.5, 0.0});
    run.dropout = one_of({0.0F, 0.1F});
    if (one_in(2)) {
      run.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0}, .target_pattern = "all-linear"};
      run.base_format =
          one_of({WeightFormat::kNone, WeightFormat::kNf4, WeightFormat::kFp4, WeightFormat::kInt8,
                  WeightFormat::kNf4Double, WeightFormat::kFp4Double});
    } else if (one_in(3)) {
      c.frozen = {one_of<const char*>({"attn", "ln", "wte", "h.1."})};
    }
    return c;
  }

  FrozenConfiguration draw_placement(FrozenConfiguration c, int contributions) {
    SmallRun& run = c.run;
    do run.ranks = one_of({1, 2, 3, 4, 6});
    while (contributions % run.ranks != 0);
    run.micro_steps = contributions / run.ranks;
    do run.replicas = one_of({1, 2, 3});
    while (run.ranks % run.replicas != 0);
    run.strategy = one_of<const char*>({"no_shard", "zero1", "zero2", "shard_grad_op", "full_shard",
                                        "full_shard", "hybrid_shard", "hybrid_shard_zero2",
                                        "hybrid_full_optimizer"});
    run.accumulate_unsharded = one_in(4);
    run.reduction_order = one_in(5) ? ReductionOrder::kHierarchical : ReductionOrder::kRank;
    run.policy = {.prefetch_forward = one_of({0, 1, 2, 3}),
                  .prefetch_backward = one_of({0, 1, 2, 3}),
                  .recompute = one_of({Recompute::kNone, Recompute::kSelective, Recompute::kFull}),
                  .prefetch_host = one_of({0, 1, 2}),
                  .prefetch_disk = one_of({0, 1, 2})};
    const auto share = [&] { return one_of({0.0, 0.0, 0.0, 0.5, 1.0}); };
    run.offload_optimizer = share();
    run.offload_parameters = share();
    run.offload_gradients = share();
    run.disk_optimizer = share();
    run.disk_parameters = share();
    run.offload_activations = one_in(2) && run.policy.recompute == Recompute::kFull;
    run.steps_in_flight = one_of({1, 1, 2});
    run.wrap = one_of<WrapPolicy>({{WrapPolicy::Kind::kLayer},
                                   {WrapPolicy::Kind::kLayer},
                                   {WrapPolicy::Kind::kSize, 3000},
                                   {WrapPolicy::Kind::kNone}});
    c.snapshots = one_in(6);
    c.evaluates = one_in(6);
    if (run.adapter.is_set()) draw_trainable(run);
    return c;
  }

  /// A placement of adapters that goes with the base's.
  void draw_trainable(SmallRun& run) {
    run.trainable_strategy = one_of<const char*>({"", "zero1", "zero2", "no_shard"});
    try {
      check(placement_of(run));
    } catch (const Error&) {
      run.trainable_strategy = "";
    }
  }

  std::int64_t drawn_ = 0;
};

}  // namespace tessera::test
