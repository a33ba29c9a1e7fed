#include "tessera/lab/comparison_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/lab/pareto.h"

namespace tessera::comparison_figures_test {
namespace {

using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

CellRun run_of(std::vector<double> seconds, const std::string& hash = "", double loss = 1.0) {
  return {.step_seconds = std::move(seconds), .losses = {loss}, .parameters_sha256 = hash};
}

Comparison of_cells(const std::vector<std::vector<CellRun>>& runs) {
  Comparison all{.axes = {"strategy", "ranks"}};
  for (const auto& cell : runs) {
    all.cells.push_back({.ranks = 2, .tokens_per_step = 100, .runs = cell});
  }
  return all;
}

TEST(ComparisonFigures, AMedianIsTheMiddle) {
  EXPECT_EQ(median({}), 0.0);
  EXPECT_EQ(median({3.0}), 3.0);
  EXPECT_EQ(median({9.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({9.0, 1.0, 2.0, 4.0}), 3.0);
}

TEST(ComparisonFigures, AnIntervalIsByStudentsT) {
  EXPECT_FALSE(mean_of({5.0}).half_width);
  const Estimate two = mean_of({1.0, 3.0});
  EXPECT_DOUBLE_EQ(two.value, 2.0);
  EXPECT_NEAR(*two.half_width, 12.706, 1e-9);  // s = sqrt 2, n = 2
  const Estimate three = mean_of({1.0, 2.0, 3.0});
  EXPECT_NEAR(*three.half_width, 4.303 / std::sqrt(3.0), 1e-9);
  EXPECT_EQ(*mean_of({2.0, 2.0, 2.0}).half_width, 0.0);
  // Beyond the table: scipy.stats.t.ppf(0.975, 40) is 2.0211.
  std::vector<double> many;
  for (int i = 0; i < 41; ++i) many.push_back(i % 2 == 0 ? 1.0 : -1.0);
  double squares = 0.0;
  for (const double value : many) squares += std::pow(value - 1.0 / 41.0, 2);
  EXPECT_NEAR(*mean_of(many).half_width, 2.0211 * std::sqrt(squares / 40.0 / 41.0), 1e-3);
}

TEST(ComparisonFigures, AStepTimeIsTheMeanOfMedians) {
  const ComparedCell cell{.runs = {run_of({1.0, 1.0, 100.0}), run_of({3.0}), run_of({})}};
  EXPECT_DOUBLE_EQ(step_time(cell)->value, 2.0);
  EXPECT_FALSE(step_time(ComparedCell{}));
}

TEST(ComparisonFigures, WhatIsNotMeasuredIsPredicted) {
  ComparedCell cell;
  EXPECT_FALSE(shown_step_time(cell));
  EXPECT_EQ(shown_peak(cell).total, 0);
  cell.predicted = CellPrediction{.peak = {.total = 7, .by_category = {}},
                                  .device_bytes = 10,
                                  .time = SimulatedTime{4.0, 0.5, 0.75}};
  EXPECT_EQ(shown_step_time(cell)->value, 4.0);
  EXPECT_FALSE(shown_step_time(cell)->half_width);
  EXPECT_EQ(shown_exposed(cell), 0.5);
  EXPECT_EQ(exposed_share(cell), 0.125);
  EXPECT_EQ(shown_communication(cell), 0.75);
  EXPECT_EQ(shown_peak(cell).total, 7);
  EXPECT_EQ(shown_device_bytes(cell), 10);
  cell.runs = {run_of({2.0})};
  cell.runs[0].peak.total = 8;
  EXPECT_EQ(shown_step_time(cell)->value, 2.0);
  EXPECT_FALSE(shown_exposed(cell));
  EXPECT_EQ(shown_peak(cell).total, 8);
  EXPECT_EQ(shown_device_bytes(cell), 11);
}

TEST(ComparisonFigures, MessagesAndBubblesAreSharesOfTheSimulatedStep) {
  ComparedCell cell{.settings = {{"pipeline", "2"}}, .runs = {run_of({2.0})}};
  cell.predicted = CellPrediction{.time = SimulatedTime{.step_seconds = 4.0,
                                                        .exposed_message_seconds = 1.0,
                                                        .bubble_seconds = 2.0}};
  EXPECT_EQ(message_share(cell), 0.25);
  EXPECT_EQ(bubble_share(cell), 0.5);
  EXPECT_FALSE(exposed_share(cell));  // it has run, and not timed its communication
  cell.settings = {{"pipeline", "1"}};
  EXPECT_FALSE(message_share(cell));
}

TEST(ComparisonFigures, CellsWithTheSameBitsHaveALetter) {
  const auto groups = [](const std::vector<std::vector<CellRun>>& runs) {
    return bit_groups(of_cells(runs));
  };
  EXPECT_THAT(groups({{run_of({}, "a")}, {run_of({}, "b")}, {run_of({}, "a")}}),
              ElementsAre("A", "", "A"));
  // A cell's own repeats are compared; where they differ it has none.
  EXPECT_THAT(groups({{run_of({}, "a"), run_of({}, "a")}, {run_of({}, "b"), run_of({}, "a")}}),
              ElementsAre("A", ""));
  EXPECT_THAT(groups({{run_of({}, "a", 1.0)}, {run_of({}, "a", std::nextafter(1.0, 2.0))}}),
              ElementsAre("", ""));
  EXPECT_THAT(groups({{run_of({}, "a", kNan)}, {run_of({}, "a", kNan)}}), ElementsAre("A", "A"));
  // Parameters that nobody has hashed are equal to none.
  EXPECT_THAT(groups({{run_of({}, "")}, {run_of({}, "")}, {}}), ElementsAre("", "", ""));
}

TEST(ComparisonFigures, ThereAreMoreGroupsThanLetters) {
  std::vector<std::vector<CellRun>> runs;
  for (int i = 0; i < 28; ++i) {
    runs.push_back({run_of({}, std::to_string(i)), run_of({}, std::to_string(i))});
  }
  const auto groups = bit_groups(of_cells(runs));
  EXPECT_EQ(groups[25], "Z");
  EXPECT_EQ(groups[26], "A1");
  EXPECT_EQ(groups[27], "B1");
}

std::vector<bool> best_of(const Comparison& comparison) {
  std::vector<bool> best;
  for (const FrontPlace& place : front_places(comparison)) best.push_back(place.best);
  return best;
}

TEST(ComparisonFigures, TheBestCellsAreThoseThatNothingBeats) {
  Comparison all = of_cells({{run_of({1.0})}, {run_of({2.0})}, {run_of({3.0})}, {}});
  all.cells[0].runs[0].peak.total = 100;
  all.cells[1].runs[0].peak.total = 50;
  all.cells[2].runs[0].peak.total = 60;
  EXPECT_THAT(best_of(all), ElementsAre(true, true, false, false));
  // It takes longer, but for twice the tokens of a rank.
  all.cells[2].tokens_per_step = 200;
  EXPECT_THAT(best_of(all), ElementsAre(true, true, true, false));
}

TEST(ComparisonFigures, ACellIsNamedByItsAxes) {
  Comparison all{.axes = {"strategy", "ranks", "precision", "recompute", "prefetch_forward"}};
  const ComparedCell cell{.settings = {{"strategy", "zero1"},
                                       {"ranks", "2"},
                                       {"precision", "bf16"},
                                       {"recompute", "full"},
                                       {"prefetch_forward", "0"}}};
  EXPECT_EQ(cell_label(all, cell), "zero1, 2 ranks, bf16, recompute full, prefetch 0");
  all.axes = {"ranks"};
  EXPECT_EQ(cell_label(all, {.settings = {{"ranks", "1"}}}), "1 rank");
}

TEST(ComparisonFigures, TheCommandIsOneThatAShellTakes) {
  const Comparison all{
      .command = {"compare", "--ranks=2,4", "--data=it's a file", "--out=", "--model=$x", ""}};
  EXPECT_EQ(shell_command(all),
            "tessera compare --ranks=2,4 '--data=it'\\''s a file' --out= '--model=$x' ''");
}

TEST(ParetoFront, IsWhatNothingBeats) {
  EXPECT_TRUE(pareto_front({}).empty());
  const std::vector<ParetoPoint> points{{1.0, 4.0}, {2.0, 2.0}, {2.0, 2.0},
                                        {2.0, 3.0}, {4.0, 1.0}, {5.0, 1.0}};
  EXPECT_THAT(pareto_front(points), ElementsAre(true, true, true, false, true, false));
}

TEST(ParetoFront, IsOpenWhereIntervalsOverlap) {
  const std::vector<ParetoPoint> points{
      {.bytes = 1.0, .seconds_per_token = 10.0, .half_width = 0.1},
      {.bytes = 2.0, .seconds_per_token = 9.0, .half_width = 0.1},
      {.bytes = 3.0, .seconds_per_token = 5.0, .half_width = 0.1},
      {.bytes = 4.0, .seconds_per_token = 5.5, .half_width = 0.0}};
  EXPECT_THAT(pareto_front(points), ElementsAre(true, true, true, false));
  EXPECT_THAT(cannot_be_told_apart(points), ElementsAre(false, true, false, true));
  const std::vector<ParetoPoint> certain{{.bytes = 1.0, .seconds_per_token = 1.0},
                                         {.bytes = 1.0, .seconds_per_token = 1.0}};
  EXPECT_THAT(cannot_be_told_apart(certain), ElementsAre(false, false)) << "equal is equal";
}

}  // namespace
}  // namespace tessera::comparison_figures_test
