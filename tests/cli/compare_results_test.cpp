#include "bench/compare_results.h"

#include <gtest/gtest.h>

#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

BenchResults results(const std::vector<double>& seconds, const char* cores = "2") {
  return {.context = {{"machine.cores", cores}, {"date", "any"}}, .timings = {{"k", seconds}}};
}

Verdict verdict(const std::vector<double>& a, const std::vector<double>& b,
                std::optional<double> assumed = {}) {
  return compare(results(a), results(b), assumed).at(0).verdict;
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
    {"name": "k", "run_name": "k", "run_type": "iteration", "real_time": 4, "time_unit": "ms"},
    {"name": "k_mean", "run_name": "k", "run_type": "aggregate", "real_time": 9,
     "time_unit": "ms"}]})");
  const BenchResults read = read_results(file, "f");
  ASSERT_EQ(read.timings.size(), 1U);
  EXPECT_EQ(read.timings[0].seconds, (std::vector<double>{3e-3, 4e-3}));
  EXPECT_THROW(read_results(nlohmann::json::object(), "f"), Error);
}

}  // namespace
}  // namespace tessera::bench
