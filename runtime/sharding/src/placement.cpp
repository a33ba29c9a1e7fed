#include "tessera/sharding/placement.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "tessera/core/error.h"

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

std::string canonical(std::string_view name) {
  std::string out;
  for (const char c : name) {
    out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
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

Mesh make_mesh(int ranks, int replicas, bool hybrid) {
  require(ranks >= 1, ErrorCode::kConfig, "the number of ranks is ", ranks,
          "; it must be 1 or more");
  require(replicas >= 0, ErrorCode::kConfig, "the number of replicas is ", replicas,
          "; it must be 1 or more (0 lets Tessera choose)");
  if (replicas == 0) replicas = hybrid && ranks % 2 == 0 ? 2 : 1;
  require(replicas <= ranks, ErrorCode::kConfig, replicas, " replicas do not fit ", ranks,
          " ranks; use at most as many replicas as ranks");
  require(ranks % replicas == 0, ErrorCode::kConfig, ranks, " ranks cannot be divided into ",
          replicas, " equal replicas; choose a divisor of ", ranks);
  return Mesh{.replicate = replicas, .shard = ranks / replicas};
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace tessera
