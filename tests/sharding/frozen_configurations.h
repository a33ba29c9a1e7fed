#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/frozen_layers.h"
#include "support/grid.h"
#include "support/small_run.h"
#include "tessera/model/gpt_family.h"
#include "tessera/trainer/trainer_options.h"

// The runs whose values frozen/values.json has: presets and placements of one's own × accumulation
// × recomputation × prefetching × tiers × adapters and quantised bases × precision.
namespace tessera::test {

struct FrozenConfiguration {
  SmallRun run;
  std::optional<Placement> placement{};  ///< instead of the strategy's
  std::vector<std::string> frozen{};     ///< parts of the names of parameters that are not trained
  bool snapshots = false;                ///< the last step copies the state, too
  bool evaluates = false;                ///< after the last step
  std::optional<float> loss_scale{};
};

/// What a configuration has on an axis of the list.
struct AxisValue {
  std::string axis;
  std::string value;  ///< as it stands in names
  bool operator==(const AxisValue&) const = default;
  auto operator<=>(const AxisValue&) const = default;
};

inline std::string describe(const AdapterConfig& adapter) {
  return adapter.lora() != nullptr     ? "lora"
         : adapter.ia3() != nullptr    ? "ia3"
         : adapter.prompt() != nullptr ? "prompt"
                                       : "none";
}

inline std::string describe(const FrozenConfiguration& c, const SmallRun& run) {
  if (!c.placement) return run.strategy;
  return concat("parameter ", to_string(c.placement->parameter), " gradient ",
                to_string(c.placement->gradient), " optimizer ", to_string(c.placement->optimizer),
                find_strategy(run.strategy).reshard_after_forward ? " resharded" : " kept");
}

/// Every axis; strategy and mesh come first.
inline std::vector<AxisValue> axes_of(const FrozenConfiguration& c) {
  const SmallRun& run = c.run;
  const Mesh mesh = plan_options(run).mesh;
  const auto share_of = [](double share, const char* what) {
    return share == 0.0 ? concat("no ", what) : share == 1.0 ? what : concat(share, " of ", what);
  };
  std::string frozen;
  for (const std::string& part : c.frozen) frozen += concat(" ", part);
  return {
      {"strategy", describe(c, run)},
      {"mesh", mesh.size(Axis::kReplicate) > 1
                   ? shape_of(mesh)
                   : concat(mesh.world_size(), mesh.world_size() == 1 ? " rank" : " ranks")},
      {"micro-steps", concat(run.micro_steps, " micro-steps")},
      {"accumulation", run.accumulate_unsharded ? "reduced once" : "reduced each time"},
      {"reduction", concat(to_string(run.reduction_order), " order")},
      {"precision", std::string(to_string(run.dtype))},
      {"reduce", concat("sums in ", to_string(run.reduce_dtype))},
      {"rounding", run.stochastic_rounding ? "rounded at random" : "rounded to nearest"},
      {"scaling", c.loss_scale ? concat("loss x", *c.loss_scale) : "loss x1"},
      {"recompute", concat("recompute ", to_string(run.policy.recompute))},
      {"forward", concat("prefetch forward ", run.policy.prefetch_forward)},
      {"backward", concat("prefetch backward ", run.policy.prefetch_backward)},
      {"host", concat("prefetch host ", run.policy.prefetch_host)},
      {"disk", concat("prefetch disk ", run.policy.prefetch_disk)},
      {"offload optimizer", share_of(run.offload_optimizer, "optimizer on host")},
      {"offload parameters", share_of(run.offload_parameters, "parameters on host")},
      {"offload gradients", share_of(run.offload_gradients, "gradients on host")},
      {"disk optimizer", share_of(run.disk_optimizer, "optimizer on disk")},
      {"disk parameters", share_of(run.disk_parameters, "parameters on disk")},
      {"activations", run.offload_activations ? "activations on host" : "activations stay"},
      {"steps in flight", concat(run.steps_in_flight, " in flight")},
      {"optimizer", run.optimizer},
      {"clipping", run.clip_norm > 0.0 ? concat("clip ", run.clip_norm) : "no clipping"},
      {"family", std::string(family_of({.family = run.family}).name)},
      {"dropout", concat("dropout ", run.dropout > 0.0F ? 0.1 : 0.0)},
      {"adapter", concat("adapter ", describe(run.adapter))},
      {"base", concat("base ", to_string(run.base_format))},
      {"trainable", concat("trainable ", run.trainable_strategy)},
      {"wrap", concat("wrap ", to_string(run.wrap))},
      {"frozen", concat("frozen", frozen)},
      {"snapshot", c.snapshots ? "snapshot" : "no snapshot"},
      {"evaluation", c.evaluates ? "evaluation" : "no evaluation"},
  };
}

/// What tells it from others: strategy, mesh, and what is not as by default.
inline std::string name_of(const FrozenConfiguration& c) {
  const std::vector<AxisValue> own = axes_of(c), usual = axes_of({});
  std::string name = concat(own[0].value, ", ", own[1].value);
  for (std::size_t i = 2; i < own.size(); ++i) {
    if (own[i] != usual[i]) name += concat(", ", own[i].value);
  }
  return name;
}

class FrozenList {
 public:
  /// In a fixed order, with names that differ.
  static std::vector<FrozenConfiguration> make() {
    FrozenList list;
    list.add_presets();
    list.add_recomputation();
    list.add_hierarchical();
    list.add_precisions();
    list.add_placements();
    list.add_tiers();
    list.add_adapters();
    list.add_others();
    return std::move(list.all_);
  }

