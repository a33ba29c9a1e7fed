#include <gmock/gmock.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/extent.h"

namespace tessera {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Fp8Command : public test::ProgramTest {
 protected:
  /// The losses of a run on English text.
  std::vector<double> losses(const std::string& precision, int steps) {
    const std::string log = path(precision + ".jsonl");
    const ProgramResult result = run({"train",
                                      "--model",
                                      "gpt2-tiny",
                                      "--data",
                                      std::string(TESSERA_SOURCE_DIR) + "/tests/text/alice.txt",
                                      "--sequence-length",
                                      "64",
                                      "--micro-batch",
                                      "4",
                                      "--steps",
                                      std::to_string(steps),
                                      "--learning-rate",
                                      "0.002",
                                      "--precision",
                                      precision,
                                      "--log",
                                      log,
                                      "--overwrite",
                                      "--device",
                                      "cpu"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<double> all;
    for (const json& line : read_log(precision + ".jsonl")) {
      if (line.at("kind") == "step") all.push_back(line.at("loss"));
    }
    return all;
  }
  static double mean_of_last(const std::vector<double>& losses, std::size_t count) {
    double sum = 0.0;
    for (std::size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
    return sum / static_cast<double>(count);
  }
};

TEST_F(Fp8Command, TrainsAsWellAsBf16) {
  const int steps = test::runs_long_tests() ? 300 : 10;
  const std::vector<double> in_fp8 = losses("fp8", steps), in_bf16 = losses("bf16", steps);
  ASSERT_EQ(in_fp8.size(), static_cast<std::size_t>(steps));
  EXPECT_NE(in_fp8, in_bf16);
  const double expected = mean_of_last(in_bf16, 5);
  EXPECT_NEAR(mean_of_last(in_fp8, 5), expected, 0.01 * expected);
  EXPECT_LT(in_fp8.back(), in_fp8.front());
}

TEST_F(Fp8Command, EveryCommandKnowsThePrecision) {
  const ProgramResult plan =
      run({"plan", "--model", "gpt2-tiny", "--ranks", "4", "--precision", "fp8"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out + plan.err, AllOf(HasSubstr("products in fp8: forward,input-gradient"),
                                         HasSubstr("fp8 gains nothing here")));
  const ProgramResult estimate =
      run({"estimate-memory", "gpt2-124m", "--ranks", "2", "--strategies", "full_shard",
           "--precision", "bf16", "fp8", "--json"});
  ASSERT_EQ(estimate.exit_code, 0) << estimate.err;
  std::map<std::string, std::int64_t> peaks;
  const json estimated = json::parse(estimate.out);
  for (const json& row : estimated["training"]) {
    if (row["recompute"] == "none") {
      peaks[row["precision"].get<std::string>()] = row["peak_bytes"]["total"];
    }
  }
  ASSERT_EQ(peaks.size(), 2U);
  EXPECT_LT(peaks["fp8"], peaks["bf16"]);
  const ProgramResult simulated = run({"simulate", "--model", "gpt2-124m", "--ranks", "4",
                                       "--profile", "h100-sxm", "--precision", "fp8"});
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_THAT(simulated.out, HasSubstr("FLOP/s in bf16"));
  const ProgramResult refused =
      run({"plan", "--model", "gpt2-tiny", "--precision", "bf16", "--fp8-format", "e4m3"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("fp8_format is e4m3, but precision is bf16"),
                                 HasSubstr("--precision fp8")));
}

TEST_F(Fp8Command, PlansSayHowMatricesTravel) {
  const auto planned = [&](const std::string& format) {
    return run({"plan", "--model", "gpt2-tiny", "--ranks", "2", "--strategy", "full_shard",
                "--precision", "fp8", "--gather-format", format});
  };
  const ProgramResult in_codes = planned("e4m3"), in_bf16 = planned("bf16");
  ASSERT_EQ(in_codes.exit_code, 0) << in_codes.err;
  EXPECT_THAT(
      in_codes.out + in_codes.err,
      AllOf(HasSubstr("matrices in fp8 of 4 units are gathered as codes"),
            HasSubstr("all-reduce-max over shard -> *scales.0"), HasSubstr("3 code slots")));
  ASSERT_EQ(in_bf16.exit_code, 0) << in_bf16.err;
  EXPECT_THAT(in_bf16.out + in_bf16.err, Not(HasSubstr("code")));
  const ProgramResult refused =
      run({"plan", "--model", "gpt2-tiny", "--precision", "bf16", "--gather-format", "bf16"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("gather_format is bf16, but precision is bf16"),
                                 HasSubstr("leave --gather-format out")));
}

TEST_F(Fp8Command, TypedSettingsThatChangeNothingAreRefused) {
  const auto refusal = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments{"plan", "--model", "gpt2-tiny"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult refused = run(arguments);
    EXPECT_EQ(refused.exit_code, 2);
    return refused.err;
  };
  EXPECT_THAT(refusal({"--precision", "bf16", "--gather-format", "e4m3"}),
              AllOf(HasSubstr("gather_format is e4m3, but precision is bf16"),
                    HasSubstr("leave --gather-format out")));
  EXPECT_THAT(refusal({"--precision", "fp8", "--fp8-margin", "0"}),
              AllOf(HasSubstr("fp8_margin is 0, but fp8_recipe is current"),
                    HasSubstr("use --fp8-recipe delayed")));
}

TEST_F(Fp8Command, EstimatesAndSimulationsKnowRecipesAndFormatsOfGathers) {
  const auto total = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments{"estimate-memory", "gpt2-124m",  "--ranks",     "2",
                                       "--strategies",    "full_shard", "--precision", "bf16,fp8",
                                       "--json"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult estimate = run(arguments);
    EXPECT_EQ(estimate.exit_code, 0) << estimate.err;
    std::map<std::string, std::int64_t> peaks;
    const json estimated = json::parse(estimate.out);
    for (const json& row : estimated["training"]) {
      if (row["recompute"] == "none") {
        peaks[row["precision"].get<std::string>()] = row["peak_bytes"]["total"];
      }
    }
    return peaks;
  };
  auto in_codes = total({}), in_bf16 = total({"--gather-format", "bf16"}),
       delayed = total({"--fp8-recipe", "delayed", "--fp8-history", "512"});
  EXPECT_EQ(in_codes["bf16"], in_bf16["bf16"]);
  EXPECT_LT(in_codes["fp8"], in_bf16["fp8"]);
  const std::int64_t tensors = 3 * 4 * 12;  // of twelve blocks
  // Current scaling keeps a word, of 64 bytes, with each input that it keeps.
  const std::int64_t more = delayed["fp8"] - in_codes["fp8"], histories = tensors * 512 * 4;
  EXPECT_GT(more, histories - 4096);
  EXPECT_LT(more, histories + 4096);
  const ProgramResult refused = run({"estimate-memory", "gpt2-124m", "--gather-format", "e4m3"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("no --precision is fp8"));
  const ProgramResult simulated =
      run({"simulate", "--model", "gpt2-124m", "--profile", "h100-sxm", "--precision", "fp8",
           "--sweep", "fp8_recipe=current,delayed gather_format=e4m3,bf16", "--ranks", "4"});
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_THAT(simulated.out, AllOf(HasSubstr("delayed"), HasSubstr("e4m3")));
}

TEST_F(Fp8Command, ComparesRecipes) {
  const std::string out = path("compared");
  const ProgramResult compared =
      run({"compare", "--model", "gpt2-tiny", "--only-simulate", "--simulate", "h100-sxm",
           "--precisions", "bf16,fp8", "--fp8-recipes", "current,delayed", "--ranks", "2", "--out",
           out});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  std::ifstream file(out + "/results.json");
  const json results = json::parse(file);
  ASSERT_EQ(results["cells"].size(), 3U) << "bf16 has one recipe";
  const std::string text = results.dump();
  EXPECT_THAT(text, AllOf(HasSubstr("delayed"), HasSubstr("gather_format")));
}

TEST_F(Fp8Command, DelayedScalingTrainsAndResumes) {
  const std::string data = write_text();
  const std::vector<std::string> recipe{"--precision",   "fp8", "--fp8-recipe", "delayed",
                                        "--fp8-history", "8",   "--fp8-margin", "1"};
  const auto train_with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), recipe.begin(), recipe.end());
    return train(flags);
  };
  const ProgramResult trained =
      train_with({"--data", data, "--steps", "4", "--save", path("saved")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out + trained.err, HasSubstr("largest magnitude in the last 8 steps"));
  const ProgramResult resumed =
      train_with({"--data", data, "--steps", "6", "--resume", path("saved/latest")});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out + resumed.err, Not(HasSubstr("since the checkpoint: fp8")));
}

TEST_F(Fp8Command, GeneratesAndEvaluatesWhatWasTrained) {
  const std::string data = write_text();
  const ProgramResult trained =
      train({"--data", data, "--eval-data", data, "--steps", "4", "--precision", "fp8", "--save",
             path("saved"), "--sample-tokens", "5"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ProgramResult resumed = train({"--data", data, "--steps", "6", "--precision", "fp8",
                                       "--resume", path("saved/latest"), "--fp8-format", "e4m3"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out + resumed.err, HasSubstr("fp8_format was hybrid and is e4m3"));
  const ProgramResult generated =
      run({"generate", "--init", path("saved/latest"), "--tokens", "4", "--prompt", "the"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
}

TEST_F(Fp8Command, StepsOnAGpuArePredictedToBeFaster) {
  const auto milliseconds = [&](const char* precision) {
    const ProgramResult result =
        run({"simulate", "--profile", "h200-sxm", "--model", "gpt2-1558m", "--layers", "4",
             "--micro-batch", "16", "--ranks", "1", "--precision", precision});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string line = result.out.substr(result.out.find("\nstep ") + 6);
    return std::stod(line);
  };
  EXPECT_LT(milliseconds("fp8"), 0.9 * milliseconds("bf16"));
}

}  // namespace
}  // namespace tessera
