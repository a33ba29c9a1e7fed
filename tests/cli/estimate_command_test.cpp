#include <gmock/gmock.h>

#include "cli/program.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class EstimateCommand : public test::ProgramTest {};

/// estimate_golden.json is from Accelerate's own function; see make_estimate_golden.py.
TEST_F(EstimateCommand, TheTableForLoadingIsAccelerates) {
  const std::string file = std::string(TESSERA_SOURCE_DIR) + "/tests/cli/estimate_golden.json";
  const json golden = json::parse(test::read_file(file));
  ASSERT_EQ(golden["models"].size(), 4U);
  for (const auto& [name, dtypes] : golden["models"].items()) {
    SCOPED_TRACE(name);
    const ProgramResult result = run({"estimate-memory", name, "--json", "--strategies", "no_shard",
                                      "--ranks", "1", "--sequence-length", "8"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json ours = json::parse(result.out)["loading"];
    std::size_t compared = 0;
    for (const json& row : ours) {
      if (!dtypes.contains(row["dtype"])) continue;  // bfloat16
      const json& theirs = dtypes[row["dtype"].get<std::string>()];
      ++compared;
      EXPECT_EQ(row["largest_layer_bytes"], theirs["largest_layer_bytes"]) << row["dtype"];
      EXPECT_EQ(row["total_bytes"], theirs["total_bytes"]) << row["dtype"];
      const bool trainable = theirs["training_bytes"] != -1;
      EXPECT_EQ(row["training_bytes"], trainable ? theirs["training_bytes"] : json());
    }
    EXPECT_EQ(compared, dtypes.size());
  }
}

TEST_F(EstimateCommand, PrintsTheTableAndOneLineForEachStrategy) {
  const ProgramResult result =
      run({"estimate-memory", "gpt2", "--ranks", "8", "--strategies", "no_shard,full_shard"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("147 MiB"));
  EXPECT_THAT(result.out, HasSubstr("no_shard"));
  EXPECT_THAT(result.out, HasSubstr("full_shard"));
  EXPECT_EQ(run({"estimate-memory", "gpt3"}).exit_code, 2);
}

TEST_F(EstimateCommand, HybridsHaveTheReplicasThatTrainingGivesThem) {
  const auto peaks = [&](const std::string& ranks) {
    const ProgramResult result = run({"estimate-memory", "gpt2", "--json", "--ranks", ranks,
                                      "--strategies", "hybrid_shard,full_shard"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json nine = peaks("9");
  ASSERT_EQ(nine["training"].size(), 6U);
  EXPECT_EQ(nine["training"][0]["strategy"], "hybrid_shard");
  EXPECT_TRUE(nine["impossible"].empty());
  const ProgramResult plan =
      run({"plan", "--model", "gpt2-124m", "--ranks", "9", "--strategy", "hybrid_shard",
           "--replicas", "3", "--precision", "bf16", "--micro-batch", "1", "--format", "json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr(nine["training"][0]["peak_bytes"]["total"].dump()));

  const auto total = [&](const std::string& command, const std::vector<std::string>& words) {
    std::vector<std::string> all{command, "--model", "gpt2-124m", "--ranks", "16"};
    all.insert(all.end(), words.begin(), words.end());
    const ProgramResult result = run(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const std::vector<std::string> of_plan{"--strategy", "hybrid_shard",  "--precision",
                                         "bf16",       "--micro-batch", "1",
                                         "--format",   "json"};
  for (const char* const per_node : {"2", "4"}) {
    std::vector<std::string> planned = of_plan;
    planned.insert(planned.end(), {"--ranks-per-node", per_node});
    const json estimated = total("estimate-memory", {"--strategies", "hybrid_shard", "--json",
                                                     "--ranks-per-node", per_node});
    EXPECT_EQ(estimated["ranks_per_node"].dump(), per_node);
    EXPECT_EQ(estimated["training"][0]["peak_bytes"]["total"],
              total("plan", planned)["peak_bytes"]["total"])
        << per_node;
  }

  const json prime = peaks("7");
  EXPECT_EQ(prime["training"].size(), 3U);
  ASSERT_EQ(prime["impossible"].size(), 1U);
  EXPECT_THAT(prime["impossible"][0]["why"].get<std::string>(), HasSubstr("7 ranks do not make"));
  const ProgramResult text = run({"estimate-memory", "gpt2", "--ranks", "3"});
  EXPECT_THAT(text.out, HasSubstr("note: hybrid_shard needs several replicas"));
  const ProgramResult none =
      run({"estimate-memory", "gpt2", "--ranks", "3", "--strategies", "hybrid_shard"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("3 ranks do not make; 4, 6 or 9 ranks do"));
}

TEST_F(EstimateCommand, SizesAreThoseOfPlan) {
  const std::vector<std::string> sizes{
      "--layers",         "3",         "--heads", "4", "--width",      "64",
      "--context-length", "128",       "--ranks", "2", "--vocab-size", "300",
      "--optimizer",      "adamw8bit", "--json"};
  std::vector<std::string> arguments{"estimate-memory", "gpt2", "--strategies", "full_shard"};
  arguments.insert(arguments.end(), sizes.begin(), sizes.end());
  const ProgramResult estimated = run(arguments);
  ASSERT_EQ(estimated.exit_code, 0) << estimated.err;
  const json estimate = json::parse(estimated.out);
  EXPECT_EQ(estimate["model"], "GPT of 3 layers x 64, 4 heads, context 128, vocabulary 300");
  EXPECT_EQ(estimate["sequence_length"], 128);
  arguments = {"plan",        "--model", "gpt2-124m", "--micro-batch", "1",
               "--precision", "bf16",    "--format",  "json"};
  arguments.insert(arguments.end(), sizes.begin(), sizes.end() - 1);
  const ProgramResult plan = run(arguments);
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(estimate["training"][0]["peak_bytes"]["total"],
            json::parse(plan.out)["peak_bytes"]["total"]);
}

TEST_F(EstimateCommand, EveryStageHasARowWithThePeakOfPlan) {
  const std::vector<std::string> pipeline{
      "--ranks",       "6", "--pipeline",          "3",     "--accumulate", "4",
      "--micro-batch", "1", "--pipeline-schedule", "gpipe", "--precision",  "bf16"};
  std::vector<std::string> arguments{"estimate-memory", "gpt2", "--strategies", "zero2", "--json"};
  arguments.insert(arguments.end(), pipeline.begin(), pipeline.end());
  const ProgramResult estimated = run(arguments);
  ASSERT_EQ(estimated.exit_code, 0) << estimated.err;
  const json rows = json::parse(estimated.out)["training"];
  ASSERT_EQ(rows.size(), 9U);  // three stages by three ways to recompute
  for (const char* recompute : {"none", "selective", "full"}) {
    arguments = {"plan",        "--model", "gpt2",     "--strategy", "zero2",
                 "--recompute", recompute, "--format", "json"};
    arguments.insert(arguments.end(), pipeline.begin(), pipeline.end());
    const ProgramResult plan = run(arguments);
    ASSERT_EQ(plan.exit_code, 0) << plan.err;
    const json stages = json::parse(plan.out)["stages"];
    std::size_t compared = 0;
    for (const json& row : rows) {
      if (row["recompute"] != recompute) continue;
      EXPECT_EQ(row["peak_bytes"], stages[row["pipeline_rank"].get<std::size_t>()]["peak_bytes"]);
      ++compared;
    }
    EXPECT_EQ(compared, 3U);
  }
  const ProgramResult uneven = run({"estimate-memory", "gpt2", "--ranks", "8", "--pipeline", "3"});
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_THAT(uneven.err, HasSubstr("each stage has the same number of ranks"));
}

TEST_F(EstimateCommand, NamesMeanTheSameInEveryCommand) {
  for (const char* name : {"gpt2-large", "openai-community/gpt2-large", "gpt2-774m"}) {
    const ProgramResult estimate = run({"estimate-memory", "--model", name, "--json",
                                        "--strategies", "no_shard", "--sequence-length", "8"});
    ASSERT_EQ(estimate.exit_code, 0) << estimate.err;
    EXPECT_EQ(json::parse(estimate.out)["model"], name);
    const ProgramResult plan = run({"plan", "--no-default-config", "--model", name, "--format",
                                    "json", "--sequence-length", "8"});
    ASSERT_EQ(plan.exit_code, 0) << plan.err;
    EXPECT_EQ(json::parse(plan.out)["settings"]["model"], "gpt2-774m");
    EXPECT_EQ(json::parse(plan.out)["parameters"], 774030080);
  }
  const ProgramResult label = run(
      {"plan", "--no-default-config", "--model", "gpt2", "--layers", "2", "--format", "summary"});
  EXPECT_THAT(label.out, HasSubstr("GPT of 2 layers x 768, 12 heads: "));
}

TEST_F(EstimateCommand, HelpSaysWhatEachFlagTakes) {
  EXPECT_THAT(
      run({"estimate-memory", "--help"}).out,
      AllOf(HasSubstr("--layers N "), HasSubstr("--lora TEXT "),
            HasSubstr("--task text|classification|masked-lm"), HasSubstr("--mlm-probability X ")));
}

TEST_F(EstimateCommand, AnUnknownModelIsToldOfThoseThatAreThere) {
  const auto error = [&](const char* model) {
    const ProgramResult estimate = run({"estimate-memory", model});
    EXPECT_EQ(estimate.exit_code, 2);
    const ProgramResult train = run({"train", "--model", model});
    EXPECT_EQ(train.exit_code, 2);
    EXPECT_EQ(train.err, estimate.err);
    return train.err;
  };
  EXPECT_THAT(error("EleutherAI/pythia-6.9b"),
              AllOf(HasSubstr("gpt2-tiny, gpt2-124m (gpt2), gpt2-350m (gpt2-medium)"),
                    HasSubstr("nearest in size: llama2-7b\n")));
  EXPECT_THAT(error("EleutherAI/pythia-2.8b"),
              HasSubstr("nearest in size: gpt2-xl with --layers 32 --heads 32 --width 2560 "
                        "(2.65 G parameters)"));
  EXPECT_THAT(error("facebook/opt-350m"), HasSubstr("nearest in size: gpt2-350m"));
  EXPECT_THAT(error("google/gemma-0.5b"), HasSubstr("nearest in size: gpt2-350m"));
  EXPECT_THAT(error("falcon"), HasSubstr("--layers, --heads and --width make others"));
  EXPECT_THAT(error("gpt2-medum"), HasSubstr("did you mean 'gpt2-medium'?"));
  EXPECT_THAT(error("meta-llama/gpt2"), HasSubstr("there is no model 'meta-llama/gpt2'"));
}

TEST_F(EstimateCommand, LimitsAndWordsAreThoseOfTraining) {
  const auto error = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"estimate-memory", "gpt2"});
    const ProgramResult result = run(more);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_LT(result.err.size(), 200U);
    return result.err;
  };
  EXPECT_THAT(error({"--precision", "fp64"}),
              AllOf(HasSubstr("--precision"), HasSubstr("fp32"), HasSubstr("fp8")));
  EXPECT_THAT(error({"--ranks", "100000000"}), HasSubstr("--ranks"));
  EXPECT_THAT(error({"--ranks", "0"}), HasSubstr("--ranks"));
  EXPECT_THAT(error({"--micro-batch", "0"}), HasSubstr("--micro-batch"));
  EXPECT_THAT(error({"--micro-batch", "999999999999"}), HasSubstr("--micro-batch"));
  for (const char* wrong : {"abc", "", "1.5", "0x2"}) {
    for (const char* flag : {"--ranks", "--micro-batch", "--sequence-length"}) {
      EXPECT_THAT(error({flag, wrong}),
                  HasSubstr(concat(flag, ": '", wrong, "' is not an integer")));
    }
  }
  EXPECT_THAT(error({"--ranks", "2,x"}), HasSubstr("--ranks: 'x' is not an integer"));
  EXPECT_THAT(error({"--sequence-length", "0"}), HasSubstr("--sequence-length: 0 is out of range"));
  EXPECT_THAT(error({"--sequence-length", "1025"}), HasSubstr("the model's context has 1024"));
  EXPECT_THAT(error({"--library_name", "transformers"}), HasSubstr("this program's own presets"));
  EXPECT_THAT(error({"--rank", "2"}), HasSubstr("did you mean '--ranks'"));
}

}  // namespace
}  // namespace tessera
