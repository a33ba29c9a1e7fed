#include <algorithm>
#include <set>
#include <utility>

#include "report_figures.h"
#include "report_parts.h"
#include "report_pipeline.h"
#include "span_kinds.h"
#include "tessera/core/error.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera {
namespace {

/// A cell that stands for its strategy and its pipeline.
struct ShownStep {
  const ComparedCell* cell = nullptr;
  const std::vector<LaneSpan>* spans = nullptr;
  std::string_view source;  ///< "measured", "simulated"
};

std::vector<ShownStep> shown_steps(const Comparison& comparison) {
  std::vector<ShownStep> steps;
  std::set<std::string> seen;
  const auto name_of = [&](const ComparedCell& cell) {
    std::string name = cell.setting("strategy");
    for (const std::string& axis : comparison.axes) {
      if (axis.starts_with("pipeline")) name += " " + cell.setting(axis);
    }
    return name;
  };
  for (const ComparedCell& cell : comparison.cells) {
    ShownStep step{&cell, &cell.timeline, "measured"};
    if (cell.timeline.empty() && cell.predicted && cell.predicted->time) {
      step.spans = &cell.predicted->time->spans;
      step.source = "simulated";
    }
    if (step.spans->empty() || !seen.insert(name_of(cell)).second) continue;
    steps.push_back(step);
  }
  return steps;
}

/// In the order in which they first work.
std::vector<std::string> lanes_of(const std::vector<LaneSpan>& spans) {
  std::vector<std::string> lanes;
  for (const LaneSpan& span : spans) {
    if (std::ranges::find(lanes, span.lane) == lanes.end()) lanes.push_back(span.lane);
  }
  std::ranges::sort(lanes);  // "compute" is the first
  return lanes;
}

/// Returns the lower edge.
double draw_step(Svg& drawing, const Comparison& comparison, const ShownStep& step, double top,
                 double end) {
  for (const std::string& line :
       wrapped_label(concat(cell_label(comparison, *step.cell), ", ", step.source), 44)) {
    top += 17.0;
    drawing.text({0.0, top - 4.0}, Anchor::kStart, "label", line);
  }
  if (has_stages(*step.spans)) return draw_pipeline(drawing, *step.spans, top, end / 1e3) + 10.0;
  for (const std::string& lane : lanes_of(*step.spans)) {
    drawing.text({0.0, top + 11.0}, Anchor::kStart, "tick", lane);
    drawing.bar({0.0, top + 14.0}, 100.0, 14.0, "lane");
    for (const LaneSpan& span : *step.spans) {
      if (span.lane != lane || span.end <= span.begin) continue;
      const double milli = (span.end - span.begin) * 1e3;
      drawing.bar({100.0 * span.begin * 1e3 / end, top + 14.0}, 100.0 * milli / end, 14.0,
                  kind_of(span).css, concat(span.name, ": ", short_number(milli), " ms"));
    }
    top += 30.0;
  }
  return top + 10.0;
}

/// Lane, action, begin and end.
std::vector<std::vector<std::string>> rows_of(const std::vector<LaneSpan>& spans) {
  if (has_stages(spans)) return pipeline_rows(spans);
  std::vector<std::vector<std::string>> rows;
  for (const LaneSpan& span : spans) {
    rows.push_back(
        {span.lane, span.name, short_number(span.begin * 1e3), short_number(span.end * 1e3)});
  }
  return rows;
}

/// Each kind that is there, once.
std::vector<LegendEntry> legend_of(const std::vector<ShownStep>& steps) {
  std::vector<LegendEntry> legend;
  for (const SpanKind& kind : kSpanKinds) {
    const bool is_there = std::ranges::any_of(steps, [&](const ShownStep& step) {
      return std::ranges::any_of(*step.spans,
                                 [&](const LaneSpan& span) { return &kind_of(span) == &kind; });
    });
    const bool is_new = std::ranges::find(legend, kind.words, &LegendEntry::words) == legend.end();
    if (is_there && is_new) legend.push_back({std::string(kind.css), std::string(kind.words)});
  }
  return legend;
}

}  // namespace

std::string timeline_figure(const Comparison& comparison) {
  FigureText text{
      "timeline", "Timeline of a step",
      "The lanes of a rank in one step of the first cell of each strategy and pipeline, in "
      "milliseconds from the step's begin: rank 0's, or of a pipeline those of the first rank of "
      "each stage, whose passes have the numbers of their micro-steps. Passes of a rank's later "
      "stages are lighter, and the thin row below has its messages and collectives. Each name says "
      "whether the step was measured or simulated."};
  const std::vector<ShownStep> steps = shown_steps(comparison);
  if (steps.empty()) {
    return empty_figure(text, "No cell has a timeline: none is simulated.");
  }
  Table table{
      .caption = "Actions of a step, or passes of a pipeline, in milliseconds from its begin",
      .header = {"strategy", "source", "lane", "action", "begin", "end"}};
  double last = 0.0;
  for (const ShownStep& step : steps) {
    for (const LaneSpan& span : *step.spans) last = std::max(last, span.end * 1e3);
    for (std::vector<std::string>& row : rows_of(*step.spans)) {
      row.insert(row.begin(), {step.cell->setting("strategy"), std::string(step.source)});
      table.rows.push_back(std::move(row));
    }
  }
  text.legend = legend_of(steps);
  const std::vector<Tick> ticks = round_ticks(last);
  Svg drawing;
  double top = 0.0;
  for (const ShownStep& step : steps) {
    top = draw_step(drawing, comparison, step, top, ticks.back().value);
  }
  draw_axis(drawing, ticks, top - 6.0, top);
  return figure(text, drawing, top + 20.0, table);
}

}  // namespace tessera
