#include "tessera/sharding/sample_division.h"

namespace tessera {

SampleDivision divide_samples(const Mesh& mesh, std::int64_t micro_steps,
                              std::int64_t micro_batch) {
  return {.micro_batch = micro_batch, .micro_steps = micro_steps, .places = mesh.size(kSampleAxes)};
}

int sample_place(const ShardNesting& nesting, int rank) { return nesting.index(kSampleAxes, rank); }

int sample_stride(const ShardNesting& nesting, Axis axis) {
  int stride = 1;
  bool inside = false;
  for (const Axis other : nesting.order(kSampleAxes)) {
    if (inside) stride *= nesting.mesh().size(other);
    inside = inside || other == axis;
  }
  return stride;
}

}  // namespace tessera
