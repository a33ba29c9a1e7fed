#pragma once

#include <string>

#include "tessera/lab/comparison.h"

// The figures of the report, each an HTML element with the id that its function names, a sentence,
// a drawing and a table of the same values; a figure without values says so.
namespace tessera {

std::string memory_figure(const Comparison& comparison);         ///< "memory"
std::string step_time_figure(const Comparison& comparison);      ///< "step-time"
std::string traffic_figure(const Comparison& comparison);        ///< "traffic"
std::string communication_figure(const Comparison& comparison);  ///< "communication"
std::string timeline_figure(const Comparison& comparison);       ///< "timeline"
std::string pareto_figure(const Comparison& comparison);         ///< "pareto"
std::string loss_figure(const Comparison& comparison);           ///< "losses"

}  // namespace tessera
