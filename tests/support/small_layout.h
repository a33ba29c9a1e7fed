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

/// A flat parameter of one tensor, without padding; empty if there are no elements.
inline FlatParameter one_tensor(const std::string& name, std::int64_t numel) {
  FlatParameter flat;
  if (numel == 0) return flat;
  FlatTensor tensor;
  tensor.spec.name = name;
  tensor.spec.shape = {numel};
  flat.tensors.push_back(std::move(tensor));
  flat.numel = flat.padded_numel = numel;
  return flat;
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
    unit.trainable = one_tensor(name + ".weight", trainable_per_rank(u) * world_size);
    unit.frozen = one_tensor(name + ".frozen", frozen_per_rank(u) * world_size);
    LayerLayout layer;
    layer.name = name;
    layer.parameters = {{.unit = u, .trainable = true, .tensor = 0}};
    if (unit.frozen.padded_numel > 0) {
      layer.parameters.push_back({.unit = u, .trainable = false, .tensor = 0});
    }
    if (u == units - 1) layer.parameters.push_back({.unit = 0, .trainable = true, .tensor = 0});
    layer.backward_reads_parameters = u != 0;
    layer.splits_backward = true;
    layer.reads_batch = u == 0 || u == units - 1;
    layout.units.push_back(std::move(unit));
    layout.layers.push_back(std::move(layer));
  }
  return layout;
}

}  // namespace tessera::test
