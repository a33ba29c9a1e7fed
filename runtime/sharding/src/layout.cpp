#include "tessera/sharding/layout.h"

#include <algorithm>
#include <array>
#include <map>
#include <ranges>
#include <tuple>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/round_up.h"

namespace tessera {
namespace {

std::int64_t numel_of(const Layer& layer) {
  std::int64_t sum = 0;
  for (const ParameterSpec& spec : layer.parameters()) sum += spec.shape.numel();
  return sum;
}

/// For each layer, the index of its unit.
std::vector<int> assign_units(const Model& model, const WrapPolicy& policy) {
  std::vector<int> unit_of_layer;
  int unit = 0;
  std::int64_t unit_numel = 0;
  for (const auto& layer : model.layers) {
    const bool full = policy.kind == WrapPolicy::Kind::kLayer ||
                      (policy.kind == WrapPolicy::Kind::kSize && unit_numel >= policy.min_numel);
    if (full && !unit_of_layer.empty()) {
      ++unit;
      unit_numel = 0;
    }
    unit_of_layer.push_back(unit);
    unit_numel += numel_of(*layer);
  }
  return unit_of_layer;
}

int append(FlatParameter& flat, const ParameterSpec& spec, std::int64_t alignment) {
  const std::int64_t offset = round_up(flat.numel, alignment);
  flat.tensors.push_back({spec, offset, flat.decoded_numel});
  if (spec.format != WeightFormat::kNone) {
    flat.numel = offset + flat.tensors.back().numel();
    flat.decoded_numel += round_up(spec.shape.numel(), kFlatAlignment);
    return static_cast<int>(flat.tensors.size()) - 1;
  }
  const std::int64_t zeros = spec.row_multiple > 1 ? spec.shape.numel() / spec.shape[0] *
                                                         (padded_rows(spec) - spec.shape[0])
                                                   : 0;
  flat.numel = offset + spec.shape.numel() + zeros;
  return static_cast<int>(flat.tensors.size()) - 1;
}

/// The flat parameter, without tensors, that a tensor belongs to.
FlatParameter flat_for(const ParameterSpec& spec) {
  const bool quantized = spec.format != WeightFormat::kNone;
  const std::string kind = quantized ? "quantized" : spec.trainable ? "parameter" : "frozen";
  return {.name = spec.dtype ? concat(kind, '-', to_string(*spec.dtype)) : kind,
          .trainable = spec.trainable,
          .quantized = quantized,
          .dtype = spec.dtype,
          .tensors = {}};
}

/// The flat parameters that a unit's tensors need: trainable ones, frozen ones, quantised ones, and
/// of each those in the run's dtype first.
std::vector<FlatParameter> flats_of(const Model& model, const std::vector<int>& unit_of_layer,
                                    int unit) {
  std::vector<FlatParameter> flats;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    if (unit_of_layer[l] != unit) continue;
    for (const ParameterSpec& spec : model.layers[l]->parameters()) {
      FlatParameter flat = flat_for(spec);
      if (std::ranges::find(flats, flat.name, &FlatParameter::name) == flats.end()) {
        flats.push_back(std::move(flat));
      }
    }
  }
  std::ranges::stable_sort(flats, {}, [](const FlatParameter& flat) {
    return std::tuple(!flat.trainable, flat.quantized, flat.dtype.has_value());
  });
  return flats;
}

/// Elements of a row; vectors are columns.
std::int64_t columns_of(const ParameterSpec& spec) {
  return spec.shape.rank() < 2 ? 1 : spec.shape.numel() / std::max<std::int64_t>(spec.shape[0], 1);
}

/// The rows of each matrix that a parameter is made of.
std::vector<std::int64_t> matrix_rows(const ParameterSpec& spec) {
  if (!spec.joined.empty()) return spec.joined;
  return {spec.shape.rank() == 0 ? 1 : spec.shape[0]};
}

/// Where a layer finds a tied parameter in its mirror of the unit that has it, which is made if it
/// is new.
ParameterAddress mirror(ModelLayout& layout, const std::string& layer,
                        const ParameterAddress& tied) {
  const Unit home = layout.units[static_cast<std::size_t>(tied.unit)];
  const FlatParameter& flat = home.flats[static_cast<std::size_t>(tied.flat)];
  const std::string name = concat(layer, '.', home.name);
  auto unit = std::ranges::find(layout.units, name, &Unit::name);
  if (unit == layout.units.end()) {
    layout.units.push_back({.name = name, .flats = {}, .mirrors = tied.unit});
    unit = std::prev(layout.units.end());
  }
  auto copy = std::ranges::find(unit->flats, flat.name, &FlatParameter::name);
  if (copy == unit->flats.end()) {
    unit->flats.push_back(flat);
    copy = std::prev(unit->flats.end());
  }
  return {static_cast<int>(unit - layout.units.begin()),
          static_cast<int>(copy - unit->flats.begin()), tied.tensor};
}

}  // namespace

const FlatParameter* Unit::find(std::string_view flat) const {
  const auto found = std::ranges::find(flats, flat, &FlatParameter::name);
  return found == flats.end() ? nullptr : &*found;
}

std::int64_t FlatTensor::numel() const {
  return is_quantized() ? quantized_sizes(spec).bytes : spec.shape.numel();
}

