#include "tessera/lab/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "lab/some_report.h"
#include "markup.h"
#include "tessera/core/error.h"

namespace tessera::report_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kPlots[] = {"memory", "step-time", "traffic", "communication",
                                  "pareto", "losses",    "timeline"};

/// The element of a plot.
std::string figure_of(const std::string& page, const std::string& id) {
  const std::size_t begin = page.find("<figure id=\"" + id + "\"");
  EXPECT_NE(begin, page.npos) << id;
  if (begin == page.npos) return "";
  return page.substr(begin, page.find("</figure>", begin) - begin);
}

std::vector<std::string> labels_of(const std::vector<Tick>& ticks) {
  std::vector<std::string> labels;
  for (const Tick& tick : ticks) labels.push_back(tick.label);
  return labels;
}

void expect_only_numbers(const std::string& page) {
  EXPECT_FALSE(std::regex_search(
      page, std::regex("(x|y|x1|x2|y1|y2|d|width|height|points)=\"[^\"]*(nan|inf)")));
  EXPECT_THAT(page, Not(HasSubstr(">nan<")));
}

TEST(Report, EveryPlotIsDrawnAndHasATable) {
  const std::string page = to_html(test::some_report());
  for (const char* id : kPlots) {
    const std::string plot = figure_of(page, id);
    EXPECT_THAT(plot, HasSubstr("<svg role=\"img\"")) << id;
    EXPECT_THAT(plot, HasSubstr("<desc id=")) << id;
    EXPECT_THAT(plot, HasSubstr("<summary>Table</summary>")) << id;
    EXPECT_THAT(plot, HasSubstr("zero1")) << id;
  }
  expect_only_numbers(page);
}

