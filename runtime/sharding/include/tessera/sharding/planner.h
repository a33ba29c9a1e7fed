#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/plan_options.h"
#include "tessera/sharding/schedule.h"
#include "tessera/sharding/state_buffers.h"

namespace tessera {

/// Plans one training step, or (Purpose::kEvaluate) the forward passes of an evaluation. A pure
/// function: no device, no clock, no randomness; linear in the number of actions. Throws
/// Error{kConfig} for an invalid placement or a negative depth, Error{kInvalidArgument} for a
/// layout that cannot be cut into flat_parts() of the mesh. Runs the passes of passes.h, up to the
/// one named `last`; if it is empty, all. Throws Error{kConfig} with their names for another.
Schedule plan(const ModelLayout& layout, const PlanOptions& options, std::string_view last = "");

/// By layer: the shape of its input, of a micro-batch of so many samples; (0) of the first layer,
/// whose input is the batch's. Runs forward on shapes alone.
std::vector<Shape> layer_input_shapes(const Model& model, const ModelLayout& layout,
                                      const BatchSource& source, std::int64_t samples,
                                      DType parameter_dtype);
/// The elements of these.
std::vector<std::int64_t> layer_input_numels(const Model& model, const ModelLayout& layout,
                                             const BatchSource& source, std::int64_t samples,
                                             DType parameter_dtype);

/// See PipelineOptions::input_numels. `layer_inputs` is layer_input_numels().
std::vector<std::int64_t> stage_input_numels(const std::vector<std::int64_t>& layer_inputs,
                                             const std::vector<int>& first_layers);

/// A training step with a snapshot of the state as it is before the step: copies to host
/// memory on a lane of their own, beside the step's work, in the order of the updates, each of
/// which waits for what it would overwrite. It has of every state tensor this rank's part if all
/// axes shard it. Parameters that are kept beside their fp32 master weights follow from these and
/// are not copied, unless `rounded_at_random`.
Schedule with_snapshot(const Schedule& step, bool rounded_at_random);

}  // namespace tessera
