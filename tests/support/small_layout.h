#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/sharding/layout.h"

namespace tessera::test {

/// Elements that unit `unit` of small_layout has per rank, trainable and frozen: all different.
inline std::int64_t trainable_per_rank(int unit) { return kFlatAlignment * (unit + 2); }
inline std::int64_t frozen_per_rank(int unit) { return unit == 2 ? kFlatAlignment * 20 : 0; }

/// A trainable flat parameter of one tensor, without padding.
inline FlatParameter one_tensor(const std::string& name, std::int64_t numel) {
  FlatParameter flat;
  FlatTensor tensor;
  tensor.spec.name = name;
  tensor.spec.shape = {numel};
  flat.tensors.push_back(std::move(tensor));
  flat.numel = flat.padded_numel = numel;
  return flat;
}

/// The same, frozen.
inline FlatParameter one_frozen_tensor(const std::string& name, std::int64_t numel) {
  FlatParameter flat = one_tensor(name, numel);
  flat.name = "frozen";
  flat.trainable = false;
  return flat;
}

/// A unit's flat parameter of this name; an empty one if it has none.
inline FlatParameter flat_named(const Unit& unit, std::string_view name) {
  const FlatParameter* const flat = unit.find(name);
  return flat == nullptr ? FlatParameter() : *flat;
}

/// What make_layout gives for a chain embedding, h.0 ... , head, one unit per layer, whose head is
/// tied to the embedding; h.1 is frozen in part. Sizes are padded for `world_size`; each flat
/// parameter is one tensor.
inline ModelLayout small_layout(int world_size, int blocks = 3) {
  ModelLayout layout;
  const int units = blocks + 2;
  for (int u = 0; u < units; ++u) {
    const std::string name = u == 0           ? "embedding"
                             : u == units - 1 ? "head"
                                              : "h." + std::to_string(u - 1);
    Unit unit;
    unit.name = name;
    unit.flats.push_back(one_tensor(name + ".weight", trainable_per_rank(u) * world_size));
    LayerLayout layer;
    layer.name = name;
    layer.parameters = {{.unit = u, .flat = 0, .tensor = 0}};
    if (frozen_per_rank(u) > 0) {
      unit.flats.push_back(one_frozen_tensor(name + ".frozen", frozen_per_rank(u) * world_size));
      layer.parameters.push_back({.unit = u, .flat = 1, .tensor = 0});
    }
    if (u == units - 1) layer.parameters.push_back({.unit = 0, .flat = 0, .tensor = 0});
    layer.backward_reads_parameters = u != 0;
    layer.splits_backward = true;
    layer.reads_batch = u == 0 || u == units - 1;
    layout.units.push_back(std::move(unit));
    layout.layers.push_back(std::move(layer));
  }
  return layout;
}

}  // namespace tessera::test
