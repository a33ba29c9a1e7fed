#pragma once

#include <string>
#include <vector>

#include "report_parts.h"
#include "tessera/lab/comparison.h"

// The timeline of a step whose pipeline ranks each have their own, as papers draw it.
namespace tessera {

/// Whether spans are of several pipeline ranks.
bool has_stages(const std::vector<LaneSpan>& spans);

/// Draws a row for each pipeline rank below `top`: its passes, numbered by micro-step, over two
/// thin lanes, of messages and of collectives. `end`: seconds at the right edge. Returns the lower
/// edge.
double draw_pipeline(Svg& drawing, const std::vector<LaneSpan>& spans, double top, double end);

/// A row for each pass, and one for each pipeline rank's messages and collectives: pipeline rank,
/// what it is, begin and end in milliseconds.
std::vector<std::vector<std::string>> pipeline_rows(const std::vector<LaneSpan>& spans);

}  // namespace tessera
