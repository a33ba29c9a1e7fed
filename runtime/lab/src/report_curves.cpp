#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "report_figures.h"
#include "report_parts.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera {
namespace {

// Pixels: of the area of a plot, and above it, for the name of the upward axis.
constexpr double kHeight = 280.0;
constexpr double kTop = 36.0;

/// The cost of a cell with a time.
struct PlottedCost {
  std::size_t number = 0;  ///< of the cell, from 1
  const ComparedCell* cell = nullptr;
  double bytes = 0.0;
  double tokens = 0.0;      ///< a second and rank
  double half_width = 0.0;  ///< of `tokens`, relative; 0: it has none
  FrontPlace front{};

  // The ends of its interval, as far as it is drawn: that of few repeats can be many times as long.
  double least() const { return tokens / (1.0 + std::min(half_width, kDrawn)); }
  double most() const { return tokens / (1.0 - std::min(half_width, kDrawn)); }

 private:
  static constexpr double kDrawn = 0.5;
};

std::vector<PlottedCost> costs_of(const Comparison& comparison) {
  const std::vector<FrontPlace> places = front_places(comparison);
  std::vector<PlottedCost> costs;
  for (std::size_t i = 0; i < comparison.cells.size(); ++i) {
    const ComparedCell& cell = comparison.cells[i];
    const std::optional<Estimate> time = shown_step_time(cell);
    if (!time || cell.tokens_per_step == 0 || time->value <= 0.0 || cell.ranks == 0) continue;
    costs.push_back({i + 1, &cell, static_cast<double>(shown_device_bytes(cell)),
                     static_cast<double>(cell.tokens_per_step) /
                         (time->value * static_cast<double>(cell.ranks)),
                     time->half_width.value_or(0.0) / time->value, places[i]});
  }
  return costs;
}

std::string front_words(FrontPlace place) {
  return concat(place.best ? "yes" : "no", place.open ? ", open" : "");
}

/// Horizontal lines with their labels inside; the first tick is the lower edge, the last the upper.
void draw_levels(Svg& drawing, const std::vector<Tick>& ticks) {
  const double low = ticks.front().value;
  const double high = ticks.back().value;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double y = kTop + kHeight * (1.0 - (ticks[i].value - low) / (high - low));
    drawing.line({0.0, y}, {100.0, y}, i == 0 ? "axis" : "grid");
    if (i > 0) drawing.text({0.0, y - 3.0}, Anchor::kStart, "tick", ticks[i].label);
  }
}

/// A point of the plot and the number of its cell.
struct NumberedPoint {
  Place at;
  std::string number;
};

/// Points that cover each other become one with all their numbers.
std::vector<NumberedPoint> joined_points(const std::vector<NumberedPoint>& points) {
  constexpr std::size_t kMost = 3;
  std::vector<NumberedPoint> joined;
  std::vector<std::size_t> members;
  for (const NumberedPoint& point : points) {
    const auto same = std::ranges::find_if(joined, [&](const NumberedPoint& other) {
      return std::abs(other.at.x - point.at.x) < 1.0 && std::abs(other.at.y - point.at.y) < 4.0;
    });
    if (same == joined.end()) {
      joined.push_back(point);
      members.push_back(1);
      continue;
    }
    const std::size_t count = ++members[static_cast<std::size_t>(same - joined.begin())];
    if (count <= kMost) same->number += ", " + point.number;
    if (count == kMost + 1) same->number += ", ...";
  }
  return joined;
}