 private:
  void add(FrozenConfiguration c) { all_.push_back(std::move(c)); }
  void add(SmallRun run) { add(FrozenConfiguration{.run = std::move(run)}); }
  /// A number that goes from 0 to `count` - 1 and again, at another pace for each `stride`.
  int turn(int count, int stride = 1) const {
    return static_cast<int>(all_.size()) / stride % count;
  }
  StepPolicy next_policy() const {
    return {.prefetch_forward = turn(3), .prefetch_backward = turn(3, 2)};
  }

  /// Every preset × accumulation, on 1 to 7 ranks.
  void add_presets() {
    constexpr std::array kRanks{2, 3, 4, 5, 7, 1};
    for (const char* const strategy :
         {"no_shard", "zero1", "zero2", "shard_grad_op", "full_shard", "hybrid_shard",
          "hybrid_shard_zero2", "hybrid_full_optimizer"}) {
      const bool hybrid = find_strategy(strategy).hybrid;
      for (const auto& [micro_steps, once] : {std::pair{1, false}, {3, false}, {3, true}}) {
        SmallRun run{.strategy = strategy, .micro_steps = micro_steps};
        run.accumulate_unsharded = once;
        run.ranks = hybrid ? (turn(2) == 0 ? 4 : 6) : kRanks[static_cast<std::size_t>(turn(6))];
        run.replicas = hybrid ? (turn(4) == 1 ? 3 : 2) : 0;
        run.policy = next_policy();
        run.dtype = turn(2) == 0 ? DType::kFloat32 : DType::kBFloat16;
        add(run);
      }
    }
  }

  void add_recomputation() {
    constexpr std::array kFamilies{GptFamily::kGpt2,  GptFamily::kLlama, GptFamily::kMistral,
                                   GptFamily::kQwen2, GptFamily::kQwen3, GptFamily::kPhi3};
    for (const char* const strategy : {"no_shard", "shard_grad_op", "full_shard", "hybrid_shard"}) {
      for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
        SmallRun run{.ranks = 4, .strategy = strategy, .dropout = 0.1F};
        run.micro_steps = turn(2) + 1;
        run.policy = next_policy();
        run.policy.recompute = recompute;
        run.family = kFamilies[static_cast<std::size_t>(turn(6))];
        add(run);
      }
    }
  }

  void add_hierarchical() {
    for (const char* const strategy :
         {"hybrid_shard", "hybrid_shard_zero2", "hybrid_full_optimizer"}) {
      for (const auto& [micro_steps, once] : {std::pair{1, false}, {3, false}, {3, true}}) {
        SmallRun run{.ranks = 6, .replicas = 2 + turn(2), .strategy = strategy};
        run.micro_steps = micro_steps;
        run.accumulate_unsharded = once;
        run.reduction_order = ReductionOrder::kHierarchical;
        run.policy = next_policy();
        run.dtype = turn(2) == 0 ? DType::kFloat32 : DType::kBFloat16;
        run.reduce_dtype = turn(4) == 0 ? DType::kFloat32 : run.dtype;
        add(run);
      }
    }
  }

