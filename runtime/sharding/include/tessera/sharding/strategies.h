#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/mesh.h"

namespace tessera {

/// Over which mesh axes each training state is sharded. Everything else is replicated.
/// Valid if parameter ⊆ gradient ⊆ optimizer: a gradient shard must cover no more than the
/// parameters it came from, and an optimizer shard no more than the gradients it reads.
struct Placement {
  AxisSet parameter;
  AxisSet gradient;
  AxisSet optimizer;
  /// Axes of parameters that are not trained; unset: as those that are. A unit is gathered at once,
  /// so where both are sharded, they are sharded alike.
  std::optional<AxisSet> frozen{};

  AxisSet frozen_axes() const { return frozen.value_or(parameter); }
  bool operator==(const Placement&) const = default;
};

/// Throws Error{kConfig} unless parameter ⊆ gradient ⊆ optimizer, and frozen parameters are sharded
/// as a placement can have them; says which axis is missing where.
void check(const Placement& placement);

/// In what order a gradient's contributions are added.
enum class ReductionOrder : std::uint8_t {
  /// By rank, whatever the mesh: every strategy gives the same bits. With a replicate axis the
  /// reduce-scatter of every micro-step runs over all ranks, and an all-gather over replicas
  /// follows once per step: with one micro-step as many bytes as `kHierarchical` sends (of fp32),
  /// but more of them between replicas; with several, more bytes.
  kRank,
  /// Reduce-scatter inside a replica, then once per step across replicas: fewest bytes on the slow
  /// links of a two-level network; bits depend on the mesh.
  kHierarchical,
};

std::string_view to_string(ReductionOrder order);
ReductionOrder parse_reduction_order(std::string_view text);

/// A named point in the space of placements. Only this table knows names.
struct Strategy {
  std::string name;
  Placement placement;
  bool reshard_after_forward = true;  ///< false: parameters stay unsharded until backward is done
  bool hybrid = false;                ///< meant for several replicas; see default_replicas
  std::string summary;                ///< one line for --help
};

/// Every preset: those without replicas in order of increasing sharding, then the hybrids.
const std::vector<Strategy>& strategies();

/// A preset by its name or one of its aliases (DDP, FULL_SHARD, zero3, ...), in any case and with
/// '-' for '_'. Throws Error{kConfig} that lists the names and the nearest one.
const Strategy& find_strategy(std::string_view name);

/// The replicas that a strategy has unless the user says how many: 1, and for a hybrid on several
/// nodes one per node, so that all-gathers stay inside a node (where nodes are not full alike, the
/// largest replicas that no node boundary cuts). On one node, or if `ranks_per_node` is 0
/// (unknown), the fewest that give several replicas of several ranks each. 1 if there is no such
/// number, which strategy_note() says.
int default_replicas(const Strategy& strategy, int ranks, int ranks_per_node = 0);

/// `ranks` ranks in `replicas` equal replicas. Throws Error{kConfig} unless replicas divides ranks.
Mesh make_mesh(int ranks, int replicas);

/// A note for the user if on this mesh a strategy is another one: "hybrid_shard with 1 replica
/// of 7 ranks is full_shard: ...", with the remedy. "" if it is what its name says.
std::string strategy_note(const Strategy& strategy, const Mesh& mesh);

}  // namespace tessera
