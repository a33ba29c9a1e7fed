#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "markup.h"

// The parts of the report's figures.
namespace tessera {

/// A colour of the style, "c0" to "c7", or a class of its own, and what it stands for.
struct LegendEntry {
  std::string css;
  std::string words;
};

/// The texts around a drawing.
struct FigureText {
  std::string id;
  std::string title;
  std::string sentence;  ///< below the title: what is shown, and how it was measured
  std::vector<LegendEntry> legend{};
};

/// The figure of a drawing that is `height` pixels high; `extra` is HTML below it.
std::string figure(const FigureText& text, const Svg& drawing, double height, const Table& table,
                   std::string_view extra = "");
/// The figure of nothing.
std::string empty_figure(const FigureText& text, std::string_view why);

/// Part of a bar, in the axis' unit; of the class "whisker", a line in its middle.
struct BarPart {
  double begin = 0.0;
  double end = 0.0;
  std::string css;
  std::string tip;
};

/// A sign on a bar.
struct BarMark {
  double at = 0.0;
  std::string path;
  std::string css;
  std::string tip;
};

/// A bar with what stands above it: its name at the left, its value at the right.
struct BarRow {
  std::string label;
  std::string value;
  std::vector<BarPart> parts{};
  std::vector<BarMark> marks{};
};

/// Bars one below the other on a common axis, whose first and last ticks are its ends.
std::string bar_figure(const FigureText& text, const std::vector<BarRow>& rows,
                       const std::vector<Tick>& ticks, const Table& table);

/// Vertical lines with their labels below `bottom`; the first tick is the left edge, the last the
/// right one. An axis that does not begin at 0 says so.
void draw_axis(Svg& drawing, const std::vector<Tick>& ticks, double top, double bottom);
/// Pixels below the axis that its labels take.
double axis_height(const std::vector<Tick>& ticks);

/// "c0" to "c7", again and again.
std::string colour(std::size_t number);

/// A diamond, its tips at five pixels.
inline constexpr std::string_view kDiamond = "M0-5L5 0L0 5L-5 0Z";

/// "1.23" for 0.00123 s; "-" for nothing.
template <typename Seconds>
std::string milliseconds(const Seconds& seconds) {
  return seconds ? short_number(*seconds * 1e3) : "-";
}

}  // namespace tessera
