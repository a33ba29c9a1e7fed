#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/mesh.h"

namespace tessera {

/// Over which mesh axes each training state is cut into shards. Everything else is replicated.
/// Valid if parameter ⊆ gradient ⊆ optimizer: a gradient shard must cover no more than the
/// parameters it came from, and an optimizer shard no more than the gradients it reads.
struct Placement {
  AxisSet parameter;
  AxisSet gradient;
  AxisSet optimizer;
  bool operator==(const Placement&) const = default;
};

/// Throws Error{kConfig} unless parameter ⊆ gradient ⊆ optimizer; says which axis is missing where.
void check(const Placement& placement);

/// In what order a gradient's contributions are added.
enum class ReductionOrder : std::uint8_t {
  /// By rank, whatever the mesh: every strategy gives the same bits. With a replicate axis the
  /// reduce-scatter runs over all ranks, followed by an all-gather over replicas: as many bytes as
  /// `kHierarchical` sends, but more of them between replicas.
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
  bool hybrid = false;                ///< by default on a mesh with two replicas
  std::string summary;                ///< one line for --help
};

/// Every preset, in order of increasing sharding.
const std::vector<Strategy>& strategies();

/// A preset by its name or one of its aliases (DDP, FULL_SHARD, zero3, ...), in any case and with
/// '-' for '_'. Throws Error{kConfig} that lists the names and the nearest one.
const Strategy& find_strategy(std::string_view name);

/// The mesh of `ranks` ranks with `replicas` replicas; 0 chooses 2 for hybrid strategies on an even
/// number of ranks and 1 otherwise. Throws Error{kConfig} if replicas does not divide ranks.
Mesh make_mesh(int ranks, int replicas, bool hybrid);

/// The word of `candidates` nearest to `word` by edit distance, or "" if none is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera
