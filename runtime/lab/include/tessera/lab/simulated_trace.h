#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/sharding/executor.h"

namespace tessera {

/// A simulated step of the first rank of each pipeline rank as a trace, see trace.h; the other
/// ranks of a stage do the same. `ranks` and `spans` are by pipeline rank: the programs of which
/// the first ran, and the step in virtual seconds (SimulatedStep::spans); the rest is as it was
/// simulated with.
nlohmann::ordered_json to_trace(const std::vector<std::vector<Program>>& ranks,
                                const ModelLayout& layout, const Model& model,
                                const ExecutorOptions& options,
                                const std::vector<std::vector<ActionSpan>>& spans,
                                std::string_view strategy);

}  // namespace tessera
