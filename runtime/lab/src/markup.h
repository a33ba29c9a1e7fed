#pragma once

#include <string>
#include <string_view>
#include <vector>

// Text of an HTML page and of the SVG drawings in it.
namespace tessera {

/// With `<`, `>`, `&` and quotes as entities, and without control characters, which XML has not.
std::string escaped(std::string_view text);

/// Columns of a table with a header each; every row has as many cells.
struct Table {
  std::string caption;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows{};
};
/// A table in a region of its own, which scrolls sideways and takes the keyboard's focus. The first
/// cell of a row is its header.
std::string to_html(const Table& table);

/// A place on a drawing that is as wide as its surroundings: x in percent of it, y in pixels.
struct Place {
  double x = 0.0;
  double y = 0.0;
};

/// Where a text lies of its place.
enum class Anchor { kStart, kMiddle, kEnd };

/// A drawing that stretches sideways while its text, marks and height keep their pixels. Colours
/// are classes of the page's style.
class Svg {
 public:
  /// `tip` is shown under the pointer; "": none.
  void bar(Place at, double width, double height, std::string_view css, std::string_view tip = "");
  void line(Place from, Place to, std::string_view css);
  void text(Place at, Anchor anchor, std::string_view css, std::string_view words);
  /// `path` is SVG's, in pixels around the place.
  void mark(Place at, std::string_view path, std::string_view css, std::string_view tip = "");
  /// A line through places, y in percent of `height` below `top`; `style` is CSS.
  void curve(const std::vector<Place>& places, double top, double height, std::string_view css,
             std::string_view style = "");

  /// An element of the role img for a reader of the screen, `height` pixels high.
  std::string to_html(std::string_view id, std::string_view title, std::string_view description,
                      double height) const;

 private:
  std::string elements_;
};

/// A round number on an axis, and its words.
struct Tick {
  double value = 0.0;
  std::string label;
};
/// From 0 to the first round number that is at least `top` (not negative); at most seven.
std::vector<Tick> round_ticks(double top);
/// Ticks that are round in the unit of bytes that `top` calls for.
std::vector<Tick> byte_ticks(double top);
/// Between `low` and `high`, both at round numbers around them.
std::vector<Tick> round_ticks_between(double low, double high);

/// Three digits: "0.123", "12.3", "1234".
std::string short_number(double value);

/// Ticks for values from `low` to `high`, which are positive: from 0, or, where all lie together,
/// from a round number below them, so that differences show; draw_axis() says so.
std::vector<Tick> ticks_around(double low, double high);
std::vector<Tick> byte_ticks_around(double low, double high);

/// Words at most `columns` long each line, broken after commas or, if need be, at spaces.
std::vector<std::string> wrapped_label(std::string_view label, std::size_t columns);

}  // namespace tessera
