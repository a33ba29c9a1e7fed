#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/core/mesh.h"
#include "tessera/kernels/factored_moments.h"
#include "tessera/sharding/strategies.h"

namespace tessera {

/// Which layers are gathered and released together.
struct WrapPolicy {
  enum class Kind : std::uint8_t {
    kLayer,  ///< one unit per layer: for a GPT, per transformer block
    kSize,   ///< consecutive layers until a unit has at least min_numel parameters
    kNone,   ///< the whole model is one unit
  };
  Kind kind = Kind::kLayer;
  std::int64_t min_numel = 0;
};

/// Every tensor of a flat parameter starts at a multiple of this many elements (vector loads), and
/// shard boundaries are at multiples of it (blocks of the gradient norm). Of trainable ones, where
/// the optimizer's states are of blocks, at multiples of these, too: see flat_alignment().
inline constexpr std::int64_t kFlatAlignment = 64;

/// Where one tensor lies in its flat parameter.
struct FlatTensor {
  ParameterSpec spec;
  std::int64_t offset = 0;  ///< elements
  /// Where layers find a quantised one, in a flat parameter as if it were not.
  std::int64_t decoded_offset = 0;

  bool is_quantized() const { return spec.format != WeightFormat::kNone; }
  /// Elements that it takes in its flat parameter: its own, or the bytes of quantized_sizes().
  std::int64_t numel() const;
};

/// The tensors of one unit that are kept alike: all trainable or all frozen, in one format. Tensors
/// are laid out one after the other, aligned; the end is padded so that it can be cut into
/// flat_parts(). Elements of quantised ones are bytes: they are quantised before they are sharded,
/// so these do not depend on the number of ranks.
struct FlatParameter {
  /// "parameter", "frozen", "quantized", "parameter-fp32", ...: in the names of state tensors.
  std::string name = "parameter";
  bool trainable = true;
  bool quantized = false;
  std::optional<DType> dtype{};  ///< that its elements are kept in; unset: the run's
  bool fp8 = false;              ///< matrices that layers can read in E4M3; see with_fp8_apart()
  std::vector<FlatTensor> tensors;
  std::int64_t numel = 0;          ///< up to the end of the last tensor and of the zeros behind it
  std::int64_t padded_numel = 0;   ///< multiple of parts * alignment; 0 if no tensors
  std::int64_t decoded_numel = 0;  ///< of quantised tensors: elements as layers read them
};

struct Unit {
  std::string name;
  std::vector<FlatParameter> flats;  ///< none is empty; trainable ones first
  /// The unit, by index, of which this one has the flat parameters that another layer is tied to,
  /// so that the gradients of that layer are added up apart; -1: it is no mirror. See
  /// make_layout().
  int mirrors = -1;

  /// The flat parameter of this name; null: there is none.
  const FlatParameter* find(std::string_view flat) const;
};

/// A parameter of a layer: where it lies.
struct ParameterAddress {
  int unit = 0;
  int flat = 0;    ///< index in the unit
  int tensor = 0;  ///< index in the flat parameter
};

struct LayerLayout {
  std::string name;
  std::vector<ParameterAddress> parameters;  ///< own, then tied, as Layer::forward takes them
  bool backward_reads_parameters = true;
  bool splits_backward = false;
  bool reads_batch = false;          ///< the first and the last always
  std::int64_t counted_classes = 0;  ///< see Layer::counted_classes
  /// Matrices whose products are in fp8, with delayed scaling. Each has three histories.
  int fp8_histories = 0;
};

/// How a model's parameters are grouped and laid out. A tied parameter lies in the unit of the
/// layer that declares it.
struct ModelLayout {
  std::vector<Unit> units;
  std::vector<LayerLayout> layers;

  const FlatParameter& flat_of(const ParameterAddress& address) const {
    return units[static_cast<std::size_t>(address.unit)]
        .flats[static_cast<std::size_t>(address.flat)];
  }
  const FlatTensor& tensor_of(const ParameterAddress& address) const {
    return flat_of(address).tensors[static_cast<std::size_t>(address.tensor)];
  }
};

/// The most parts into which a placement on `mesh` may cut a flat parameter.
constexpr int flat_parts(const Mesh& mesh) { return mesh.size(kStateAxes); }

/// Pure function of the model's declarations. `parts`: flat_parts() of the mesh; offsets do not
/// depend on it, padding does. `alignment` is that of trainable parameters, a multiple of
/// kFlatAlignment. `tied_apart`: a layer that is tied to another unit's parameters gets a unit of
/// its own, a *mirror*, behind all others; see Unit::mirrors. Layers of a pipeline need it.
ModelLayout make_layout(const Model& model, const WrapPolicy& policy, int parts,
                        std::int64_t alignment = kFlatAlignment, bool tied_apart = false);

/// Elements [begin, begin + numel) of a flat parameter.
struct Range {
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::int64_t end() const { return begin + numel; }
  bool operator==(const Range&) const = default;
};

/// A matrix of a flat parameter, or a vector, that a factored optimizer keeps moments of: of a
/// parameter that joins published ones, each of these. Places and indices count within the flat
/// parameter.
struct PlacedMatrix {
  FactoredMatrix matrix{};
  std::int64_t offset = 0;  ///< its first element in the flat parameter
  int tensor = 0;           ///< FlatParameter::tensors that it is of, by index
};
std::vector<PlacedMatrix> factored_matrices(const FlatParameter& flat);
/// How many there are of a parameter, and how many numbers they have.
struct FactoredCounts {
  std::int64_t numbers = 0;
  int matrices = 0;
};
FactoredCounts factored_counts(const ParameterSpec& spec);

/// How a rank's shards nest. Axes shard in this order: the parameter's, those that the gradient
/// adds, those that the optimizer adds, the rest; so the optimizer's shard lies in the gradient's,
/// which lies in the parameter's. The frozen parameters' axes come in between, so that each set is
/// a beginning of the order. Axes of size 1 are left out of every set.
class ShardNesting {
 public:
  ShardNesting(const Mesh& mesh, const Placement& placement);

  const Mesh& mesh() const { return mesh_; }
  /// The placement without axes of size 1; `frozen` is set only if it is not `parameter`.
  const Placement& placement() const { return placement_; }
  /// All axes of size > 1, and those of them that are in kGradientAxes and in kStateAxes.
  AxisSet all_axes() const { return all_; }
  AxisSet gradient_axes() const { return all_ & kGradientAxes; }
  AxisSet state_axes() const { return all_ & kStateAxes; }
  /// The axes of `axes` in cutting order.
  std::vector<Axis> order(AxisSet axes) const;
  /// Index of `rank` among the ranks that differ along `axes`, in cutting order: its part in
  /// collectives over `axes`, and so its place in the order of reduction.
  int index(AxisSet axes, int rank) const;
  /// The elements that `rank` holds of a state sharded along `axes` (one of the placement's sets,
  /// or state_axes()).
  Range range(std::int64_t padded_numel, AxisSet axes, int rank) const;

 private:
  Mesh mesh_;
  Placement placement_;
  AxisSet all_;
  std::vector<Axis> cutting_order_;
};

}  // namespace tessera
