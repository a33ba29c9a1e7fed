#include "train/loss_plot.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "output/terminal.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

constexpr int kRows = 10;
constexpr int kMaxColumns = 80;
constexpr int kMinColumns = 24;
constexpr int kMargin = 8;            // of the numbers beside the curve, and of the axis
constexpr std::int64_t kMinStep = 8;  // fewer losses make no curve
constexpr std::int64_t kStretches = 4 * kMaxColumns;  // more than can be told apart

/// Dots that are set in a grid, and its characters.
class Canvas {
 public:
  /// `across`, `down`: dots in a character.
  Canvas(int columns, int across, int down)
      : across_(across),
        down_(down),
        width_(columns * across),
        height_(kRows * down),
        dots_(static_cast<std::size_t>(width_ * height_)) {}

  int columns() const { return width_ / across_; }
  int width() const { return width_; }
  int height() const { return height_; }
  void set(int x, int y) { dots_[static_cast<std::size_t>(y * width_ + x)] = true; }

  std::string row(int row) const {
    std::string text;
    std::size_t drawn = 0;  // what follows is blank
    for (int x = 0; x < width_; x += across_) {
      const int bits = character(x, row * down_);
      text += across_ == 1 ? (bits != 0 ? "*" : " ") : (bits != 0 ? braille(bits) : " ");
      if (bits != 0) drawn = text.size();
    }
    text.resize(drawn);
    return text;
  }

 private:
  bool dot(int x, int y) const { return dots_[static_cast<std::size_t>(y * width_ + x)]; }

  int character(int x, int y) const {
    // Unicode numbers the dots of a braille character down its columns, and the fourth row last.
    constexpr int kBits[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    int bits = 0;
    for (int dx = 0; dx < across_; ++dx) {
      for (int dy = 0; dy < down_; ++dy) bits |= dot(x + dx, y + dy) ? kBits[dx][dy] : 0;
    }
    return bits;
  }

  static std::string braille(int bits) {  // U+2800 + bits, in UTF-8
    return {static_cast<char>(0xE2), static_cast<char>(0xA0 + bits / 64),
            static_cast<char>(0x80 + bits % 64)};
  }

  int across_, down_, width_, height_;
  std::vector<bool> dots_;
};

/// A number of at most kMargin - 2 characters, to the right.
std::string label(double value) {
  std::string text = fixed(value, std::abs(value) < 100.0 ? 2 : 0);
  if (text.size() > kMargin - 2) text = with_prefix(value);
  return std::string(kMargin - 2 - std::min<std::size_t>(text.size(), kMargin - 2), ' ') + text;
}

}  // namespace

bool is_utf8_locale(const std::function<const char*(const char*)>& environment) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = environment(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string text = lowercase(value);
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

LossPlot::LossPlot(std::int64_t steps)
    : steps_(std::max<std::int64_t>(1, steps)),
      stretches_(static_cast<std::size_t>(std::min(steps_, kStretches))) {}

void LossPlot::add(std::int64_t step, double loss) {
  if (!std::isfinite(loss) || step < 1 || step > steps_) return;
  const auto count = static_cast<double>(stretches_.size());
  const auto at =
      static_cast<std::size_t>(static_cast<double>(step - 1) / static_cast<double>(steps_) * count);
  Stretch& stretch = stretches_[std::min(at, stretches_.size() - 1)];
  stretch.sum += loss;
  ++stretch.count;
}

void LossPlot::print(std::ostream& out, int columns, bool utf8) const {
  std::int64_t added = 0;
  for (const Stretch& stretch : stretches_) added += stretch.count;
  if (added < kMinStep || columns < kMinColumns) return;
  Canvas canvas(std::min(columns, kMaxColumns) - kMargin, utf8 ? 2 : 1, utf8 ? 4 : 1);

  // The mean loss at each dot of the width; a run of few steps has dots without one.
  std::vector<std::optional<double>> curve(static_cast<std::size_t>(canvas.width()));
  double least = INFINITY, greatest = -INFINITY;
  const std::size_t last = stretches_.size() - 1;
  for (std::size_t x = 0; x < curve.size(); ++x) {
    const std::size_t begin = x * stretches_.size() / curve.size();
    const std::size_t end = std::max(begin + 1, (x + 1) * stretches_.size() / curve.size());
    Stretch sum;
    for (std::size_t i = begin; i < end && i <= last; ++i) {
      sum.sum += stretches_[i].sum;
      sum.count += stretches_[i].count;
    }
    if (sum.count == 0) continue;
    curve[x] = sum.sum / static_cast<double>(sum.count);
    least = std::min(least, *curve[x]);
    greatest = std::max(greatest, *curve[x]);
  }

  const double range = greatest > least ? greatest - least : 1.0;
  int before = -1;  // none
  for (std::size_t x = 0; x < curve.size(); ++x) {
    if (!curve[x]) {
      before = -1;
      continue;
    }
    const auto y = static_cast<int>(
        std::lround((greatest - *curve[x]) / range * static_cast<double>(canvas.height() - 1)));
    int from = y;  // steep places have a line, too
    if (before >= 0 && before != y) from = before < y ? before + 1 : before - 1;
    for (int dot = std::min(from, y); dot <= std::max(from, y); ++dot) {
      canvas.set(static_cast<int>(x), dot);
    }
    before = y;
  }

  const std::string_view edge = utf8 ? "│" : "|";
  for (int row = 0; row < kRows; ++row) {
    const double value = greatest - range * row / (kRows - 1);
    const bool labelled = row == 0 || row == kRows / 2 || row == kRows - 1;
    out << (labelled ? label(value) : std::string(kMargin - 2, ' ')) << ' ' << edge
        << canvas.row(row) << "\n";
  }
  const std::string end = "step " + with_commas(steps_);
  const auto room = static_cast<std::size_t>(canvas.columns()) - 1;
  out << "  loss " << (utf8 ? "└" : "+") << "1"
      << std::string(room - std::min(end.size(), room), ' ') << end << "\n";
}

}  // namespace tessera::cli
