#include "bench/compare_results.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

BenchResults results(const std::vector<double>& seconds, const char* cores = "2") {
  return {.context = {{"machine.cores", cores}, {"date", "any"}}, .timings = {{"k", seconds, {}}}};
}

Verdict verdict(const std::vector<double>& a, const std::vector<double>& b,
                std::optional<double> assumed = {}) {
  return compare(results(a), results(b), {.assumed_noise = assumed}).at(0).verdict;
}

TEST(CompareResults, FlagsWhatIsBeyondTheQuartiles) {
  EXPECT_EQ(verdict({1.00, 1.01, 1.02, 1.03}, {1.10, 1.11, 1.12, 1.13}), Verdict::kSlower);
  EXPECT_EQ(verdict({1.10, 1.11, 1.12, 1.13}, {1.00, 1.01, 1.02, 1.03}), Verdict::kFaster);
  EXPECT_EQ(verdict({1.00, 1.01, 1.02, 1.03}, {1.00, 1.02, 1.03, 1.04}), Verdict::kNoise);
}

TEST(CompareResults, DoesNotFlagWhatOneFilesNoiseExplains) {
  // A moved by a tenth, but B's quartiles are a fifth apart.
  EXPECT_EQ(verdict({1.00, 1.00, 1.00}, {1.00, 1.10, 1.40}), Verdict::kNoise);
}

TEST(CompareResults, DoesNotFlagWhatChanceExplains) {
  // The quartiles of three repetitions each are apart, and by more than either's spread: of equal
  // code, one comparison in ten looks so.
  EXPECT_EQ(verdict({1.00, 1.04, 1.08}, {1.10, 1.14, 1.18}), Verdict::kNoise);
  const Comparison few =
      compare(results({1.00, 1.04, 1.08}), results({1.10, 1.14, 1.18}), {}).at(0);
  EXPECT_NEAR(*few.noise, 7.173 * std::sqrt(2.0 * 1.571 * 0.0016 / 3.0) / 1.04, 1e-3);
  // As many as tell the difference.
  const std::vector<double> a{1.00, 1.08, 1.02, 1.06, 1.04, 1.03, 1.05, 1.04, 1.02, 1.06};
  std::vector<double> b = a;
  for (double& seconds : b) seconds += 0.1;
  EXPECT_EQ(verdict(a, b), Verdict::kSlower);
}

TEST(CompareResults, DoesNotFlagWhatIsBelowTheLimit) {
  const auto a = results({1.00, 1.00, 1.00}), b = results({1.04, 1.04, 1.04});
  EXPECT_EQ(compare(a, b, {}).at(0).verdict, Verdict::kSlower);
  EXPECT_EQ(compare(a, b, {.least_change = 0.05}).at(0).verdict, Verdict::kNoise);
  EXPECT_EQ(compare(a, b, {.least_change = 0.03}).at(0).verdict, Verdict::kSlower);
}

/// Beside each repetition, others had this share of the cores.
BenchResults beside(const std::vector<double>& seconds, const std::vector<double>& others) {
  BenchResults of = results(seconds);
  of.timings[0].others = others;
  return of;
}

TEST(CompareResults, LeavesOutRepetitionsThatWereDisturbed) {
  const BenchResults quiet = beside({1.0, 1.0, 1.0}, {0.0, 0.0, 0.02});
  const Comparison equal =
      compare(quiet, beside({1.0, 2.0, 2.0, 1.0, 1.0}, {0.0, 0.9, 0.8, 0.0, 0.05}), {}).at(0);
  EXPECT_EQ(equal.verdict, Verdict::kNoise);
  EXPECT_EQ(equal.b, 1.0);
  EXPECT_EQ(equal.others, 0.0);
}

TEST(CompareResults, SaysNothingIfOthersRanBesideOneOfBoth) {
  const BenchResults quiet = beside({1.0, 1.0, 1.0}, {0.0, 0.0, 0.0});
  const BenchResults busy = beside({2.0, 2.0, 2.0}, {0.5, 0.5, 0.5});
  for (const auto& [a, b] : {std::pair(quiet, busy), std::pair(busy, quiet)}) {
    const Comparison comparison = compare(a, b, {}).at(0);
    EXPECT_EQ(comparison.verdict, Verdict::kBusy);
    EXPECT_EQ(comparison.others, 0.5);
  }
  // Beside both alike, they are alike.
  EXPECT_EQ(compare(busy, beside({4.0, 4.0, 4.0}, {0.5, 0.5, 0.5}), {}).at(0).verdict,
            Verdict::kSlower);
}

TEST(CompareResults, KnowsNoNoiseOfFewRepetitions) {
  EXPECT_EQ(verdict({1.0}, {2.0}), Verdict::kUnknown);
  EXPECT_EQ(verdict({1.0, 1.0, 1.0}, {2.0, 2.0}), Verdict::kUnknown);
  EXPECT_EQ(verdict({1.0}, {2.0}, 0.05), Verdict::kSlower);
  EXPECT_EQ(verdict({1.0}, {1.04}, 0.05), Verdict::kNoise);
}

TEST(CompareResults, NamesWhatMachinesDifferIn) {
  EXPECT_TRUE(machine_differences(results({1.0}), results({1.0})).empty());
  EXPECT_EQ(machine_differences(results({1.0}), results({1.0}, "4")),
            std::vector<std::string>{"machine.cores: 2 and 4"});
  BenchResults silent = results({1.0});
  silent.context.erase("machine.cores");
  EXPECT_EQ(machine_differences(results({1.0}), silent),
            std::vector<std::string>{"machine.cores: 2 and not said"});
  EXPECT_EQ(machine_differences(silent, silent).size(), 1U);
}

TEST(CompareResults, ReadsRepetitionsAndNotTheirAggregates) {
  const auto file = nlohmann::json::parse(R"({"context": {}, "benchmarks": [
    {"name": "k", "run_name": "k", "run_type": "iteration", "real_time": 3, "time_unit": "ms"},
    {"name": "k", "run_name": "k", "run_type": "iteration", "real_time": 4, "time_unit": "ms",
     "free": 0.75},
    {"name": "k_mean", "run_name": "k", "run_type": "aggregate", "real_time": 9,
     "time_unit": "ms"}]})");
  const BenchResults read = read_results(file, "f");
  ASSERT_EQ(read.timings.size(), 1U);
  EXPECT_EQ(read.timings[0].seconds, (std::vector<double>{3e-3, 4e-3}));
  EXPECT_EQ(read.timings[0].others, (std::vector<double>{0.25}));
  EXPECT_THROW(read_results(nlohmann::json::object(), "f"), Error);
}

TEST(CompareResults, BringsRandomOrderIntoThatOfTheBenchmarks) {
  const auto file = nlohmann::json::parse(R"({"context": {}, "benchmarks": [
    {"name": "b", "family_index": 1, "run_type": "iteration", "real_time": 2},
    {"name": "a", "family_index": 0, "run_type": "iteration", "real_time": 4},
    {"name": "b", "family_index": 1, "run_type": "iteration", "real_time": 4}]})");
  const BenchResults read = read_results(file, "f");
  ASSERT_EQ(read.timings.size(), 2U);
  EXPECT_EQ(read.timings[0].name, "a");
  EXPECT_EQ(read.timings[1].seconds, (std::vector<double>{2e-9, 4e-9}));
}

}  // namespace
}  // namespace tessera::bench