/// A number beside each point, where it covers no mark and no other number; without such a place
/// there is none, and the list has it.
void draw_numbers(Svg& drawing, const std::vector<NumberedPoint>& points,
                  const std::vector<Place>& marks) {
  struct Offset {
    double x, y;
    Anchor anchor;
  };
  constexpr std::array<Offset, 8> kOffsets{{{0.0, -9.0, Anchor::kMiddle},
                                            {0.0, 19.0, Anchor::kMiddle},
                                            {1.0, -9.0, Anchor::kStart},
                                            {-1.0, -9.0, Anchor::kEnd},
                                            {1.0, 19.0, Anchor::kStart},
                                            {-1.0, 19.0, Anchor::kEnd},
                                            {1.5, 4.0, Anchor::kStart},
                                            {-1.5, 4.0, Anchor::kEnd}}};
  constexpr double kLetter = 1.6, kHigh = 12.0;  // percent of the width, pixels
  struct Box {
    double left, right, top, bottom;
    bool meets(const Box& other) const {
      return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
    }
  };
  const std::vector<NumberedPoint> all = joined_points(points);
  std::vector<Box> taken;
  for (const Place& mark : marks) {
    taken.push_back({mark.x - 0.8, mark.x + 0.8, mark.y - 5.0, mark.y + 5.0});
  }
  for (const NumberedPoint& point : all) {
    const double width = kLetter * static_cast<double>(point.number.size());
    for (const Offset& offset : kOffsets) {
      const Place at{point.at.x + offset.x, point.at.y + offset.y};
      const double left = offset.anchor == Anchor::kStart ? at.x
                          : offset.anchor == Anchor::kEnd ? at.x - width
                                                          : at.x - width / 2.0;
      const Box box{left, left + width, at.y - kHigh, at.y};
      const bool is_inside = left >= 0.0 && left + width <= 100.0 && box.bottom < kTop + kHeight;
      if (!is_inside || std::ranges::any_of(taken, [&](const Box& b) { return b.meets(box); })) {
        continue;
      }
      taken.push_back(box);
      drawing.text(at, offset.anchor, "number", point.number);
      break;
    }
  }
}

void draw_front(Svg& drawing, std::vector<Place> front) {
  std::ranges::sort(front, {}, &Place::x);
  std::vector<Place> steps;
  for (const Place& point : front) {
    if (!steps.empty()) steps.push_back({point.x, steps.back().y});
    steps.push_back(point);
  }
  drawing.curve(steps, kTop, kHeight, "front");
}

std::string cost_list(const Comparison& comparison, const std::vector<PlottedCost>& costs) {
  std::string html = "<ul class=\"key\">";
  for (const PlottedCost& cost : costs) {
    if (!cost.front.best && costs.size() > 12) continue;
    html += concat("<li><b>", cost.number, "</b> ",
                   escaped(concat(cell_label(comparison, *cost.cell), ": ",
                                  format_bytes(static_cast<std::int64_t>(cost.bytes)), ", ",
                                  short_number(cost.tokens), " tokens/s and rank",
                                  cost.front.best ? ", on the front" : "")),
                   "</li>");
  }
  return html + "</ul>\n";
}

/// A cell's losses in its first run.
struct PlottedLosses {
  std::string label;
  std::string group;  ///< of cells with the same bits; "": none
  const std::vector<double>* losses = nullptr;
  bool repeats_differ = false;
};

std::vector<PlottedLosses> losses_of(const Comparison& comparison) {
  const std::vector<std::string> groups = bit_groups(comparison);
  std::vector<PlottedLosses> cells;
  for (std::size_t i = 0; i < comparison.cells.size(); ++i) {
    const ComparedCell& cell = comparison.cells[i];
    if (cell.runs.empty() || cell.runs.front().losses.empty()) continue;
    cells.push_back({cell_label(comparison, cell), groups[i], &cell.runs.front().losses,
                     groups[i].empty() && cell.runs.size() > 1});
  }
  return cells;
}

/// Cells with the same bits take turns along their line, so that the colours of all are seen.
std::string dashes(std::size_t turn, std::size_t of) {
  if (of < 2) return "";
  constexpr int kDash = 14;
  return concat("stroke-dasharray:", kDash, " ", kDash * (of - 1),
                ";stroke-dashoffset:", of == 0 ? 0 : kDash * ((of - turn) % of));
}