  void add_precisions() {
    for (const char* const strategy : {"no_shard", "zero2", "full_shard", "hybrid_shard"}) {
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        SmallRun run{.ranks = 4, .strategy = strategy, .micro_steps = turn(2) * 2 + 1};
        run.dtype = dtype;
        run.reduce_dtype = turn(3) == 0 ? DType::kFloat32 : dtype;
        run.stochastic_rounding = dtype == DType::kBFloat16;
        run.clip_norm = turn(3) == 1 ? 0.0 : 0.5;
        FrozenConfiguration c{.run = run};
        if (dtype == DType::kFloat16) c.loss_scale = 1024.0F;
        add(c);
      }
    }
  }

  /// Placements that no preset has.
  void add_placements() {
    const AxisSet none{}, shard{Axis::kShard}, replicate{Axis::kReplicate},
        both = shard | replicate;
    const std::vector<Placement> placements{{none, none, both},
                                            {none, none, replicate},
                                            {none, shard, both},
                                            {none, both, both},
                                            {shard, shard, both},
                                            {shard, both, both},
                                            {replicate, replicate, replicate},
                                            {replicate, both, both},
                                            {both, both, both}};
    for (const Placement& placement : placements) {
      SmallRun run{.ranks = turn(2) == 0 ? 4 : 6, .replicas = 2};
      run.strategy = turn(3) == 0 ? "shard_grad_op" : "full_shard";  // kept, resharded
      run.micro_steps = turn(2, 2) * 2 + 1;
      run.policy = next_policy();
      add(FrozenConfiguration{.run = run, .placement = placement});
    }
  }

  void add_tiers() {
    struct Shares {
      double optimizer = 0.0, parameters = 0.0, gradients = 0.0;  // on the host
      double disk_optimizer = 0.0, disk_parameters = 0.0;
      bool activations = false;
    };
    const std::vector<Shares> tiers{
        {.optimizer = 1.0},
        {.optimizer = 0.5},
        {.parameters = 1.0},
        {.parameters = 0.5},
        {.gradients = 1.0},
        {.optimizer = 1.0, .gradients = 0.5},
        {.activations = true},
        {.optimizer = 1.0, .parameters = 1.0, .gradients = 1.0, .activations = true},
        {.disk_optimizer = 1.0},
        {.disk_optimizer = 0.5},
        {.disk_parameters = 1.0},
        {.disk_parameters = 0.5},
        {.optimizer = 0.75, .parameters = 0.5, .gradients = 0.5, .disk_optimizer = 0.5},
        {.gradients = 0.5, .disk_optimizer = 1.0, .disk_parameters = 1.0, .activations = true},
    };
    constexpr std::array kStrategies{"full_shard", "zero2", "shard_grad_op", "hybrid_shard",
                                     "no_shard"};
    for (const Shares& shares : tiers) {
      for (const int micro_steps : {1, 3}) {
        SmallRun run{.ranks = 2 + 2 * turn(2), .micro_steps = micro_steps};
        run.strategy = kStrategies[static_cast<std::size_t>(turn(5))];
        if (run.strategy == "hybrid_shard") run.ranks = 4;
        run.policy = next_policy();
        run.policy.prefetch_host = turn(3, 3);
        run.policy.prefetch_disk = turn(3, 4);
        run.policy.recompute = shares.activations ? Recompute::kFull : Recompute::kNone;
        run.dtype = turn(2, 2) == 0 ? DType::kFloat32 : DType::kBFloat16;
        run.offload_optimizer = shares.optimizer;
        run.offload_parameters = shares.parameters;
        run.offload_gradients = shares.gradients;
        run.disk_optimizer = shares.disk_optimizer;
        run.disk_parameters = shares.disk_parameters;
        run.offload_activations = shares.activations;
        add(run);
      }
    }
  }

  void add_adapters() {
    const AdapterConfig lora{.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dropout = 0.1F},
                             .target_pattern = "all-linear"};
    const AdapterConfig ia3{.kind = Ia3Options{.feedforward_pattern = ".*(down|o|mlp.c)_proj"},
                            .target_pattern = "all-linear"};
    for (const auto& [strategy, trainable] : {std::pair{"no_shard", ""},
                                              {"full_shard", ""},
                                              {"full_shard", "zero1"},
                                              {"shard_grad_op", "no_shard"},
                                              {"hybrid_shard", ""}}) {
      SmallRun run{.ranks = 4, .strategy = strategy, .micro_steps = turn(2) * 2 + 1};
      run.trainable_strategy = trainable;
      run.adapter = turn(3) == 0 ? ia3 : lora;
      run.policy = next_policy();
      run.family = turn(2) == 0 ? GptFamily::kGpt2 : GptFamily::kLlama;
      add(run);
    }
    for (const WeightFormat format : {WeightFormat::kNf4, WeightFormat::kFp4, WeightFormat::kInt8,
                                      WeightFormat::kNf4Double, WeightFormat::kFp4Double}) {
      for (const char* const strategy : {"full_shard", "shard_grad_op"}) {
        SmallRun run{.ranks = 2 + turn(3), .strategy = strategy, .micro_steps = turn(2, 2) * 2 + 1};
        run.trainable_strategy = turn(3) == 0 ? "" : "zero1";
        run.adapter = lora;
        run.base_format = format;
        run.family = GptFamily::kLlama;
        run.policy = next_policy();
        run.policy.recompute = turn(2, 3) == 0 ? Recompute::kNone : Recompute::kFull;
        run.dtype = turn(2) == 0 ? DType::kBFloat16 : DType::kFloat32;
        run.offload_parameters = turn(4) == 1 ? 1.0 : 0.0;
        run.disk_parameters = turn(4) == 3 ? 0.5 : 0.0;
        run.wrap.kind = turn(5) == 4 ? WrapPolicy::Kind::kNone : WrapPolicy::Kind::kLayer;
        add(run);
      }
    }
  }

  void add_others() {
    for (const char* const optimizer : {"sgd", "adamw8bit"}) add_optimizer(optimizer);
    for (const char* const strategy :
         {"no_shard", "zero1", "zero2", "full_shard", "hybrid_shard"}) {
      SmallRun run{.ranks = 4, .strategy = strategy, .micro_steps = turn(2) + 1};
      run.steps_in_flight = 2;
      run.policy = next_policy();
      run.offload_optimizer = turn(3) == 0 ? 0.5 : 0.0;
      add(run);
    }
    for (const WrapPolicy wrap :
         {WrapPolicy{WrapPolicy::Kind::kNone}, WrapPolicy{WrapPolicy::Kind::kSize, 3000}}) {
      for (const char* const strategy : {"zero1", "full_shard"}) {
        add(SmallRun{.ranks = 3, .strategy = strategy, .micro_steps = turn(2) + 1, .wrap = wrap});
      }
    }
    for (const auto& frozen : std::vector<std::vector<std::string>>{
             {"attn"}, {"bias", "ln"}, {"wte", "wpe", "h.0."}, {"h.1."}}) {
      SmallRun run{.ranks = 3, .strategy = turn(2) == 0 ? "full_shard" : "zero2"};
      run.offload_parameters = turn(4) == 0 ? 1.0 : 0.0;
      add(FrozenConfiguration{.run = run, .frozen = frozen});
    }
    for (const char* const strategy : {"zero1", "shard_grad_op", "full_shard", "hybrid_shard"}) {
      for (const bool snapshots : {false, true}) {
        SmallRun run{.ranks = 4, .strategy = strategy, .micro_steps = turn(2) + 1};
        run.dtype = turn(2, 2) == 0 ? DType::kFloat32 : DType::kBFloat16;
        run.offload_parameters = turn(3) == 0 ? 1.0 : 0.0;
        run.offload_optimizer = turn(4) == 3 ? 1.0 : 0.0;
        add(FrozenConfiguration{
            .run = run, .snapshots = snapshots, .evaluates = !snapshots || turn(3) == 1});
      }
    }
    add_optimizer("lion");
    for (const GptFamily family : {GptFamily::kGemma2, GptFamily::kGemma3, GptFamily::kBert}) {
      for (const char* const strategy : {"zero2", "full_shard"}) {
        SmallRun run{.ranks = 3, .strategy = strategy, .dropout = 0.1F};
        run.micro_steps = turn(2) + 1;
        run.policy = next_policy();
        run.policy.recompute = turn(2) == 0 ? Recompute::kSelective : Recompute::kNone;
        run.dtype = turn(3) == 0 ? DType::kBFloat16 : DType::kFloat32;
        run.family = family;
        add(run);
      }
    }
    for (const char* const strategy : {"zero1", "full_shard", "hybrid_full_optimizer"}) {
      SmallRun run{.ranks = 4, .strategy = strategy, .optimizer = "adafactor"};
      run.micro_steps = turn(2) + 1;
      run.dtype = turn(2) == 0 ? DType::kFloat32 : DType::kBFloat16;
      add(run);
    }
  }

  void add_optimizer(const char* name) {
    for (const char* const strategy : {"zero1", "full_shard", "hybrid_full_optimizer"}) {
      SmallRun run{.ranks = 4, .strategy = strategy, .optimizer = name};
      run.micro_steps = turn(2) + 1;
      run.offload_optimizer = turn(3) == 1 ? 1.0 : 0.0;
      run.disk_optimizer = turn(3) == 2 ? 1.0 : 0.0;
      add(run);
    }
  }

  std::vector<FrozenConfiguration> all_;
};

}  // namespace tessera::test
