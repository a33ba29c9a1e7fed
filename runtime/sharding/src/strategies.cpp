#include "tessera/sharding/strategies.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "tessera/core/error.h"
#include "tessera/core/nearest_name.h"

namespace tessera {
namespace {

constexpr AxisSet kNone{};
constexpr AxisSet kShard{Axis::kShard};
constexpr AxisSet kBoth{Axis::kReplicate, Axis::kShard};

struct Preset {
  Strategy strategy;
  std::vector<std::string> aliases;  // canonical spelling: lower case, '_'
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> table{
      {{"no_shard",
        {kNone, kNone, kNone},
        false,
        false,
        "everything on every rank; gradients all-reduced once per step (DDP, ZeRO-0)"},
       {"ddp", "zero0", "zero_0", "distributed_data_parallel"}},
      {{"zero1", {kNone, kNone, kShard}, false, false, "optimizer state sharded (ZeRO-1)"},
       {"zero_1", "os"}},
      {{"zero2",
        {kNone, kShard, kShard},
        false,
        false,
        "optimizer state and gradients sharded (DeepSpeed ZeRO-2)"},
       {"zero_2"}},
      {{"shard_grad_op",
        {kShard, kShard, kShard},
        false,
        false,
        "all sharded; parameters gathered in forward stay until backward is done (SHARD_GRAD_OP)"},
       {}},
      {{"full_shard",
        {kShard, kShard, kShard},
        true,
        false,
        "all sharded; parameters gathered again for backward (FULL_SHARD, ZeRO-3)"},
       {"zero3", "zero_3", "fsdp"}},
      {{"hybrid_shard",
        {kShard, kShard, kShard},
        true,
        true,
        "full_shard inside a replica, replicated across (HYBRID_SHARD, HSDP, MiCS)"},
       {"hsdp", "mics"}},
      {{"hybrid_shard_zero2",
        {kShard, kShard, kShard},
        false,
        true,
        "shard_grad_op inside a replica, replicated across (HYBRID_SHARD_ZERO2)"},
       {"_hybrid_shard_zero2"}},
      {{"hybrid_full_optimizer",
        {kShard, kShard, kBoth},
        true,
        true,
        "hybrid_shard with the optimizer state sharded over all ranks (HFSDP)"},
       {"hfsdp"}},
  };
  return table;
}

/// Into how many parts a mesh cuts each state.
struct Parts {
  int parameter = 1, gradient = 1, optimizer = 1;
  bool operator==(const Parts&) const = default;
};

Parts parts_of(const Placement& placement, const Mesh& mesh) {
  return {.parameter = mesh.size(placement.parameter),
          .gradient = mesh.size(placement.gradient),
          .optimizer = mesh.size(placement.optimizer)};
}

/// The strategy without replicas that does the same as `strategy` on `mesh`; null if there is none.
const Strategy* plain_strategy_like(const Strategy& strategy, const Mesh& mesh) {
  Mesh one = mesh;
  one.set_size(Axis::kReplicate, 1);
  one.set_size(Axis::kShard, mesh.size(kBoth));
  const Parts parts = parts_of(strategy.placement, mesh);
  for (const Strategy& plain : strategies()) {
    if (plain.hybrid || parts_of(plain.placement, one) != parts) continue;
    const bool gathers = parts.parameter > 1;
    if (!gathers || plain.reshard_after_forward == strategy.reshard_after_forward) return &plain;
  }
  return nullptr;
}

std::string canonical(std::string_view name) {
  std::string out;
  for (const char c : name) {
    out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

void check(const Placement& p) {
  require(p.gradient.contains(p.parameter), ErrorCode::kConfig,
          "invalid placement: parameters are sharded over ", to_string(p.parameter),
          " but gradients only over ", to_string(p.gradient),
          "; gradients must be sharded over at least the axes of the parameters");
  require(p.optimizer.contains(p.gradient), ErrorCode::kConfig,
          "invalid placement: gradients are sharded over ", to_string(p.gradient),
          " but optimizer state only over ", to_string(p.optimizer),
          "; optimizer state must be sharded over at least the axes of the gradients");
  const AxisSet frozen = p.frozen_axes();
  require(frozen == p.parameter || frozen.empty() || p.parameter.empty(), ErrorCode::kConfig,
          "invalid placement: frozen parameters are sharded over ", to_string(frozen),
          " and trainable ones over ", to_string(p.parameter),
          "; units are gathered at once, so shard both alike, or one of them not at all");
  for (const AxisSet axes : {p.gradient, p.optimizer}) {
    require(axes.contains(frozen) || frozen.contains(axes), ErrorCode::kConfig,
            "invalid placement: frozen parameters are sharded over ", to_string(frozen),
            ", gradients over ", to_string(p.gradient), " and optimizer state over ",
            to_string(p.optimizer), "; each must shard further than the one before it");
  }
}

std::string_view to_string(ReductionOrder order) {
  return order == ReductionOrder::kRank ? "rank" : "hierarchical";
}

ReductionOrder parse_reduction_order(std::string_view text) {
  if (text == "rank") return ReductionOrder::kRank;
  if (text == "hierarchical") return ReductionOrder::kHierarchical;
  fail(ErrorCode::kConfig, "unknown reduction order '", text,
       "'; it is 'rank' (same bits for every strategy) or 'hierarchical' (fewest bytes between "
       "replicas)");
}

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> list = [] {
    std::vector<Strategy> out;
    for (const Preset& preset : presets()) out.push_back(preset.strategy);
    return out;
  }();
  return list;
}

const Strategy& find_strategy(std::string_view name) {
  const std::string wanted = canonical(name);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < presets().size(); ++i) {
    const Preset& preset = presets()[i];
    const auto& aliases = preset.aliases;
    if (preset.strategy.name == wanted || std::ranges::find(aliases, wanted) != aliases.end()) {
      return strategies()[i];
    }
    names.push_back(preset.strategy.name);
  }
  std::string list;
  for (const std::string& n : names) list += (list.empty() ? "" : ", ") + n;
  const std::string nearest = nearest_name(wanted, names);
  fail(ErrorCode::kConfig, "unknown strategy '", name, "'",
       nearest.empty() ? "." : "; did you mean '" + nearest + "'?", " Strategies: ", list);
}

int default_replicas(const Strategy& strategy, int ranks, int ranks_per_node) {
  if (!strategy.hybrid) return 1;
  if (ranks_per_node > 0 && ranks_per_node < ranks) {
    const int inside = std::gcd(ranks, ranks_per_node);
    if (inside > 1) return ranks / inside;
  }
  for (int replicas = 2; replicas <= ranks / replicas; ++replicas) {
    if (ranks % replicas == 0) return replicas;
  }
  return 1;
}

Mesh make_mesh(int ranks, int replicas) {
  require(ranks >= 1, ErrorCode::kConfig, "the number of ranks is ", ranks,
          "; it must be 1 or more");
  require(replicas >= 1, ErrorCode::kConfig, "the number of replicas is ", replicas,
          "; it must be 1 or more");
  require(replicas <= ranks, ErrorCode::kConfig, replicas, " replicas do not fit ", ranks,
          " ranks; use at most as many replicas as ranks");
  require(ranks % replicas == 0, ErrorCode::kConfig, ranks, " ranks cannot be divided into ",
          replicas, " equal replicas; choose a divisor of ", ranks);
  return {{Axis::kReplicate, replicas}, {Axis::kShard, ranks / replicas}};
}

std::string strategy_note(const Strategy& strategy, const Mesh& mesh) {
  const int ranks = mesh.size(kBoth);
  if (ranks == 1 && !strategy.hybrid) return "";  // one rank has nothing to share
  const Strategy* const same = plain_strategy_like(strategy, mesh);
  if (same == nullptr || same->name == strategy.name) return "";
  const auto count = [](int n, const char* noun) {
    return concat(n, ' ', noun, n == 1 ? "" : "s");
  };
  const std::string where =
      concat(strategy.name, " with ", count(mesh.size(Axis::kReplicate), "replica"), " of ",
             count(mesh.size(Axis::kShard), "rank"), " is ", same->name, ": ");
  if (!strategy.hybrid) {
    return where + "a replica has nothing to share; choose fewer replicas than ranks";
  }
  const int replicas = default_replicas(strategy, ranks);
  return where + (replicas > 1
                      ? concat("a hybrid needs several replicas of several ranks, e.g. `replicas` ",
                               replicas)
                      : concat(count(ranks, "rank"),
                               " cannot be divided into several replicas of "
                               "several ranks; ",
                               std::max(4, ranks + 1), " can"));
}

}  // namespace tessera