ModelLayout make_layout(const Model& model, const WrapPolicy& policy, int parts,
                        std::int64_t alignment, bool tied_apart) {
  check(model);
  require(parts >= 1, ErrorCode::kInvalidArgument, "a layout for flat parameters in ", parts,
          " parts; there must be at least one");
  require(alignment >= kFlatAlignment && alignment % kFlatAlignment == 0,
          ErrorCode::kInvalidArgument, "a layout with an alignment of ", alignment,
          "; it must be a multiple of ", kFlatAlignment);
  const std::vector<int> unit_of_layer = assign_units(model, policy);
  ModelLayout layout;
  std::map<std::string, ParameterAddress> addresses;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const Layer& layer = *model.layers[l];
    const int unit_index = unit_of_layer[l];
    if (unit_index == static_cast<int>(layout.units.size())) {
      layout.units.push_back(
          {.name = layer.name(), .flats = flats_of(model, unit_of_layer, unit_index)});
    }
    Unit& unit = layout.units.back();
    for (const ParameterSpec& spec : layer.parameters()) {
      const bool quantized = spec.format != WeightFormat::kNone;
      require(!quantized || (!spec.trainable && spec.row_multiple == 1 && !spec.dtype),
              ErrorCode::kInvalidArgument, "parameter '", spec.name, "' is stored in ",
              to_string(spec.format),
              ": it cannot be trained, have rows of zeros or another dtype");
      const auto flat = std::ranges::find(unit.flats, flat_for(spec).name, &FlatParameter::name);
      const int index = append(*flat, spec, flat->trainable ? alignment : kFlatAlignment);
      addresses[spec.name] = {unit_index, static_cast<int>(flat - unit.flats.begin()), index};
    }
  }
  for (Unit& unit : layout.units) {
    for (FlatParameter& flat : unit.flats) {
      const std::int64_t multiple = flat.trainable ? alignment : kFlatAlignment;
      flat.padded_numel = round_up(flat.numel, parts * multiple);
    }
  }
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const auto& layer = model.layers[l];
    const bool at_an_end = layer == model.layers.front() || layer == model.layers.back();
    LayerLayout entry{.name = layer->name(),
                      .parameters = {},
                      .backward_reads_parameters = layer->backward_reads_parameters(),
                      .splits_backward = layer->splits_backward(),
                      .reads_batch = at_an_end || layer->reads_batch(),
                      .counted_classes = layer->counted_classes()};
    for (const ParameterSpec& spec : layer->parameters()) {
      entry.parameters.push_back(addresses.at(spec.name));
    }
    for (const std::string& name : layer->tied_parameters()) {
      const ParameterAddress& tied = addresses.at(name);
      entry.parameters.push_back(
          tied_apart && tied.unit != unit_of_layer[l] ? mirror(layout, layer->name(), tied) : tied);
    }
    layout.layers.push_back(std::move(entry));
  }
  return layout;
}

std::vector<PlacedMatrix> factored_matrices(const FlatParameter& flat) {
  std::vector<PlacedMatrix> all;
  std::int64_t place = 0;
  for (int t = 0; t < static_cast<int>(flat.tensors.size()); ++t) {
    const FlatTensor& tensor = flat.tensors[static_cast<std::size_t>(t)];
    const std::int64_t columns = columns_of(tensor.spec);
    std::int64_t offset = tensor.offset;
    for (const std::int64_t rows : matrix_rows(tensor.spec)) {
      const auto index = static_cast<std::int64_t>(all.size());
      all.push_back({factored_matrix(rows, columns, place, index), offset, t});
      offset += rows * columns;
      place += all.back().matrix.numbers();
    }
  }
  return all;
}

FactoredCounts factored_counts(const ParameterSpec& spec) {
  FactoredCounts counts;
  for (const std::int64_t rows : matrix_rows(spec)) {
    counts.numbers += factored_matrix(rows, columns_of(spec), 0, 0).numbers();
    ++counts.matrices;
  }
  return counts;
}

ShardNesting::ShardNesting(const Mesh& mesh, const Placement& placement)
    : mesh_(mesh), all_(mesh.axes()) {
  check(placement);
  const auto real = [this](AxisSet axes) { return axes & all_; };
  placement_ = {real(placement.parameter), real(placement.gradient), real(placement.optimizer)};
  const AxisSet frozen = real(placement.frozen_axes());
  if (frozen != placement_.parameter) placement_.frozen = frozen;
  std::array levels{placement_.parameter, placement_.gradient, placement_.optimizer, frozen, all_};
  std::ranges::stable_sort(levels, {}, [&mesh](AxisSet axes) { return mesh.size(axes); });
  AxisSet cut;
  for (const AxisSet level : levels) {
    for (const AxisRow& row : kAxisTable | std::views::reverse) {
      if ((level - cut).contains(row.axis)) cutting_order_.push_back(row.axis);
    }
    cut = cut | level;
  }
}

std::vector<Axis> ShardNesting::order(AxisSet axes) const {
  std::vector<Axis> out;
  std::ranges::copy_if(cutting_order_, std::back_inserter(out),
                       [&](Axis axis) { return axes.contains(axis); });
  return out;
}

int ShardNesting::index(AxisSet axes, int rank) const {
  int index = 0;
  for (const Axis axis : order(axes)) index = index * mesh_.size(axis) + mesh_.index(axis, rank);
  return index;
}

Range ShardNesting::range(std::int64_t padded_numel, AxisSet axes, int rank) const {
  const std::int64_t numel = padded_numel / mesh_.size(axes);
  return {index(axes, rank) * numel, numel};
}

}  // namespace tessera
