#include "markup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"

namespace tessera {
namespace {

/// A coordinate: two decimals, without zeros at the end.
std::string coordinate(double value) {
  require(std::isfinite(value), ErrorCode::kInvalidArgument,
          "a drawing has a coordinate that is no number");
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string result = text.data();
  result.erase(result.find_last_not_of('0') + 1);
  if (result.back() == '.') result.pop_back();
  return result == "-0" ? "0" : result;
}

std::string attribute(std::string_view name, std::string_view value) {
  return concat(" ", name, "=\"", escaped(value), "\"");
}

std::string percent(std::string_view name, double value) {
  return attribute(name, coordinate(value) + "%");
}

std::string pixels(std::string_view name, double value) {
  return attribute(name, coordinate(value));
}

std::string closed(std::string_view element, std::string_view tip) {
  if (tip.empty()) return "/>\n";
  return concat("><title>", escaped(tip), "</title></", element, ">\n");
}

/// The round number at or above `value`: 1, 2 or 5 times a power of ten.
double round_up(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (value <= factor * power * (1.0 + 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return result;
}

std::string to_html(const Table& table) {
  std::string html = concat(R"(<div class="scroll" role="region" tabindex="0")",
                            attribute("aria-label", table.caption), "><table><caption>",
                            escaped(table.caption), "</caption>\n<thead><tr>");
  for (const std::string& name : table.header) {
    html += R"(<th scope="col">)" + escaped(name) + "</th>";
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      html += i == 0 ? R"(<th scope="row">)" + escaped(row[i]) + "</th>"
                     : "<td>" + escaped(row[i]) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

void Svg::bar(Place at, double width, double height, std::string_view css, std::string_view tip) {
  elements_ += "<rect" + percent("x", at.x) + pixels("y", at.y) + percent("width", width) +
               pixels("height", height) + attribute("class", css) + closed("rect", tip);
}

void Svg::line(Place from, Place to, std::string_view css) {
  elements_ += "<line" + percent("x1", from.x) + pixels("y1", from.y) + percent("x2", to.x) +
               pixels("y2", to.y) + attribute("class", css) + closed("line", "");
}

void Svg::text(Place at, Anchor anchor, std::string_view css, std::string_view words) {
  constexpr std::array kAnchors{"start", "middle", "end"};
  elements_ += "<text" + percent("x", at.x) + pixels("y", at.y) +
               attribute("text-anchor", kAnchors.at(static_cast<std::size_t>(anchor))) +
               attribute("class", css) + ">" + escaped(words) + "</text>\n";
}

void Svg::mark(Place at, std::string_view path, std::string_view css, std::string_view tip) {
  elements_ += "<svg" + percent("x", at.x) + pixels("y", at.y) +
               R"( width="1" height="1" overflow="visible"><path)" + attribute("d", path) +
               attribute("class", css) + closed("path", tip) + "</svg>\n";
}

void Svg::curve(const std::vector<Place>& places, double top, double height, std::string_view css,
                std::string_view style) {
  std::string points;
  for (const Place& place : places) {
    points +=
        (points.empty() ? "" : " ") + coordinate(place.x * 10.0) + "," + coordinate(place.y * 10.0);
  }
  elements_ += "<svg x=\"0\"" + pixels("y", top) + R"( width="100%")" + pixels("height", height) +
               R"( viewBox="0 0 1000 1000" preserveAspectRatio="none" overflow="visible">)" +
               R"(<polyline vector-effect="non-scaling-stroke")" + attribute("points", points) +
               attribute("class", css) + (style.empty() ? "" : attribute("style", style)) +
               "/></svg>\n";
}

std::string Svg::to_html(std::string_view id, std::string_view title, std::string_view description,
                         double height) const {
  return concat("<svg role=\"img\" width=\"100%\"", pixels("height", height),
                attribute("aria-labelledby", concat(id, "-title ", id, "-description")), "><title",
                attribute("id", concat(id, "-title")), ">", escaped(title), "</title><desc",
                attribute("id", concat(id, "-description")), ">", escaped(description), "</desc>\n",
                elements_, "</svg>\n");
}

std::string short_number(double value) {
  const double size = std::abs(value);
  const int decimals = size >= 99.95 || size == 0.0 ? 0
                       : size >= 9.995              ? 1
                       : size >= 0.9995             ? 2
                                                    : 3;
  std::array<char, 64> text{};
  // Below a thousandth, three digits need an exponent.
  const char* format = size > 0.0 && size < 1e-3 ? "%.*e" : "%.*f";
  std::snprintf(text.data(), text.size(), format, size < 1e-3 && size > 0.0 ? 2 : decimals, value);
  return text.data();
}

std::vector<Tick> round_ticks(double top) { return round_ticks_between(0.0, top); }

std::vector<Tick> round_ticks_between(double low, double high) {
  if (!(high > low)) high = low + (low == 0.0 ? 1.0 : std::abs(low) * 0.1);
  const double step = round_up((high - low) / 6.0);
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
  std::vector<Tick> ticks;
  for (double i = first; i <= last; ++i) {
    std::array<char, 400> text{};
    std::snprintf(text.data(), text.size(), "%.*f", decimals, i * step);
    ticks.push_back({i * step, text.data()});
  }
  return ticks;
}

std::vector<Tick> ticks_around(double low, double high) {
  constexpr double kTogether = 0.5;  // of the highest: below it, an axis from 0 shows them apart
  if (!(low > kTogether * high)) return round_ticks(high);
  const double room = std::max(0.25 * (high - low), 0.02 * high);
  return round_ticks_between(low - room, high);
}

std::vector<Tick> byte_ticks(double top) { return byte_ticks_around(0.0, top); }

std::vector<Tick> byte_ticks_around(double low, double high) {
  double unit = 1.0;
  while (high / unit >= 1024.0) unit *= 1024.0;
  std::vector<Tick> ticks = ticks_around(low / unit, high / unit);
  const std::string shown = format_bytes(static_cast<std::int64_t>(unit));
  const std::string name = shown.substr(shown.find(' '));
  for (Tick& tick : ticks) {
    tick.value *= unit;
    tick.label += name;
  }
  if (ticks.front().value == 0.0) ticks.front().label = "0";
  return ticks;
}

std::vector<std::string> wrapped_label(std::string_view label, std::size_t columns) {
  std::vector<std::string> lines;
  while (label.size() > columns) {
    std::size_t end = label.rfind(", ", columns - 1);
    end = end == label.npos ? label.rfind(' ', columns) : end + 1;
    if (end == label.npos || end == 0) end = columns;
    lines.emplace_back(label.substr(0, end));
    label.remove_prefix(end);
    if (label.starts_with(' ')) label.remove_prefix(1);
  }
  lines.emplace_back(label);
  return lines;
}

}  // namespace tessera