TEST(Report, LoadsNothing) {
  const std::string page = to_html(test::some_report());
  for (const char* word : {"http", "<script", "src=", "url(", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
}

TEST(Report, TextsAreEscaped) {
  const std::string page = to_html(test::some_report());
  EXPECT_THAT(page, HasSubstr("GPT &lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_THAT(page, HasSubstr("a &quot;fast&quot; &lt;one&gt; &amp; &#39;only&#39;"));
  EXPECT_THAT(page, HasSubstr("killed by signal 9 &lt;Killed&gt;"));
  EXPECT_THAT(page, HasSubstr("tessera compare --data &#39;a &lt;b&gt;.txt&#39;"));
  EXPECT_THAT(page, HasSubstr("forward &lt;h.0&gt;"));
}

TEST(Report, ShowsMeasuredBesidePredicted) {
  const std::string page = to_html(test::some_report());
  EXPECT_THAT(figure_of(page, "memory"), HasSubstr("<td>15900000 / 15900000</td>"));
  EXPECT_THAT(figure_of(page, "memory"), HasSubstr(">15.2 MiB, as predicted<"));
  EXPECT_THAT(figure_of(page, "step-time"), HasSubstr(">111 ± 19.1 ms, simulated 90.0 ms<"));
  EXPECT_THAT(figure_of(page, "traffic"), HasSubstr("<td>700000 (3)</td><td>300000 (2)</td>"));
  EXPECT_THAT(figure_of(page, "communication"), HasSubstr(">2.00 of 10.0 ms<"));
  EXPECT_THAT(page, HasSubstr(">exposed %<"));
  EXPECT_THAT(page, HasSubstr("<td>1.79</td>"));  // 2.00 of 111.5 ms
  EXPECT_THAT(figure_of(page, "timeline"), HasSubstr(">no_shard, 2 ranks, simulated<"));
  EXPECT_THAT(figure_of(page, "timeline"), HasSubstr(">zero1, 2 ranks, measured<"));
}

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(Report, APipelineHasARowForEachRankAndANumberInEachPass) {
  Comparison all = test::some_report();
  all.cells = {all.cells[2]};
  constexpr int kRanks = 8, kMicroSteps = 32;
  all.cells[0].predicted->time->spans = test::staged_spans(kRanks, kMicroSteps);
  const std::string plot = figure_of(to_html(all), "timeline");
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(plot, HasSubstr(concat(">stage ", rank, "<")));
  }
  for (int m = 0; m < kMicroSteps; ++m) {
    // Its forward and its backward, and that of weights, on every rank.
    EXPECT_EQ(count_of(plot, concat("in-block\">", m, "</text>")), 2U * kRanks) << m;
    EXPECT_EQ(count_of(plot, concat("on-light\">", m, "</text>")), 1U * kRanks) << m;
  }
  EXPECT_THAT(plot, HasSubstr("<title>backward of weights of micro-step 31 through stage 7: 1.00 "
                              "ms</title>"));
  // Each rank works for 32 x 3 + 1 of 39 + 64 + 7 + 2 milliseconds.
  EXPECT_EQ(count_of(plot, ">idle 13.4 %<"), static_cast<std::size_t>(kRanks));
  EXPECT_THAT(plot, HasSubstr("messages between stages"));
  EXPECT_THAT(plot, HasSubstr("<td>pipeline rank 0</td><td>32 messages</td>"));
  EXPECT_EQ(count_of(plot, " v1\""), 0U) << "one stage a rank has no shades";
}

TEST(Report, StagesOfARankAreShadesOfAColour) {
  Comparison all = test::some_report();
  all.cells = {all.cells[2]};
  all.cells[0].predicted->time->spans = test::staged_spans(4, 8, 2);
  const std::string plot = figure_of(to_html(all), "timeline");
  EXPECT_THAT(plot, HasSubstr(">stages 1, 5<"));
  for (const char* css : {"c0 v1", "c2 v1", "c7 v1"}) {
    EXPECT_EQ(count_of(plot, concat("class=\"", css, "\"")), 4U * 8U) << css;
  }
}

TEST(Report, WhatAPassWaitsForLeavesAGapInIt) {
  Comparison all = test::some_report();
  all.cells = {all.cells[2]};
  std::vector<LaneSpan>& spans = all.cells[0].predicted->time->spans;
  spans = test::staged_spans(2, 1);
  for (LaneSpan& span : spans) {
    if (span.name == "forward h.0") span.end -= 0.25e-3;
  }
  const std::string plot = figure_of(to_html(all), "timeline");
  EXPECT_EQ(count_of(plot, "class=\"c0\"><title>forward of micro-step 0"), 2U * 2U);
  EXPECT_EQ(count_of(plot, "in-block\">0</text>"), 2U * 2U) << "one number each";
}

TEST(Report, CellsWithTheSameBitsAreNamed) {
  Comparison all = test::some_report();
  std::string plot = figure_of(to_html(all), "losses");
  EXPECT_THAT(plot, HasSubstr("<b>bit-identical</b> (A): no_shard, 2 ranks; zero1, 2 ranks; "
                              "full_shard, 2 ranks</li>"));
  all.cells.resize(4);
  for (std::size_t i = 0; i < 4; ++i) {
    all.cells[i].runs.resize(1);
    all.cells[i].runs[0].losses[0] += static_cast<double>(i);
  }
  plot = figure_of(to_html(all), "losses");
  EXPECT_THAT(plot, Not(HasSubstr("bit-identical")));
  EXPECT_THAT(plot, HasSubstr("zero1, 2 ranks: no other cell has the same bits"));
}

TEST(Report, ARepeatThatDiffersIsNamed) {
  Comparison all = test::some_report();
  all.cells[0].runs[1].parameters_sha256 = "other";
  EXPECT_THAT(figure_of(to_html(all), "losses"),
              HasSubstr("no_shard, 2 ranks: its repeats differ from each other"));
}

TEST(Report, LossesThatAreNoNumbersLeaveAGap) {
  Comparison all = test::some_report();
  all.cells[0].runs[0].losses = {4.0, std::nan(""), 3.0, 2.0};
  all.cells[1].runs[0].losses[3] = std::numeric_limits<double>::infinity();
  const std::string page = to_html(all);
  expect_only_numbers(page);
  EXPECT_THAT(figure_of(page, "losses"), HasSubstr("<td>not finite</td>"));
  for (ComparedCell& cell : all.cells) {
    for (CellRun& run : cell.runs) run.losses = {std::nan("")};
  }
  EXPECT_THAT(figure_of(to_html(all), "losses"), HasSubstr("No loss of any cell is finite."));
}

/// Nothing has run, and all values lie together.
Comparison predictions() {
  Comparison all = test::some_report();
  all.repeats = 0;
  all.machine = {{"profile", "h100-sxm"}};
  all.cells.resize(4);
  double number = 0.0;
  for (ComparedCell& cell : all.cells) {
    cell.state = CellState::kPredicted;
    cell.runs.clear();
    cell.timeline.clear();
    cell.predicted->device_bytes = 1'000'000'000 + static_cast<std::int64_t>(1e7 * number);
    cell.predicted->time->step_seconds = 0.09 + 0.001 * number++;
  }
  return all;
}

TEST(Report, PredictionsDoNotSpeakOfRuns) {
  const std::string page = to_html(predictions());
  EXPECT_THAT(page, HasSubstr("<td>predicted</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<td>done</td>")));
  EXPECT_THAT(page, Not(HasSubstr("What the runs ran on")));
  EXPECT_THAT(page, HasSubstr("What the predictions are for"));
  EXPECT_THAT(page, Not(HasSubstr("<th scope=\"col\">ms per step</th>"))) << "an empty column";
  EXPECT_THAT(page, HasSubstr("trust them as a limit"));
}

TEST(Report, AxesOfValuesThatLieTogetherShowTheirDifferences) {
  const Comparison all = predictions();
  const std::string page = to_html(all);
  EXPECT_THAT(figure_of(page, "step-time"), HasSubstr(">This axis begins at 88, not at 0.<"));
  EXPECT_THAT(figure_of(page, "pareto"), HasSubstr("this axis begins at"));
  EXPECT_THAT(figure_of(page, "pareto"), HasSubstr("MiB, not at 0.<"));
  EXPECT_THAT(figure_of(page, "memory"), Not(HasSubstr("axis begins"))) << "its bars are sums";
  expect_only_numbers(page);
}

TEST(Report, NumbersOfPointsDoNotPileUp) {
  Comparison all = predictions();
  for (ComparedCell& cell : all.cells) cell = all.cells.front();
  EXPECT_THAT(figure_of(to_html(all), "pareto"), HasSubstr("class=\"number\">1, 2, 3, ...<"));
}

TEST(Report, CellsWithOneReasonAreListedOnce) {
  Comparison all = test::some_report();
  all.cells.push_back(all.cells.back());
  all.cells.back().settings = {{"strategy", "zero1"}, {"ranks", "3"}};
  EXPECT_THAT(to_html(all), HasSubstr("<b>impossible</b>: hybrid_shard, 3 ranks; zero1, 3 ranks: "
                                      "3 ranks are not 2 replicas<"));
}

TEST(Report, WithoutADoneCellThePageSaysSo) {
  Comparison all = test::some_report();
  all.cells.erase(all.cells.begin(), all.cells.begin() + 4);
  for (const Comparison& none : {all, Comparison{}}) {
    const std::string page = to_html(none);
    EXPECT_THAT(page, HasSubstr("No cell is done"));
    for (const char* id : kPlots) {
      EXPECT_THAT(figure_of(page, id), HasSubstr("class=\"empty\"")) << id;
    }
  }
}

TEST(Markup, TicksAroundValuesBeginAtZeroUnlessTheyLieTogether) {
  EXPECT_THAT(labels_of(ticks_around(1.0, 23.0)), ElementsAre("0", "5", "10", "15", "20", "25"));
  EXPECT_THAT(labels_of(ticks_around(20.0, 23.0)), ElementsAre("19", "20", "21", "22", "23"));
  EXPECT_EQ(ticks_around(0.0, 0.0).front().value, 0.0);
  const std::vector<Tick> one = ticks_around(7.0, 7.0);
  EXPECT_LT(one.front().value, 7.0);
  EXPECT_GE(one.back().value, 7.0);
}

TEST(Markup, TicksAreRound) {
  EXPECT_THAT(labels_of(round_ticks(23.0)), ElementsAre("0", "5", "10", "15", "20", "25"));
  EXPECT_THAT(labels_of(round_ticks(0.03)),
              ElementsAre("0.000", "0.005", "0.010", "0.015", "0.020", "0.025", "0.030"));
  EXPECT_THAT(labels_of(round_ticks(0.0)).back(), "1.0");
  EXPECT_THAT(labels_of(byte_ticks(3.0 * 1024 * 1024)),
              ElementsAre("0", "0.5 MiB", "1.0 MiB", "1.5 MiB", "2.0 MiB", "2.5 MiB", "3.0 MiB"));
  EXPECT_THAT(labels_of(round_ticks_between(2.1, 4.0)),
              ElementsAre("2.0", "2.5", "3.0", "3.5", "4.0"));
  EXPECT_EQ(round_ticks_between(3.0, 3.0).size() > 1, true);
}

TEST(Markup, NumbersHaveThreeDigits) {
  EXPECT_EQ(short_number(0.0), "0");
  EXPECT_EQ(short_number(0.1234), "0.123");
  EXPECT_EQ(short_number(9.999), "10.0");
  EXPECT_EQ(short_number(123.4), "123");
  EXPECT_EQ(short_number(0.00012345), "1.23e-04");
}

TEST(Markup, LabelsWrapAfterCommas) {
  EXPECT_THAT(wrapped_label("zero1, 2 ranks", 20), ElementsAre("zero1, 2 ranks"));
  EXPECT_THAT(wrapped_label("zero1, 2 ranks, bf16", 16), ElementsAre("zero1, 2 ranks,", "bf16"));
  EXPECT_THAT(wrapped_label("abcdefgh", 3), ElementsAre("abc", "def", "gh"));
}

TEST(Markup, ADrawingRefusesWhatIsNoNumber) {
  Svg drawing;
  drawing.bar({12.5, 3.0}, 50.0, 10.0, "c0", "a < b");
  EXPECT_THAT(
      drawing.to_html("id", "title", "words", 20.0),
      HasSubstr("<rect x=\"12.5%\" y=\"3\" width=\"50%\" height=\"10\" class=\"c0\"><title>a "
                "&lt; b</title></rect>"));
  EXPECT_THROW(drawing.line({std::nan(""), 0.0}, {1.0, 1.0}, "c0"), Error);
}

}  // namespace
}  // namespace tessera::report_test
