#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "tessera/lab/hardware_profile.h"

// Steps that Tessera took on GPUs that were hot (bench/results/h100 and h200), beside what the
// profiles of these GPUs predict. Runs of less than a second are left out: the GPU was still
// heating. Steps with LoRA were measured when each A had a product of its own, and are predicted as
// they are now.
namespace tessera::measured_steps_test {
namespace {

struct Measured {
  const char* gpu;
  const char* model;
  std::vector<std::string> flags;
  double milliseconds;
  bool is_gpt2 = true;
};

std::vector<std::string> batch(const char* micro_batch, const char* length = "1024",
                               std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--micro-batch", micro_batch, "--sequence-length", length});
  return more;
}

const std::vector<std::string> kLora{"--lora", "r=16,targets=all-linear"};
const std::vector<std::string> kLoraOverNf4{"--lora", "r=16,targets=all-linear", "--base-format",
                                            "nf4"};

const std::vector<Measured> kSteps{
    {"h100-sxm", "gpt2-1558m", batch("16"), 321.5},
    {"h100-sxm", "gpt2-1558m", batch("8"), 175.8},
    {"h100-sxm", "gpt2-124m", batch("16"), 31.1},
    {"h100-sxm", "llama3.2-1b", batch("8"), 123.9, false},
    {"h100-sxm", "llama3.2-1b", batch("4", "2048"), 132.5, false},
    {"h100-sxm", "llama3.2-1b", batch("8", "1024", kLora), 103.1, false},
    {"h100-sxm", "llama3.2-1b", batch("8", "1024", kLoraOverNf4), 104.6, false},
    {"h200-sxm", "gpt2-1558m", batch("16"), 319.2},
    {"h200-sxm", "gpt2-1558m", batch("8"), 171.2},
    {"h200-sxm", "gpt2-1558m", batch("32"), 629.2},
    {"h200-sxm", "gpt2-774m", batch("16", "1024", {"--deterministic-attention", "false"}), 162.1},
};

class MeasuredSteps : public test::ProgramTest {
 protected:
  /// How far the prediction is off, relative to what was measured.
  double error_of(const Measured& step, const std::string& profile) {
    std::vector<std::string> words{"simulate",    "--no-default-config",
                                   "--device",    "cuda",
                                   "--ranks",     "1",
                                   "--model",     step.model,
                                   "--precision", "bf16",
                                   "--profile",   profile,
                                   "--format",    "json"};
    if (step.is_gpt2) words.insert(words.end(), {"--vocab-size", "50257"});
    words.insert(words.end(), step.flags.begin(), step.flags.end());
    const test::ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    const double seconds = json.at("runs").at(0).at("step_seconds").get<double>();
    const double error = 1e3 * seconds / step.milliseconds - 1.0;
    std::printf("  %s, %-12s %6.1f ms, predicted %6.1f (%+.1f %%)\n", step.gpu, step.model,
                step.milliseconds, 1e3 * seconds, 100.0 * error);
    return error;
  }

  /// The profile with energies that were fitted without some of the steps.
  std::string profile_with(const char* name, double per_flop, double per_byte) {
    HardwareProfile profile = find_profile(name);
    profile.power->per_flop.value = per_flop;
    profile.power->per_byte.value = per_byte;
    std::ofstream(path("profile.json")) << to_text(profile);
    return path("profile.json");
  }

  /// Judges the steps that `counts` takes.
  template <class Counts>
  void expect_errors(double mean, double worst, const std::string& profile, const Counts& counts) {
    double sum = 0.0, most = 0.0;
    int cells = 0;
    for (const Measured& step : kSteps) {
      if (!counts(step)) continue;
      const double error = std::abs(error_of(step, profile.empty() ? step.gpu : profile));
      sum += error;
      most = std::max(most, error);
      ++cells;
    }
    std::printf("  %d steps: mean %.1f %%, worst %.1f %%\n", cells, 100.0 * sum / cells,
                100.0 * most);
    ASSERT_GT(cells, 0);
    EXPECT_LE(sum / cells, mean);
    EXPECT_LE(most, worst);
  }
};

TEST_F(MeasuredSteps, ArePredictedByProfilesThatWereFittedToThem) {
  expect_errors(0.03, 0.065, "", [](const Measured&) { return true; });
}

// By energies of FLOPs and bytes that are fitted to other models' steps alone: least squares of
// relative errors, as those of the profile, of steps as long as the limit of power makes them.
TEST_F(MeasuredSteps, ArePredictedFromOtherModels) {
  const auto is_on = [](const char* gpu, bool is_gpt2) {
    return [=](const Measured& step) {
      return std::string_view(step.gpu) == gpu && step.is_gpt2 == is_gpt2;
    };
  };
  expect_errors(0.05, 0.085, profile_with("h100-sxm", 0.854e-12, 0.149e-9),
                is_on("h100-sxm", false));
  expect_errors(0.065, 0.08, profile_with("h100-sxm", 0.602e-12, 0.245e-9),
                is_on("h100-sxm", true));
  expect_errors(0.05, 0.05, profile_with("h200-sxm", 0.805e-12, 0.164e-9),
                [](const Measured& step) { return std::string_view(step.model) == "gpt2-774m"; });
}

TEST_F(MeasuredSteps, SayWhatTheLimitOfPowerDoes) {
  const auto printed = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"simulate", "--no-default-config", "--model", "gpt2-1558m",
                                 "--precision", "bf16", "--device", "cuda"});
    return run(flags).out;
  };
  const std::string limited =
      printed({"--profile", "h100-sxm", "--ranks", "1", "--micro-batch", "16"});
  EXPECT_THAT(limited, ::testing::ContainsRegex("power          691 W, the limit: .* longer"));
  EXPECT_THAT(limited, ::testing::ContainsRegex("energy         1[34]\\.[0-9] mJ per token"));
  // Ranks that wait for each other need less.
  const std::string waiting =
      printed({"--profile", "h100-sxm", "--ranks", "64", "--micro-batch", "1"});
  EXPECT_THAT(waiting, ::testing::Not(::testing::HasSubstr("the limit: ")));
  EXPECT_THAT(waiting, ::testing::HasSubstr(" mJ per token"));
  EXPECT_THAT(printed({"--profile", "a100-sxm", "--ranks", "1"}),
              ::testing::Not(::testing::HasSubstr("power  ")));
}

}  // namespace
}  // namespace tessera::measured_steps_test