/// Pieces of finite losses; x from the first step to the last of `steps`.
void draw_losses(Svg& drawing, const std::vector<double>& losses, std::size_t steps, double low,
                 double high, const std::string& css, const std::string& style) {
  std::vector<Place> piece;
  const double span = std::max<double>(1.0, static_cast<double>(steps) - 1.0);
  const auto finish = [&] {
    if (piece.size() == 1) {
      drawing.mark({piece[0].x, kTop + kHeight * piece[0].y / 100.0}, kDiamond, "curve " + css);
    } else if (!piece.empty()) {
      drawing.curve(piece, kTop, kHeight, "curve " + css, style);
    }
    piece.clear();
  };
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (std::isfinite(losses[i])) {
      piece.push_back({100.0 * static_cast<double>(i) / span,
                       100.0 * (1.0 - (losses[i] - low) / (high - low))});
    } else {
      finish();
    }
  }
  finish();
}

std::string same_and_other(const std::vector<PlottedLosses>& cells) {
  std::map<std::string, std::vector<std::string>> groups;
  std::vector<std::string> lines;
  for (const PlottedLosses& cell : cells) {
    if (!cell.group.empty()) {
      groups[cell.group].push_back(cell.label);
    } else {
      lines.push_back(cell.label + (cell.repeats_differ ? ": its repeats differ from each other"
                                                        : ": no other cell has the same bits"));
    }
  }
  std::string html = "<ul class=\"key\">";
  for (const auto& [name, members] : groups) {
    std::string words;
    for (const std::string& member : members) words += (words.empty() ? "" : "; ") + member;
    html += concat("<li><b>bit-identical</b> (", escaped(name), "): ", escaped(words),
                   members.size() == 1 ? " in all its repeats" : "", "</li>");
  }
  for (const std::string& line : lines) html += "<li>" + escaped(line) + "</li>";
  return html + "</ul>\n";
}

