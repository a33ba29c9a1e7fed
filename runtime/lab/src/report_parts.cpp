#include "report_parts.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// Pixels, and letters of a label's line that fit on a telephone.
constexpr double kLine = 17.0;
constexpr double kBar = 16.0;
constexpr double kGap = 12.0;
constexpr std::size_t kColumns = 40;

std::string opening(const FigureText& text) {
  return concat("<figure id=\"", text.id, "\" aria-labelledby=\"", text.id, "-name\">\n",
                "<figcaption><h2 id=\"", text.id, "-name\">", escaped(text.title), "</h2>\n<p>",
                escaped(text.sentence), "</p></figcaption>\n");
}

std::string legend_list(const std::vector<LegendEntry>& legend) {
  if (legend.empty()) return "";
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : legend) {
    html += concat("<li><svg class=\"swatch\" aria-hidden=\"true\" width=\"14\" height=\"14\">",
                   "<rect x=\"1\" y=\"1\" width=\"12\" height=\"12\" class=\"", entry.css,
                   "\"/></svg>", escaped(entry.words), "</li>");
  }
  return html + "</ul>\n";
}

/// Where an axis begins and ends.
struct AxisRange {
  double begin = 0.0;
  double end = 0.0;
};

AxisRange range_of(const std::vector<Tick>& ticks) {
  return {ticks.front().value, ticks.back().value};
}

/// The place of a value on an axis, in percent.
double share(double value, const AxisRange& range) {
  return std::clamp(100.0 * (value - range.begin) / (range.end - range.begin), 0.0, 100.0);
}

/// Its value does not fit beside the last line of its label.
bool needs_line(const BarRow& row) {
  return wrapped_label(row.label, kColumns).back().size() + row.value.size() + 2 > kColumns;
}

/// Returns the row's lower edge. `apart`: the value has a line of its own.
double draw_row(Svg& drawing, const BarRow& row, bool apart, double top, const AxisRange& range) {
  const std::vector<std::string> label = wrapped_label(row.label, kColumns);
  for (const std::string& line : label) {
    top += kLine;
    drawing.text({0.0, top - 6.0}, Anchor::kStart, "label", line);
  }
  if (apart) top += kLine;
  drawing.text({100.0, top - 6.0}, Anchor::kEnd, "value", row.value);
  for (const BarPart& part : row.parts) {
    const double begin = share(part.begin, range);
    const double past_end = share(part.end, range);
    if (part.css == "whisker") {
      drawing.line({begin, top + kBar / 2.0}, {past_end, top + kBar / 2.0}, part.css);
    } else {
      drawing.bar({begin, top}, past_end - begin, kBar, part.css, part.tip);
    }
  }
  for (const BarMark& mark : row.marks) {
    drawing.mark({share(mark.at, range), top + kBar / 2.0}, mark.path, mark.css, mark.tip);
  }
  return top + kBar + kGap;
}

double row_height(const BarRow& row, bool apart) {
  const std::size_t lines = wrapped_label(row.label, kColumns).size() + (apart ? 1 : 0);
  return kLine * static_cast<double>(lines) + kBar + kGap;
}

}  // namespace

std::string colour(std::size_t number) { return "c" + std::to_string(number % 8); }

std::string figure(const FigureText& text, const Svg& drawing, double height, const Table& table,
                   std::string_view extra) {
  return concat(opening(text), legend_list(text.legend),
                drawing.to_html(text.id, text.title,
                                text.sentence + " The table below has the same values.", height),
                extra, "<details><summary>Table</summary>\n", to_html(table),
                "</details>\n</figure>\n");
}

std::string empty_figure(const FigureText& text, std::string_view why) {
  return concat(opening(text), "<p class=\"empty\">", escaped(why), "</p>\n</figure>\n");
}

void draw_axis(Svg& drawing, const std::vector<Tick>& ticks, double top, double bottom) {
  const AxisRange range = range_of(ticks);
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double x = share(ticks[i].value, range);
    const Anchor anchor = i == 0                  ? Anchor::kStart
                          : i + 1 == ticks.size() ? Anchor::kEnd
                                                  : Anchor::kMiddle;
    drawing.line({x, top}, {x, bottom}, i == 0 ? "axis" : "grid");
    drawing.text({x, bottom + 14.0}, anchor, "tick", ticks[i].label);
  }
  if (range.begin != 0.0) {
    drawing.text({0.0, bottom + 30.0}, Anchor::kStart, "tick",
                 concat("This axis begins at ", ticks.front().label, ", not at 0."));
  }
}

double axis_height(const std::vector<Tick>& ticks) {
  return ticks.front().value != 0.0 ? 36.0 : 20.0;
}

std::string bar_figure(const FigureText& text, const std::vector<BarRow>& rows,
                       const std::vector<Tick>& ticks, const Table& table) {
  const bool apart = std::ranges::any_of(rows, needs_line);
  double height = 0.0;
  for (const BarRow& row : rows) height += row_height(row, apart);
  Svg drawing;
  draw_axis(drawing, ticks, 0.0, height);
  double top = 0.0;
  for (const BarRow& row : rows) top = draw_row(drawing, row, apart, top, range_of(ticks));
  return figure(text, drawing, height + axis_height(ticks), table);
}

}  // namespace tessera
