#include "train/loss_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::cli {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const LossPlot& plot, int columns, bool utf8) {
  std::ostringstream out;
  plot.print(out, columns, utf8);
  std::istringstream in(out.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Characters, not bytes.
std::size_t width_of(const std::string& line) {
  std::size_t width = 0;
  for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return width;
}

LossPlot falling(std::int64_t steps) {
  LossPlot plot(steps);
  for (std::int64_t step = 1; step <= steps; ++step) {
    plot.add(step, 1.0 + 4.0 * std::exp(-6.0 * static_cast<double>(step - 1) /
                                        static_cast<double>(steps)));
  }
  return plot;
}

TEST(LossPlot, DrawsALineOfStarsFromTheGreatestLossToTheLeast) {
  LossPlot plot(16);
  for (int step = 1; step <= 16; ++step) plot.add(step, 19 - step);
  EXPECT_EQ(lines_of(plot, 24, false), (std::vector<std::string>{
                                           " 18.00 |*",
                                           "       | **",
                                           "       |   **",
                                           "       |     *",
                                           "       |      **",
                                           "  9.67 |        **",
                                           "       |          *",
                                           "       |           **",
                                           "       |             **",
                                           "  3.00 |               *",
                                           "  loss +1        step 16",
                                       }));
}

TEST(LossPlot, IsAtMostEightyColumnsAndElevenLines) {
  for (const std::int64_t steps : {8, 71, 72, 500, 50'000}) {
    for (const int columns : {24, 60, 80, 300}) {
      for (const bool utf8 : {false, true}) {
        const std::vector<std::string> lines = lines_of(falling(steps), columns, utf8);
        ASSERT_THAT(lines, SizeIs(11)) << steps << " steps";
        for (const std::string& line : lines) {
          EXPECT_LE(width_of(line), static_cast<std::size_t>(std::min(columns, 80))) << line;
        }
      }
    }
  }
}

TEST(LossPlot, DrawsBrailleWhereTheLocaleHasIt) {
  const std::vector<std::string> lines = lines_of(falling(2000), 80, true);
  EXPECT_THAT(lines.front(), StartsWith("  4.93 │⠑⡄"));
  EXPECT_THAT(lines[9], StartsWith("  1.01 │ "));
  EXPECT_THAT(lines[9], HasSubstr("⠤⠤⢄⣀⣀"));
  EXPECT_THAT(lines.back(), StartsWith("  loss └1"));
  EXPECT_THAT(lines.back(), HasSubstr("step 2,000"));
}

TEST(LossPlot, LeavesOutWhatIsNotFiniteAndWhatHasNotBeenTrained) {
  LossPlot plot(100);
  for (int step = 1; step <= 50; ++step) {
    plot.add(step, step == 20 ? std::numeric_limits<double>::quiet_NaN() : 4.0);
  }
  const std::vector<std::string> lines = lines_of(plot, 80, false);
  EXPECT_EQ(width_of(lines.front()), 8U + 36U);  // half of the 72 columns
  EXPECT_THAT(std::vector<std::string>(lines.begin() + 1, lines.begin() + 5), Each("       |"));
}

TEST(LossPlot, PrintsNothingOfAFewSteps) {
  EXPECT_THAT(lines_of(falling(7), 80, true), SizeIs(0));
  EXPECT_THAT(lines_of(falling(100), 20, true), SizeIs(0));  // nor where there is no room
}

TEST(LossPlot, BrailleIsForLocalesInUtf8) {
  const auto in = [](const std::map<std::string, const char*>& variables) {
    return is_utf8_locale([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second;
    });
  };
  EXPECT_TRUE(in({{"LANG", "en_GB.UTF-8"}}));
  EXPECT_TRUE(in({{"LANG", "C.utf8"}, {"LC_ALL", ""}}));
  EXPECT_FALSE(in({{"LANG", "en_GB.UTF-8"}, {"LC_ALL", "C"}}));
  EXPECT_TRUE(in({{"LANG", "C"}, {"LC_CTYPE", "de_DE.UTF-8"}}));
  EXPECT_FALSE(in({{"LANG", "de_DE.ISO-8859-1"}}));
  EXPECT_FALSE(in({}));
}

}  // namespace
}  // namespace tessera::cli