Table loss_table(const std::vector<PlottedLosses>& cells, std::size_t steps) {
  Table table{.caption = "Loss by step", .header = {"step"}};
  for (const PlottedLosses& cell : cells) table.header.push_back(cell.label);
  for (std::size_t i = 0; i < steps; ++i) {
    std::vector<std::string> row{std::to_string(i + 1)};
    for (const PlottedLosses& cell : cells) {
      if (i >= cell.losses->size()) {
        row.emplace_back("-");
      } else {
        const double loss = (*cell.losses)[i];
        char text[48];
        std::snprintf(text, sizeof(text), "%.9g", loss);
        row.emplace_back(std::isfinite(loss) ? text : "not finite");
      }
    }
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace

std::string pareto_figure(const Comparison& comparison) {
  FigureText text{
      "pareto", "Pareto front of memory and speed",
      "Memory that a rank needs of its device (right: more; on a GPU with what it "
      "takes beside the plan) and tokens per second and rank (up: more). "
      "On the Pareto front nothing else is both smaller and faster; it is open for a cell if "
      "another "
      "one that needs no more memory may be as fast, by the intervals of their times, which are "
      "vertical lines. Numbers are those of "
      "the list below and of the table."};
  const std::vector<PlottedCost> costs = costs_of(comparison);
  if (costs.empty()) return empty_figure(text, "No cell has a measured or simulated time.");
  text.legend = {{"c0", "on the Pareto front"}, {"other-point", "others"}};
  const auto [least, most] = std::ranges::minmax(costs, {}, &PlottedCost::bytes);
  const double slowest = std::ranges::min(costs, {}, &PlottedCost::least).least();
  const double fastest = std::ranges::max(costs, {}, &PlottedCost::most).most();
  const std::vector<Tick> across = byte_ticks_around(least.bytes, most.bytes);
  const std::vector<Tick> up = ticks_around(slowest, fastest);
  const auto place_of = [&](const PlottedCost& cost) {
    const auto share = [](double value, const std::vector<Tick>& ticks) {
      return (value - ticks.front().value) / (ticks.back().value - ticks.front().value);
    };
    return Place{100.0 * share(cost.bytes, across), 100.0 * (1.0 - share(cost.tokens, up))};
  };
  Svg drawing;
  draw_axis(drawing, across, kTop, kTop + kHeight);
  draw_levels(drawing, up);
  drawing.text(
      {0.0, 12.0}, Anchor::kStart, "tick",
      concat("tokens per second and rank",
             up.front().value != 0.0 ? concat("; this axis begins at ", up.front().label) : ""));
  Table table{.caption = "Costs of cells",
              .header = {"number", "cell", "device bytes", "tokens/s and rank", "time", "front"}};
  std::vector<Place> front;
  std::vector<NumberedPoint> numbers;
  std::vector<Place> marks;
  for (const PlottedCost& cost : costs) {
    const Place at = place_of(cost);
    if (cost.front.best) front.push_back(at);
    marks.push_back({at.x, kTop + kHeight * at.y / 100.0});
    if (cost.front.best || costs.size() <= 12) {
      numbers.push_back({marks.back(), std::to_string(cost.number)});
    }
    table.rows.push_back(
        {std::to_string(cost.number), cell_label(comparison, *cost.cell),
         std::to_string(static_cast<std::int64_t>(cost.bytes)), short_number(cost.tokens),
         cost.cell->runs.empty() ? "simulated" : "measured", front_words(cost.front)});
  }
  draw_front(drawing, front);
  for (const PlottedCost& cost : costs) {
    if (cost.half_width <= 0.0) continue;
    PlottedCost low = cost, high = cost;
    low.tokens = cost.least();
    high.tokens = cost.most();
    const Place from = place_of(low), to = place_of(high);
    drawing.line({from.x, kTop + kHeight * from.y / 100.0}, {to.x, kTop + kHeight * to.y / 100.0},
                 "whisker");
  }
  for (const bool best : {false, true}) {
    for (const PlottedCost& cost : costs) {
      if (cost.front.best != best) continue;
      const Place at = place_of(cost);
      drawing.mark({at.x, kTop + kHeight * at.y / 100.0}, "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
                   best ? "c0" : "other-point", cell_label(comparison, *cost.cell));
    }
  }
  draw_numbers(drawing, numbers, marks);
  return figure(text, drawing, kTop + kHeight + axis_height(across), table,
                cost_list(comparison, costs));
}

std::string loss_figure(const Comparison& comparison) {
  FigureText text{"losses", "Loss",
                  "Loss by step of each cell's first run. Cells with the same bits in every loss, "
                  "in the parameters after the last step and in every repeat share a line and take "
                  "turns along it."};
  const std::vector<PlottedLosses> cells = losses_of(comparison);
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  std::size_t steps = 0;
  std::map<std::string, std::size_t> members;
  for (const PlottedLosses& cell : cells) {
    steps = std::max(steps, cell.losses->size());
    if (!cell.group.empty()) ++members[cell.group];
    for (const double loss : *cell.losses) {
      if (!std::isfinite(loss)) continue;
      low = std::min(low, loss);
      high = std::max(high, loss);
    }
  }
  if (cells.empty()) return empty_figure(text, "No cell has run.");
  if (!(low <= high)) return empty_figure(text, "No loss of any cell is finite.");
  const std::vector<Tick> up = round_ticks_between(low, high);
  Svg drawing;
  draw_levels(drawing, up);
  drawing.text({0.0, 12.0}, Anchor::kStart, "tick", "loss");
  drawing.text({0.0, kTop + kHeight + 14.0}, Anchor::kStart, "tick", "step 1");
  drawing.text({100.0, kTop + kHeight + 14.0}, Anchor::kEnd, "tick", concat("step ", steps));
  std::map<std::string, std::size_t> turns;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string& group = cells[i].group;
    const std::size_t of = group.empty() ? 1 : members[group];
    draw_losses(drawing, *cells[i].losses, steps, up.front().value, up.back().value, colour(i),
                group.empty() ? "" : dashes(turns[group]++, of));
    text.legend.push_back({colour(i), cells[i].label});
  }
  return figure(text, drawing, kTop + kHeight + 20.0, loss_table(cells, steps),
                same_and_other(cells));
}

}  // namespace tessera
