#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// A simulated step of rank 0 as a trace, see trace.h; the other ranks do the same. `spans`: of the
/// step, in virtual seconds (SimulatedStep::spans); the rest is as it was simulated with.
nlohmann::ordered_json to_trace(const Program& program, const ModelLayout& layout,
                                const Model& model, const ExecutorOptions& options,
                                const std::vector<ActionSpan>& spans, std::string_view strategy);

}  // namespace tessera
