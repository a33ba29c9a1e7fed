#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <vector>

namespace tessera::cli {

/// Whether the locale that the environment names (LC_ALL, else LC_CTYPE, else LANG) writes UTF-8.
bool is_utf8_locale(const std::function<const char*(const char*)>& environment);

/// The losses of a run, drawn as a curve of ten lines that are at most 80 columns wide. What it
/// keeps does not grow with the run: means over equal stretches of the steps.
class LossPlot {
 public:
  explicit LossPlot(std::int64_t steps);

  /// Adds the loss of a step, from 1. Losses that are not finite are left out.
  void add(std::int64_t step, double loss);
  /// `columns`: of the terminal. `utf8`: braille, two by four dots in a character; else stars.
  /// Prints nothing of a run whose losses are too few to make a curve.
  void print(std::ostream& out, int columns, bool utf8) const;

 private:
  struct Stretch {
    double sum = 0.0;
    std::int64_t count = 0;
  };

  std::int64_t steps_;
  std::vector<Stretch> stretches_;
};

}  // namespace tessera::cli
