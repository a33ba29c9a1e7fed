#include <gmock/gmock.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/launched_program.h"

// --fit of `tessera plan` and `tessera train`.
namespace tessera::fit_program_test {
namespace {

using test::ProgramResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FitProgram : public test::LaunchTest {};

TEST_F(FitProgram, PlansWhatItChoosesAndListsAllInJson) {
  const ProgramResult result = run({"plan", "--device", "cpu", "--ranks", "2", "--fit", "22MiB",
                                    "--recompute", "full", "--format", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = nlohmann::json::parse(result.out);
  const auto& best = plan["fit"]["candidates"][0];
  for (const char* const setting :
       {"strategy", "recompute", "offload_optimizer", "offload_parameters"}) {
    EXPECT_EQ(best[setting], plan["settings"][setting]) << setting;
  }
  EXPECT_EQ(best["recompute"], "full");
  EXPECT_EQ(best["device_bytes"], plan["peak_bytes"]["total"]);
  EXPECT_LE(best["device_bytes"], 22 << 20);
  EXPECT_EQ(plan["fit"]["device_bytes"], 22 << 20);
  EXPECT_EQ(plan["fit"]["profile"], "h100-sxm");
  std::size_t timed_misses = 0;
  for (const auto& candidate : plan["fit"]["candidates"]) {
    EXPECT_EQ(candidate["fits"], candidate["device_bytes"] <= 22 << 20);
    EXPECT_EQ(candidate["fits"], !candidate.contains("objection"));
    if (!candidate["fits"] && !candidate["step_seconds"].is_null()) ++timed_misses;
  }
  EXPECT_GT(timed_misses, 0U);
}

// Of a GPU's profile: context, NCCL and graph are within the budget, whatever machine plans.
TEST_F(FitProgram, PlansForTheDeviceOfTheProfileWithWhatAGpuHoldsBesideThePlan) {
  const ProgramResult result = run({"plan", "--ranks", "2", "--precision", "bf16", "--fit", "2GiB",
                                    "--strategy", "full_shard", "--format", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = nlohmann::json::parse(result.out);
  EXPECT_EQ(plan["settings"]["device"], "cuda");
  std::int64_t beside = 0;
  for (const auto& [name, bytes] : plan["gpu_overhead_bytes"].items()) {
    beside += bytes.get<std::int64_t>();
  }
  EXPECT_GT(beside, 640 << 20);
  EXPECT_EQ(plan["device_bytes"], plan["peak_bytes"]["total"].get<std::int64_t>() + beside);
  EXPECT_EQ(plan["fit"]["candidates"][0]["device_bytes"], plan["device_bytes"]);
  const ProgramResult refused = run({"plan", "--ranks", "2", "--fit", "640MiB"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("the smallest one needs"));
}

// One meaning: the peak, and what a GPU holds beside the plan.
TEST_F(FitProgram, EveryCommandSaysTheSameOfWhatADeviceMustHave) {
  const std::vector<std::string> sizes{"--model", "gpt2-124m", "--precision",   "bf16",
                                       "--ranks", "2",         "--micro-batch", "1"};
  const auto ask = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), sizes.begin(), sizes.end());
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << words[0] << ": " << result.err;
    return result.exit_code == 0 ? result.out : "{}";
  };
  const auto plan = nlohmann::json::parse(
      ask({"plan"}, {"--device", "cuda", "--strategy", "zero2", "--format", "json"}));
  const auto needed = plan.at("device_bytes").get<std::int64_t>();
  EXPECT_GT(needed, plan.at("peak_bytes").at("total").get<std::int64_t>());
  const auto estimate = nlohmann::json::parse(
      ask({"estimate-memory"}, {"--device", "cuda", "--strategies", "zero2", "--json"}));
  EXPECT_EQ(estimate.at("training").at(0).at("device_bytes"), needed);
  const auto simulated = nlohmann::json::parse(ask(
      {"simulate"}, {"--sweep", "strategy=zero2", "--profile", "h100-sxm", "--format", "json"}));
  EXPECT_EQ(simulated.at("runs").at(0).at("memory_bytes"), needed);
  const std::string compared = ask({"compare"}, {"--strategies", "zero2", "--simulate", "h100-sxm",
                                                 "--only-simulate", "--out", path("results")});
  EXPECT_THAT(compared, HasSubstr("memory"));
  const std::string words = ask({"plan"}, {"--device", "cuda", "--strategy", "zero2"});
  const std::size_t at = words.find("needs of its GPU");
  ASSERT_NE(at, words.npos);
  std::istringstream row(words.substr(at + 16));
  std::string number, unit;
  row >> number >> unit;
  EXPECT_THAT(compared, HasSubstr(number + " " + unit));
}

TEST_F(FitProgram, TakesTheBudgetOfAConfigFileAndSaysWhyOthersDoNotFit) {
  const std::string config = write("fit.json", R"({"fit": "22MiB", "ranks": 2})");
  const ProgramResult result =
      run({"plan", "--config", config, "--device", "cpu", "--format", "summary"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("fit: 22.0 MiB per rank"));
  EXPECT_THAT(result.out, HasSubstr("chosen"));
  EXPECT_THAT(result.out, HasSubstr("device +"));
}

TEST_F(FitProgram, TriesADiskWhereAFolderIsGivenAndGradientsOnTheHostAlways) {
  const auto values_of = [&](const std::vector<std::string>& more, const std::string& setting) {
    std::vector<std::string> arguments{"plan",  "--device",
                                       "cpu",   "--ranks",
                                       "2",     "--fit",
                                       "64MiB", "--strategy",
                                       "zero2", "--recompute",
                                       "none",  "--format",
                                       "json",  "--offload-parameters",
                                       "none"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::set<std::string> values;
    const auto plan = nlohmann::json::parse(result.out);
    for (const auto& candidate : plan["fit"]["candidates"]) {
      values.insert(candidate[setting].get<std::string>());
    }
    return values;
  };
  EXPECT_THAT(values_of({}, "offload_gradients"), ElementsAre("host", "none"));
  EXPECT_THAT(values_of({}, "offload_optimizer"), ElementsAre("host", "host:0.5", "none"));
  EXPECT_THAT(values_of({"--offload-path", path("")}, "offload_optimizer"),
              ElementsAre("disk", "host", "host:0.5", "none"));
}

TEST_F(FitProgram, TriesParametersOnADiskWhereAFolderIsGiven) {
  const auto values_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"plan",       "--device",
                                       "cpu",        "--ranks",
                                       "2",          "--fit",
                                       "64MiB",      "--strategy",
                                       "full_shard", "--recompute",
                                       "full",       "--format",
                                       "json",       "--offload-optimizer",
                                       "host",       "--offload-gradients",
                                       "none"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::set<std::string> values;
    const auto plan = nlohmann::json::parse(result.out);
    for (const auto& candidate : plan["fit"]["candidates"]) {
      values.insert(candidate["offload_parameters"].get<std::string>());
      EXPECT_GT(candidate["step_seconds"].get<double>(), 0.0);
    }
    return values;
  };
  EXPECT_THAT(values_of({}), ElementsAre("host", "host:0.5", "none"));
  EXPECT_THAT(values_of({"--offload-path", path("")}),
              ElementsAre("disk", "host", "host:0.5", "none"));
}

TEST_F(FitProgram, ATableFitsATerminal) {
  for (const char* const budget : {"600MiB", "1500MiB"}) {
    SCOPED_TRACE(budget);
    const ProgramResult result =
        run({"plan", "--device", "cpu", "--model", "gpt2-124m", "--precision", "bf16", "--ranks",
             "4", "--fit", budget, "--offload-path", path(""), "--recompute", "full", "--format",
             "summary"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::string table = result.out.substr(0, result.out.find("schedules fit"));
    std::istringstream lines(table.substr(table.find("fit: ")));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 87U) << line;
  }
}

TEST_F(FitProgram, RefusesWhatIsNoBudgetAndWhatDecidesTheSame) {
  write_text();
  for (const auto& [more, said] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--fit", "much"}, "or auto, the memory that there is"},
           {{"--fit", "0"}, "leaves no memory"},
           {{"--fit", "auto", "--auto-batch"}, "both decide what fills the memory"},
           {{"--fit", "10KiB"}, "the smallest one needs"}}) {
    std::vector<std::string> arguments{"--data", path("data.txt"), "--steps", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = train(arguments);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr(said));
  }
}

TEST_F(FitProgram, ChoosesTheSameInAllProcesses) {
  write_text();
  const ProgramResult result =
      launch({"--processes", "2"}, {"--data", path("data.txt"), "--steps", "1", "--fit", "150KiB",
                                    "--log", path("log.jsonl"), "--sample-tokens", "0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[rank 0] fit: 150 KiB per rank"));
  const auto log = read_log("log.jsonl");
  const auto& peaks = log.back()["peak_bytes"];
  EXPECT_EQ(peaks["predicted"]["total"], peaks["measured"]["total"]);
  EXPECT_LE(peaks["measured"]["total"].get<std::int64_t>(), 150 * 1024);
}

}  // namespace
}  // namespace tessera::fit_program_test
