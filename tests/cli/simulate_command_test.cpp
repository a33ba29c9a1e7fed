#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "tessera/lab/hardware_profile.h"

namespace tessera::simulate_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SimulateCommand : public test::ProgramTest {
 protected:
  test::ProgramResult simulate(std::vector<std::string> flags) {
    std::vector<std::string> all{"simulate",    "--model", "gpt2-124m",         "--ranks", "8",
                                 "--precision", "bf16",    "--sequence-length", "1024"};
    all.insert(all.end(), flags.begin(), flags.end());
    return run(all);
  }
};

TEST_F(SimulateCommand, PrintsTimeMemoryAndTrafficOfAMachineThatIsNotHere) {
  const test::ProgramResult result = simulate({"--profile", "h200-sxm"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("profile h200-sxm; nothing was measured here"), HasSubstr("MFU"),
                    HasSubstr("tokens/s"), HasSubstr("exposed"), HasSubstr("NCCL"),
                    HasSubstr("reduce scatter"), HasSubstr("peak of the sum")));
}

TEST_F(SimulateCommand, SweepsSettingsAndMarksWhatNothingBeats) {
  const test::ProgramResult result =
      simulate({"--format", "json", "--sweep",
                "ranks=7,16384 strategy=zero1,full_shard,hybrid_shard micro-batch=1,8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json.at("runs").size(), 12U);
  int best = 0, many = 0;
  for (const auto& run : json.at("runs")) {
    best += run.at("best").get<bool>() ? 1 : 0;
    EXPECT_GT(run.at("step_seconds").get<double>(), 0.0);
    many += run.at("ranks").get<int>() == 16384 ? 1 : 0;
  }
  EXPECT_EQ(many, 6);
  EXPECT_GT(best, 0);
  EXPECT_LT(best, 12);
  const test::ProgramResult table =
      simulate({"--sweep", "strategy=no_shard,full_shard replicas=0,3"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.err, HasSubstr("note: left out no_shard, 3; full_shard, 3: "));
  EXPECT_THAT(table.out, AllOf(HasSubstr("tokens/s"), HasSubstr("/rank"), HasSubstr("best")));
}

/// Without the line breaks of a paragraph.
std::string in_one_line(const std::string& text) {
  return std::regex_replace(text, std::regex("\\s+"), " ");
}

TEST_F(SimulateCommand, SaysHowFarToTrustIt) {
  const test::ProgramResult h100 = simulate({});
  EXPECT_THAT(in_one_line(h100.out), HasSubstr("trust it as a limit: seven steps measured on "
                                               "H100s, one GPU each, are within 6 % of it"));
  EXPECT_THAT(in_one_line(h100.out), HasSubstr(" of 989 TFLOP/s in bf16"));
  const test::ProgramResult a100 = simulate({"--profile", "a100-sxm", "--sweep", "micro-batch=1"});
  EXPECT_THAT(in_one_line(a100.out),
              HasSubstr("profile a100-sxm: a limit: no step was measured on this GPU"));
}

TEST_F(SimulateCommand, MfuIsToldInBothConventions) {
  const auto json = nlohmann::json::parse(simulate({"--format", "json"}).out).at("runs").at(0);
  // FLOPs per token with all scores of attention, and without those above the diagonal.
  const double matrices = 6.0 * (12 * 12.0 * 768 * 768 + 50257.0 * 768);
  const double attention = 12.0 * 12 * 768 * 1024;
  EXPECT_NEAR(json.at("full_mfu").get<double>() / json.at("mfu").get<double>(),
              (matrices + attention) / (matrices + attention / 2), 1e-12);
  auto profile = nlohmann::json::parse(run({"simulate", "--show-profile"}).out);
  profile["peak"]["bf16"]["value"] = 183e9;
  std::ofstream(path("small.json")) << profile.dump();
  const test::ProgramResult small = simulate({"--profile", path("small.json")});
  EXPECT_THAT(in_one_line(small.out),
              AllOf(HasSubstr(" causal (attention's"), HasSubstr(" full (all of it"),
                    HasSubstr("of 183 GFLOP/s in bf16"), Not(HasSubstr("0 TFLOP"))));
}

TEST_F(SimulateCommand, TellsFromHowManyTokensOnTheHostIsHidden) {
  const auto run_of = [&](const char* samples) {
    const test::ProgramResult result =
        run({"simulate", "--model", "gpt2-124m", "--ranks", "1", "--precision", "bf16",
             "--sequence-length", "1024", "--profile", "h100-sxm", "--micro-batch", samples,
             "--offload-optimizer", "host", "--format", "json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("runs").at(0);
  };
  const auto few = run_of("1"), many = run_of("32");
  const auto seconds = [](const nlohmann::json& run) {
    return run.at("step_seconds").get<double>();
  };
  const double host = few.at("host_update_seconds").get<double>();
  EXPECT_GT(host, 0.0);
  EXPECT_EQ(many.at("host_update_seconds").get<double>(), host);  // whatever the step's tokens
  EXPECT_GT(few.at("tokens_to_hide_updates").get<double>(), 1024);
  EXPECT_GT(seconds(few), host);  // waits for the host
  EXPECT_LT(many.at("tokens_to_hide_updates").get<double>(), 32 * 1024);
  EXPECT_LT(seconds(many) - many.at("lanes").at("compute").at("busy_seconds").get<double>(), host);
  const test::ProgramResult text = simulate({"--offload-optimizer", "host"});
  EXPECT_THAT(in_one_line(text.out), HasSubstr("ms of optimizer steps on the host, at its"));
  EXPECT_THAT(simulate({}).out, Not(HasSubstr("optimizer steps on the host")));
}

TEST_F(SimulateCommand, SweepsPrintWhatIsFixedAndWriteCsv) {
  const std::vector<std::string> flags{
      "--sweep",         "strategy=zero2,full_shard micro-batch=1,4",
      "--recompute",     "full",
      "--learning-rate", "0.5"};
  const test::ProgramResult table = simulate(flags);
  EXPECT_THAT(in_one_line(table.out), HasSubstr(" fixed: precision bf16, ranks 8, accumulate 1, "
                                                "sequence_length 1024, recompute full,"));
  EXPECT_THAT(in_one_line(table.out), HasSubstr("learning_rate 0.5"));
  std::vector<std::string> as_csv = flags;
  as_csv.insert(as_csv.end(), {"--format", "csv"});
  const test::ProgramResult csv = simulate(as_csv);
  EXPECT_EQ(csv.exit_code, 0) << csv.err;
  std::istringstream lines(csv.out);
  std::string line;
  std::vector<std::size_t> commas;
  while (std::getline(lines, line)) {
    commas.push_back(static_cast<std::size_t>(std::ranges::count(line, ',')));
  }
  ASSERT_EQ(commas.size(), 5U) << csv.out;
  for (const std::size_t count : commas) EXPECT_EQ(count, commas.front());
  EXPECT_THAT(csv.out, AllOf(testing::StartsWith("precision,ranks,accumulate,"),
                             HasSubstr(",strategy,micro_batch,"), HasSubstr(",full_mfu,"),
                             HasSubstr("\nbf16,8,1,1024,full,"), HasSubstr(",full_shard,4,")));
}

TEST_F(SimulateCommand, ATableOfASweepFitsATerminal) {
  const auto widest = [](const std::string& text) {
    std::istringstream lines(text);
    std::size_t most = 0;
    for (std::string line; std::getline(lines, line);) most = std::max(most, line.size());
    return most;
  };
  const test::ProgramResult few = simulate({"--sweep", "strategy=zero2,full_shard"});
  EXPECT_EQ(few.exit_code, 0) << few.err;
  EXPECT_LE(widest(few.out), 80U) << few.out;
  EXPECT_THAT(few.out, Not(HasSubstr("without room")));
  const test::ProgramResult many =
      simulate({"--accumulate", "8", "--sweep",
                "pipeline=1,2 pipeline-schedule=1f1b,zb-h1 strategy=full_shard micro-batch=1,2 "
                "recompute=none,selective"});
  EXPECT_EQ(many.exit_code, 0) << many.err;
  EXPECT_LE(widest(many.out), 80U) << many.out;
  EXPECT_THAT(in_one_line(many.out),
              AllOf(HasSubstr("Columns without room: full"), HasSubstr("--format csv prints all")));
}

TEST_F(SimulateCommand, StagesOfAPipelineAreAnAxisAndHaveAPicture) {
  const test::ProgramResult swept = simulate({"--format", "json", "--accumulate", "8", "--sweep",
                                              "pipeline=1,4 pipeline-schedule=gpipe,1f1b"});
  ASSERT_EQ(swept.exit_code, 0) << swept.err;
  const auto runs = nlohmann::json::parse(swept.out).at("runs");
  ASSERT_EQ(runs.size(), 4U);
  for (const auto& run : runs) {
    const bool staged = run.at("pipeline") == "4";
    ASSERT_EQ(run.at("stages").size(), staged ? 4U : 1U);
    double sum = 0.0;
    for (const auto& stage : run.at("stages")) sum += stage.at("bubble_seconds").get<double>();
    const double bubble = run.at("bubble_seconds");
    EXPECT_NEAR(bubble, sum / static_cast<double>(run.at("stages").size()), 1e-12);
    if (staged) {
      EXPECT_GT(bubble, 0.05 * run.at("step_seconds").get<double>());
      EXPECT_GT(run.at("exposed_message_seconds").get<double>(), 0.0);
    } else {
      EXPECT_EQ(bubble, 0.0);
      EXPECT_EQ(run.at("exposed_message_seconds").get<double>(), 0.0);
    }
  }
  const test::ProgramResult table = simulate({"--accumulate", "8", "--sweep", "pipeline=2,4"});
  EXPECT_THAT(table.out, AllOf(HasSubstr("bubble"), HasSubstr("messages"), HasSubstr("4 x 1 x 2")));
  const test::ProgramResult one =
      simulate({"--pipeline", "4", "--accumulate", "8", "--pipeline-schedule", "gpipe"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  // The last stage but one, for the last has the head alone: all forwards before all backwards.
  const std::size_t row = one.out.find("\n2  .");
  ASSERT_NE(row, one.out.npos) << one.out;
  const std::string own = one.out.substr(row + 1, one.out.find('\n', row + 1) - row - 1);
  EXPECT_LT(own.find('0'), own.find('7'));
  EXPECT_LT(own.rfind('6'), own.find('b'));
  EXPECT_LT(own.find('a'), own.find('h'));
}

TEST_F(SimulateCommand, HybridsHaveAReplicaPerNode) {
  const test::ProgramResult table =
      simulate({"--sweep", "strategy=hybrid_shard,full_shard ranks=8,512 replicas=0"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("mesh"), HasSubstr("64 x 8 "), HasSubstr("2 x 4 "),
                               HasSubstr("1 x 512 ")));
  for (const auto& [per_node, replicas] : {std::pair("8", 4), std::pair("4", 8)}) {
    const test::ProgramResult result =
        simulate({"--sweep", "strategy=hybrid_shard ranks=32 replicas=0", "--ranks-per-node",
                  per_node, "--format", "json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(nlohmann::json::parse(result.out).at("runs").at(0).at("replicas"), replicas);
  }
}

TEST_F(SimulateCommand, TakesAProfileOfOnesOwn) {
  const test::ProgramResult shown = run({"simulate", "--show-profile"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  auto profile = nlohmann::json::parse(shown.out);
  profile["name"] = "slow";
  profile["memory_bytes"]["value"] = 1e9;
  std::ofstream(path("slow.json")) << profile.dump();
  const test::ProgramResult result = simulate({"--profile", path("slow.json")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("profile slow"), HasSubstr("It does not fit")));
}

TEST_F(SimulateCommand, ChecksItselfAgainstAComparison) {
  const test::ProgramResult compared = run({"compare",
                                            "--layers",
                                            "1",
                                            "--heads",
                                            "2",
                                            "--width",
                                            "16",
                                            "--context-length",
                                            "16",
                                            "--data",
                                            write_text(),
                                            "--strategies",
                                            "no_shard,zero1",
                                            "--ranks",
                                            "2",
                                            "--steps",
                                            "3",
                                            "--repeats",
                                            "1",
                                            "--out",
                                            path("out")});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  auto profile = nlohmann::json::parse(run({"simulate", "--show-profile"}).out);
  profile["name"] = "by-hand";
  profile["device"] = "cpu";
  profile["cores"]["value"] = 2;
  std::ofstream(path("cpu.json")) << profile.dump();
  const std::vector<std::string> check{"simulate", "--profile", path("cpu.json"), "--check",
                                       path("out/results.json")};
  const test::ProgramResult table = run(check);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("profile by-hand, 2 configurations"), HasSubstr("zero1"),
                               HasSubstr("error: mean ")));
  EXPECT_THAT(in_one_line(table.out), HasSubstr("2 of 2 have one run each"));
  std::vector<std::string> as_json = check;
  as_json.insert(as_json.end(), {"--format", "json"});
  const auto checked = nlohmann::json::parse(run(as_json).out);
  const auto results = nlohmann::json::parse(test::read_file(path("out/results.json")));
  ASSERT_EQ(checked.at("runs").size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& one = checked.at("runs")[i];
    const std::vector<double> steps = results.at("cells")[i].at("repeats")[0].at("step_seconds");
    ASSERT_EQ(steps.size(), 2U);
    const double measured = one.at("measured_seconds"), predicted = one.at("predicted_seconds");
    EXPECT_DOUBLE_EQ(measured, 0.5 * (steps[0] + steps[1])) << "of two steps both count";
    EXPECT_EQ(one.at("spread").get<double>(), 0.0);  // of one run
    EXPECT_GT(predicted, 0.0);
    EXPECT_DOUBLE_EQ(one.at("error").get<double>(), predicted / measured - 1.0);
  }
  // Two are too few to learn from. Six take 0.96 to 1.06 of their predictions: 1.01 at the median,
  // and nine of ten within the largest distance from that.
  std::vector<std::string> learn = check;
  learn.emplace_back("--learn");
  EXPECT_THAT(run(learn).out, HasSubstr("2 configurations, fewer than 4"));
  EXPECT_EQ(find_profile(path("cpu.json")).residuals.size(), 0U);
  auto more = results;
  for (int i = 0; i < 6; ++i) {
    more["cells"][i] = results.at("cells")[0];
    const double predicted = checked.at("runs")[0].at("predicted_seconds");
    const double measured = predicted * (1.0 + 0.02 * (i - 2));
    more["cells"][i]["repeats"][0]["step_seconds"] = {measured, measured};
  }
  std::ofstream(path("out/results.json")) << more.dump();
  EXPECT_THAT(run(learn).out, AllOf(HasSubstr("steps take 1.010 times as long as predicted"),
                                    HasSubstr("expected within 5.0 %")));
  const std::vector<Residual> residuals = find_profile(path("cpu.json")).residuals;
  ASSERT_EQ(residuals.size(), 1U);
  EXPECT_NEAR(residuals[0].ratio, 1.01, 1e-9);
  EXPECT_NEAR(residuals[0].half_width, 1.06 / 1.01 - 1.0, 1e-9);
  EXPECT_EQ(residuals[0].cells, 6);
  EXPECT_TRUE(residuals[0].meets);
  const test::ProgramResult again = run(check);
  EXPECT_THAT(again.out, HasSubstr("interval: 6 of 6 measured steps are within"));
  EXPECT_THAT(
      run({"simulate", "--profile", path("cpu.json"), "--ranks", "2", "--precision", "bf16"}).out,
      HasSubstr(" to "));
  // A cell is steady if every second run of it says what the others say.
  auto repeated = more;
  auto& runs = repeated["cells"][0]["repeats"];
  for (const double seconds : {0.5, 0.6, 0.52, 0.61}) {
    if (seconds > 0.5) runs.push_back(runs[0]);
    runs.back()["step_seconds"] = {seconds, seconds};
  }
  std::ofstream(path("repeated.json")) << repeated.dump();
  std::vector<std::string> of_repeated = as_json;
  of_repeated[4] = path("repeated.json");
  const auto unsteady = nlohmann::json::parse(run(of_repeated).out).at("runs")[0];
  EXPECT_NEAR(unsteady.at("measured_seconds").get<double>(), 0.56, 1e-9) << "of 0.52 and 0.6";
  EXPECT_NEAR(unsteady.at("spread").get<double>(), (0.605 - 0.51) / 0.56, 1e-9);
  EXPECT_FALSE(unsteady.at("steady").get<bool>());
  std::vector<std::string> learn_all = learn;
  learn_all[4] = path("repeated.json");
  EXPECT_THAT(in_one_line(run(learn_all).out), HasSubstr("of that, by 6 configurations"))
      << "an unsteady one makes the interval wider";
  // Each of several comparisons has a table; what is said and learnt is of all together.
  auto other = more;
  other["model"] = "another";
  for (int i = 0; i < 6; ++i) {
    const double predicted = checked.at("runs")[0].at("predicted_seconds");
    const double measured = predicted * (1.0 + 0.03 * (i - 2));
    other["cells"][i]["repeats"][0]["step_seconds"] = {measured, measured};
  }
  std::ofstream(path("other.json")) << other.dump();
  std::vector<std::string> learn_both = learn;
  learn_both[4] += "," + path("other.json");
  const std::string of_all = run(learn_both).out;
  EXPECT_THAT(in_one_line(of_all), HasSubstr("within 7.9 % of that, by 12 configurations"));
  EXPECT_THAT(of_all,
              AllOf(HasSubstr("another\nprofile by-hand, 6 configurations"),
                    HasSubstr("all 2 comparisons, 12 configurations"), HasSubstr("error: mean ")));
  const std::vector<Residual> of_both = find_profile(path("cpu.json")).residuals;
  ASSERT_EQ(of_both.size(), 1U);
  EXPECT_NEAR(of_both[0].ratio, 1.01, 1e-9);
  EXPECT_NEAR(of_both[0].half_width, 1.09 / 1.01 - 1.0, 1e-9);
  EXPECT_EQ(of_both[0].cells, 12);
  EXPECT_THAT(of_both[0].source, HasSubstr("; another, "));
  std::vector<std::string> both_as_json = as_json;
  both_as_json[4] = learn_both[4];
  const auto both = nlohmann::json::parse(run(both_as_json).out);
  EXPECT_EQ(both.at("runs").size(), 12U);
  EXPECT_EQ(both.at("steady"), 12);
  EXPECT_EQ(both.at("runs")[11].at("results"), path("other.json"));
  EXPECT_EQ(both.at("comparisons")[1].at("model"), "another");
  EXPECT_EQ(both.at("comparisons")[1].at("configurations"), 6);
  EXPECT_NEAR(both.at("worst_error").get<double>(), 1.01 / 0.94 - 1.0, 1e-9);
  EXPECT_THAT(run({"simulate", "--profile", path("cpu.json"), "--check",
                   path("out/results.json") + "," + path("none.json")})
                  .err,
              HasSubstr("none.json"));
  EXPECT_THAT(run({"simulate", "--check", path("out/results.json"), "--learn"}).err,
              HasSubstr("h100-sxm comes with Tessera"));
  const test::ProgramResult predicted =
      run({"compare", "--ranks", "2", "--simulate", path("cpu.json"), "--precision", "bf16",
           "--only-simulate", "--out", path("predicted")});
  EXPECT_EQ(predicted.exit_code, 0) << predicted.err;
  const test::ProgramResult none =
      run({"simulate", "--profile", path("cpu.json"), "--check", path("predicted/results.json")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("has no measured runs"));
}

TEST_F(SimulateCommand, HelpHasWhatConcernsAPrediction) {
  const test::ProgramResult help = run({"help", "simulate"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  EXPECT_EQ(help.out, run({"simulate", "--help"}).out);
  for (const char* flag : {"--micro-batch ", "--profile ", "--sweep ", "--optimizer ", "--wrap "}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + flag));
  }
  for (const char* flag : {"--save ", "--beta1 ", "--loss-scale ", "--eval-every ", "--bind "}) {
    EXPECT_THAT(help.out, Not(HasSubstr(std::string("\n  ") + flag)));
  }
  EXPECT_THAT(help.out, HasSubstr("Other flags of 'tessera train'"));
  EXPECT_EQ(simulate({"--save", path("s"), "--beta1", "0.8"}).exit_code, 0) << "they are taken";
  EXPECT_EQ(run({"help", "simulat"}).exit_code, 2);
  EXPECT_EQ(run({"help"}).exit_code, 0);
  // Optimizers with the same default stand together.
  EXPECT_THAT(run({"help", "train"}).out, HasSubstr("[adamw, adamw8bit: 0.9"));
}

TEST_F(SimulateCommand, WhatIsWrongIsNamed) {
  const auto refused = [&](std::vector<std::string> flags, const std::string& says) {
    const test::ProgramResult result = simulate(std::move(flags));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(says));
  };
  refused({"--profile", "h300"}, "there is no profile 'h300'");
  refused({"--sweep", "ranks"}, "'ranks' names no values");
  refused({"--sweep", "rangs=1"}, "there is no setting 'rangs'");
  refused({"--sweep", "strategy=zero9"}, "no combination can be simulated");
  refused({"--ranks-per-node", "0"}, "--ranks-per-node: 0 is out of range");
}

}  // namespace
}  // namespace tessera::simulate_command_test
