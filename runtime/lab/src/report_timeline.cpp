#include <algorithm>
#include <array>
#include <set>

#include "report_figures.h"
#include "report_parts.h"
#include "tessera/core/error.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera {
namespace {

struct SpanKind {
  std::string_view name;  ///< with which an action's begins
  std::string_view css;
};
/// The last stands for all others.
constexpr std::array<SpanKind, 7> kKinds{{{"forward", "c0"},
                                          {"backward", "c2"},
                                          {"all-gather", "c1"},
                                          {"reduce-scatter", "c3"},
                                          {"all-reduce", "c5"},
                                          {"optimizer-step", "c4"},
                                          {"other", "c6"}}};

std::size_t kind_of(const LaneSpan& span) {
  for (std::size_t i = 0; i + 1 < kKinds.size(); ++i) {
    if (span.name.starts_with(kKinds[i].name)) return i;
  }
  return kKinds.size() - 1;
}

/// A cell that stands for its strategy.
struct ShownStep {
  const ComparedCell* cell = nullptr;
  const std::vector<LaneSpan>* spans = nullptr;
  std::string_view source;  ///< "measured", "simulated"
};

std::vector<ShownStep> shown_steps(const Comparison& comparison) {
  std::vector<ShownStep> steps;
  std::set<std::string> seen;
  for (const ComparedCell& cell : comparison.cells) {
    ShownStep step{&cell, &cell.timeline, "measured"};
    if (cell.timeline.empty() && cell.predicted && cell.predicted->time) {
      step.spans = &cell.predicted->time->spans;
      step.source = "simulated";
    }
    if (step.spans->empty() || !seen.insert(cell.setting("strategy")).second) continue;
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
  for (const std::string& lane : lanes_of(*step.spans)) {
    drawing.text({0.0, top + 11.0}, Anchor::kStart, "tick", lane);
    drawing.bar({0.0, top + 14.0}, 100.0, 14.0, "lane");
    for (const LaneSpan& span : *step.spans) {
      if (span.lane != lane || span.end <= span.begin) continue;
      const double milli = (span.end - span.begin) * 1e3;
      drawing.bar({100.0 * span.begin * 1e3 / end, top + 14.0}, 100.0 * milli / end, 14.0,
                  kKinds[kind_of(span)].css, concat(span.name, ": ", short_number(milli), " ms"));
    }
    top += 30.0;
  }
  return top + 10.0;
}

}  // namespace

std::string timeline_figure(const Comparison& comparison) {
  FigureText text{"timeline", "Timeline of a step",
                  "Rank 0's lanes in one step of the first cell of each strategy, in milliseconds "
                  "from the step's begin. Each name says whether the step was measured or "
                  "simulated."};
  const std::vector<ShownStep> steps = shown_steps(comparison);
  if (steps.empty()) {
    return empty_figure(text, "No cell has a timeline: none is simulated.");
  }
  Table table{.caption = "Actions of a step, in milliseconds from its begin",
              .header = {"strategy", "source", "lane", "action", "begin", "end"}};
  double last = 0.0;
  std::set<std::size_t> kinds;
  for (const ShownStep& step : steps) {
    for (const LaneSpan& span : *step.spans) {
      last = std::max(last, span.end * 1e3);
      kinds.insert(kind_of(span));
      table.rows.push_back({step.cell->setting("strategy"), std::string(step.source), span.lane,
                            span.name, short_number(span.begin * 1e3),
                            short_number(span.end * 1e3)});
    }
  }
  for (const std::size_t kind : kinds) {
    text.legend.push_back({std::string(kKinds[kind].css), std::string(kKinds[kind].name)});
  }
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
