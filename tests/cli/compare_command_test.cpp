#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "cli/launched_program.h"
#include "tessera/lab/hardware_profile.h"

// Comparisons of very small models.
namespace tessera::compare_command_test {
namespace {

using nlohmann::json;
using test::await;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class Compare : public test::ProgramTest {
 protected:
  ProgramResult compare(const std::vector<std::string>& more,
                        const std::function<void(pid_t)>& while_running = {}) const {
    std::vector<std::string> all{
        "compare", "--layers",      "1", "--heads", "2",        "--width", "16", "--context-length",
        "16",      "--micro-batch", "2", "--out",   path("out")};
    all.insert(all.end(), more.begin(), more.end());
    return run(all, while_running);
  }
  json results() const { return json::parse(test::read_file(path("out/results.json"))); }

  /// The state of each cell, by the values of strategy and ranks.
  std::map<std::string, std::string> states() const {
    std::map<std::string, std::string> all;
    const json comparison = results();
    for (const json& cell : comparison.at("cells")) {
      const auto& settings = cell.at("settings");
      const std::string name = settings.at("strategy").get<std::string>() + " " +
                               settings.at("ranks").get<std::string>();
      all[name] = cell.at("state");
    }
    return all;
  }

  static std::size_t widest_line(const std::string& text) {
    std::size_t widest = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
    return widest;
  }
};

/// The process that `parent` has started, as soon as it has; 0: it has not.
pid_t child_of(pid_t parent) {
  std::vector<pid_t> children;
  await([&] {
    children = test::children_of(parent);
    return !children.empty();
  });
  return children.empty() ? 0 : children.front();
}

TEST_F(Compare, RunsTheMatrixInTurnsAndSaysWhichCellsAreImpossible) {
  const ProgramResult result =
      compare({"--strategies", "zero1,hybrid_shard", "--ranks", "2,3", "--replicas", "2", "--data",
               write_text(), "--steps", "3", "--repeats", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(states(), ::testing::ElementsAre(std::pair("hybrid_shard 2", "done"),
                                               std::pair("hybrid_shard 3", "impossible"),
                                               std::pair("zero1 2", "done"),
                                               std::pair("zero1 3", "impossible")));
  EXPECT_THAT(result.err, HasSubstr("note: 2 of 4 cells cannot run; the table at the end"));
  EXPECT_THAT(result.out, HasSubstr("hybrid_shard, 3 ranks: "));
  // Each repeat begins with another cell.
  const auto place = [&](const std::string& label) { return result.err.find(label); };
  EXPECT_LT(place("repeat 1, zero1, 2 ranks:"), place("repeat 1, hybrid_shard, 2 ranks:"));
  EXPECT_LT(place("repeat 1, hybrid_shard"), place("repeat 2, hybrid_shard")) << result.err;
  EXPECT_LT(place("repeat 2, hybrid_shard, 2 ranks:"), place("repeat 2, zero1, 2 ranks:"));
  const json all = results();
  for (const json& cell : all.at("cells")) {
    if (cell.at("state") != "done") continue;
    ASSERT_THAT(cell.at("repeats"), SizeIs(2));
    for (const json& one : cell.at("repeats")) {
      EXPECT_THAT(one.at("step_seconds"), SizeIs(2));
      EXPECT_EQ(one.at("losses"), cell.at("repeats")[0].at("losses"));
      EXPECT_EQ(one.at("peak_bytes"), cell.at("predicted").at("peak_bytes"));
    }
    ASSERT_THAT(cell.at("timeline"), Not(::testing::IsEmpty()));
    bool computes = false;
    for (const json& span : cell.at("timeline")) {
      computes = computes || span.at("lane") == "compute";
      EXPECT_LT(span.at("begin").get<double>(), span.at("end").get<double>());
      EXPECT_LT(span.at("end").get<double>(), 60.0);
    }
    EXPECT_TRUE(computes);
  }
  EXPECT_LE(widest_line(result.out.substr(0, result.out.find("\nreport "))), 80U) << result.out;
  EXPECT_THAT(test::read_file(path("out/report.html")), HasSubstr("hybrid_shard"));
  // Runs have the threads that `tessera train` has.
  ASSERT_EQ(train({"--data", path("data.txt"), "--ranks", "2", "--steps", "1", "--quiet", "--log",
                   path("own"), "--sample-tokens", "0"})
                .exit_code,
            0);
  const auto threads = [&](const std::string& log) {
    return read_log(log).at(0).at("threads_per_rank");
  };
  EXPECT_EQ(threads("out/runs/cell-1-repeat-1.jsonl"), threads("own"));
}

TEST_F(Compare, StagesOfAPipelineAreAxes) {
  const ProgramResult result = compare(
      {"--strategies", "full_shard", "--ranks", "6", "--pipelines", "1,2,3", "--pipeline-schedules",
       "gpipe,1f1b", "--accumulate", "4", "--simulate", "h100-sxm", "--only-simulate"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, std::size_t> ranks_of_cells;
  const json all = results();
  for (const json& cell : all.at("cells")) {
    const json& settings = cell.at("settings");
    std::set<int> ranks;
    for (const json& span : cell.at("predicted").at("timeline")) {
      ranks.insert(span.value("pipeline_rank", 0));
    }
    ranks_of_cells[settings.at("pipeline").get<std::string>() + " " +
                   settings.at("pipeline_schedule").get<std::string>()] = ranks.size();
  }
  // One stage has one cell.
  EXPECT_THAT(ranks_of_cells,
              ::testing::ElementsAre(std::pair("1 -", 1U), std::pair("2 1f1b", 2U),
                                     std::pair("2 gpipe", 2U), std::pair("3 1f1b", 3U),
                                     std::pair("3 gpipe", 3U)));
  EXPECT_THAT(result.out, HasSubstr("bubble"));
  EXPECT_LE(widest_line(result.out.substr(0, result.out.find("\nreport "))), 80U) << result.out;
  const std::string report = test::read_file(path("out/report.html"));
  EXPECT_THAT(report, AllOf(HasSubstr("full_shard, 6 ranks, pipeline 1"),
                            HasSubstr("full_shard, 6 ranks, pipeline 3, gpipe"),
                            HasSubstr(">stage 2<"), HasSubstr("messages between stages")));
}

TEST_F(Compare, MeasuresTheTimelineOfEveryStage) {
  const ProgramResult result =
      compare({"--strategies", "no_shard", "--ranks", "2", "--pipelines", "2", "--accumulate", "3",
               "--data", write_text(), "--steps", "3", "--repeats", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::set<std::pair<int, int>> passes;  // pipeline rank and micro-step
  const json all = results();
  for (const json& span : all.at("cells")[0].at("timeline")) {
    if (span.at("lane") != "compute" || !span.contains("micro_step")) continue;
    EXPECT_EQ(span.at("stage").get<int>(), span.value("pipeline_rank", 0));
    passes.emplace(span.value("pipeline_rank", 0), span.at("micro_step").get<int>());
  }
  EXPECT_THAT(passes, SizeIs(6));
}

TEST_F(Compare, GoesOnAfterCtrlCAndAfterAFailure) {
  const std::vector<std::string> flags{
      "--strategies", "no_shard,zero1", "--ranks", "1,2",       "--data",
      write_text(),   "--steps",        "300",     "--repeats", "1"};
  const ProgramResult stopped = compare(flags, [&](pid_t program) {
    kill(child_of(program), SIGKILL);  // the first cell fails
    // The third has begun, so the second is kept.
    await([&] { return std::filesystem::exists(path("out/runs/cell-3-repeat-1.txt")); });
    kill(program, SIGINT);
  });
  EXPECT_EQ(stopped.exit_code, 128 + SIGINT) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("failed: killed by signal 9"));
  EXPECT_THAT(stopped.out, HasSubstr("the same command with --resume goes on"));
  EXPECT_THAT(stopped.out, HasSubstr("failed: no_shard, 1 rank: killed by signal 9"));
  EXPECT_EQ(states().at("no_shard 1"), "failed");
  EXPECT_EQ(states().at("no_shard 2"), "done");
  EXPECT_EQ(states().at("zero1 2"), "missing");
  EXPECT_TRUE(std::filesystem::exists(path("out/report.html")));
  const json kept = results().at("cells")[1].at("repeats");

  const auto resume = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    more.push_back("--resume");
    return compare(more);
  };
  EXPECT_THAT(compare(flags).err, HasSubstr("holds results already; give --resume"));
  const ProgramResult resumed = resume({});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, Not(HasSubstr("failed")));
  for (const auto& [name, state] : states()) EXPECT_EQ(state, "done") << name;
  EXPECT_EQ(results().at("cells")[1].at("repeats"), kept);
  // Nothing is left to do.
  EXPECT_EQ(resume({}).err, "");
}

TEST_F(Compare, AddsRepeatsToThoseThatAreThere) {
  const auto with_repeats = [&, data = write_text()](const char* count) {
    std::vector<std::string> flags{
        "--strategies", "zero1,zero2", "--ranks", "2",       "--offload-optimizer",
        "host",         "--data",      data,      "--steps", "2",
        "--repeats",    count,         "--resume"};
    return compare(flags);
  };
  ASSERT_EQ(with_repeats("1").exit_code, 0);
  const json before = results();
  EXPECT_GT(before.at("cells")[0].at("predicted").at("tier_copy_bytes").at("host_to_device"), 0);
  ASSERT_EQ(with_repeats("2").exit_code, 0);
  const json after = results();
  EXPECT_EQ(after.at("repeats_of_a_cell"), 2);
  EXPECT_THAT(after.at("command").dump(), HasSubstr("--repeats=2"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(after.at("cells")[i].at("state"), "done");
    EXPECT_THAT(after.at("cells")[i].at("repeats"), SizeIs(2));
    EXPECT_EQ(after.at("cells")[i].at("repeats")[0], before.at("cells")[i].at("repeats")[0]);
  }
  EXPECT_THAT(with_repeats("1").err, HasSubstr("another matrix: repeats '2' instead of '1'"));
}

TEST_F(Compare, ResumesNothingElse) {
  const std::string data = write_text();
  const auto run_again = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--simulate", "h100-sxm", "--only-simulate", "--resume"});
    return compare(more);
  };
  ASSERT_EQ(run_again({"--strategies", "zero1,zero2", "--ranks", "2"}).exit_code, 0);
  const std::string path_of_results = path("out/results.json");
  const auto refused = [&](const std::vector<std::string>& more) {
    const ProgramResult result = run_again(more);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refused({"--strategies", "zero1,zero2", "--ranks", "4"}),
              HasSubstr("is of another matrix: in cell 1 ranks '2' instead of '4'"));
  EXPECT_THAT(refused({"--strategies", "zero1", "--ranks", "2"}),
              HasSubstr("another matrix: cells '2' instead of '1'"));
  EXPECT_THAT(refused({"--strategies", "zero1,zero2", "--ranks", "2", "--steps", "7"}),
              HasSubstr("another matrix: steps '"));
  EXPECT_THAT(refused({"--strategies", "zero1,zero2", "--ranks", "2", "--weight-decay", "0.5"}),
              HasSubstr("another matrix: in cell 1 weight_decay '' instead of '0.5'"));
  const auto with = [&](const std::function<void(json&)>& change) {
    json changed = results();
    change(changed);
    std::ofstream(path_of_results) << changed.dump();
    return refused({"--strategies", "zero1,zero2", "--ranks", "2"});
  };
  EXPECT_THAT(with([](json& all) { all["machine"]["processor"] = "PDP-11"; }),
              HasSubstr("is of another machine: processor 'PDP-11' instead of"));
  EXPECT_THAT(with([](json& all) { all["version"] = "0.0"; }),
              HasSubstr("is of another version of tessera: version '0.0' instead of"));
}

TEST_F(Compare, PredictsEveryStrategyWithoutDataAndFitsTheScreen) {
  const ProgramResult result =
      compare({"--strategies", "all", "--ranks", "1,2", "--precisions", "fp32,bf16", "--recomputes",
               "none,full", "--prefetches", "0,1", "--simulate", "h100-sxm", "--only-simulate"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json all = results();
  EXPECT_EQ(all.at("profile"), "h100-sxm");
  EXPECT_EQ(all.at("repeats_of_a_cell"), 0);
  ASSERT_EQ(all.at("cells").size(), 8U * 2 * 2 * 2 * 2);
  for (const json& cell : all.at("cells")) {
    EXPECT_EQ(cell.at("state"), "predicted") << cell.at("settings");
    EXPECT_GT(cell.at("predicted").at("step_seconds").get<double>(), 0.0);
    EXPECT_THAT(cell.at("predicted").at("timeline"), Not(::testing::IsEmpty()));
  }
  const json& last = all.at("cells").back().at("settings");
  EXPECT_EQ(last.at("precision"), "bf16");
  EXPECT_EQ(last.at("recompute"), "full");
  const json& first = all.at("cells")[0].at("settings");
  EXPECT_EQ(first.at("prefetch_forward"), "0");
  EXPECT_EQ(first.at("prefetch_backward"), "0");
  EXPECT_LE(widest_line(result.out.substr(0, result.out.find("\nreport "))), 80U) << result.out;
  EXPECT_FALSE(std::filesystem::exists(path("out/runs/cell-1-repeat-1.txt")));
  EXPECT_EQ(all.at("machine").at("profile"), "h100-sxm");
  EXPECT_FALSE(all.at("machine").contains("processor")) << "nothing ran on this one";
  EXPECT_THAT(result.out, HasSubstr("trust them as a limit: seven steps measured on H100s"));
}

TEST_F(Compare, MicroBatchesAndReplicasAreAxes) {
  const ProgramResult result =
      compare({"--strategies", "hybrid_shard,full_shard", "--ranks", "8", "--micro-batches", "1,2",
               "--replica-counts", "0,2,3", "--simulate", "h100-sxm", "--only-simulate"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json all = results();
  ASSERT_THAT(all.at("cells"), SizeIs(12));
  int predicted = 0;
  for (const json& cell : all.at("cells")) {
    const json& settings = cell.at("settings");
    if (cell.at("state") != "predicted") continue;
    ++predicted;
    EXPECT_NE(settings.at("replicas"), "3");  // do not divide 8 ranks
    EXPECT_EQ(cell.at("tokens_per_step"), settings.at("micro_batch") == "2" ? 256 : 128);
  }
  EXPECT_GE(predicted, 6);
  EXPECT_THAT(result.out, AllOf(HasSubstr("micro-batch"), HasSubstr("replicas")));
  // Impossible cells are told once, with all cells of a reason together.
  EXPECT_THAT(result.err, Not(HasSubstr("impossible")));
  const std::size_t first = result.out.find("impossible: hybrid_shard");
  ASSERT_NE(first, result.out.npos);
  EXPECT_EQ(result.out.find("impossible: hybrid_shard", first + 1), result.out.npos);
}

TEST_F(Compare, CellsThatDoNotFitAreImpossible) {
  const ProgramResult here =
      compare({"--strategies", "zero1", "--ranks", "1,2", "--memory-limit", "180KiB", "--data",
               write_text(), "--steps", "2", "--repeats", "1", "--simulate", "h100-sxm"});
  EXPECT_EQ(here.exit_code, 0) << here.err;
  EXPECT_EQ(states().at("zero1 1"), "impossible");
  EXPECT_EQ(states().at("zero1 2"), "done");
  EXPECT_THAT(here.out, HasSubstr("more than its limit"));
  EXPECT_GT(results().at("cells")[1].at("predicted").at("step_seconds").get<double>(), 0.0);
  const ProgramResult there = run(
      {"compare", "--model", "gpt2-1558m", "--strategies", "no_shard,full_shard", "--ranks", "64",
       "--micro-batch", "12", "--simulate", "h100-sxm", "--only-simulate", "--out", path("there")});
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_THAT(there.out, AllOf(HasSubstr("impossible: no_shard, 64 ranks: each rank needs "),
                               HasSubstr("h100-sxm has ")));
}

TEST_F(Compare, MeasuresTheProfileBetweenItsRunsAndGoesOnWithIt) {
  const std::vector<std::string> flags{
      "--strategies", "no_shard",   "--ranks",  "2",   "--precisions",  "fp32,bf16",
      "--data",       write_text(), "--steps",  "3",   "--repeats",     "2",
      "--simulate",   "measured",   "--device", "cpu", "--time-budget", "0.1"};
  const auto compare_again = [&](const std::vector<std::string>& more,
                                 const std::function<void(pid_t)>& while_running = {}) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), more.begin(), more.end());
    return compare(all, while_running);
  };
  EXPECT_THAT(compare_again({"--only-simulate"}).err, HasSubstr("leave one of them out"));
  const ProgramResult stopped = compare_again({}, [&](pid_t program) {
    await([&] { return std::filesystem::exists(path("out/runs/steps-bf16-repeat-2.json")); });
    kill(program, SIGINT);
  });
  EXPECT_EQ(stopped.exit_code, 128 + SIGINT) << stopped.err;
  const auto place = [&](const std::string& words) { return stopped.err.find(words); };
  EXPECT_LT(place("kernels alone and collectives: timed in"), place("repeat 1, no_shard"));
  const std::size_t fp32_run = place("repeat 1, no_shard, 2 ranks, fp32:");
  const std::size_t fp32_steps = place("repeat 1, kernels inside of steps, fp32: timed in");
  EXPECT_LT(fp32_run, fp32_steps) << stopped.err;
  EXPECT_LT(fp32_steps, place("repeat 1, no_shard, 2 ranks, bf16:")) << stopped.err;
  const std::string first_steps = test::read_file(path("out/runs/steps-fp32-repeat-1.json"));
  EXPECT_FALSE(find_profile(path("out/measured.json")).steps.empty()) << "of what is done";

  std::filesystem::rename(path("out/results.json"), path("results.json"));
  EXPECT_THAT(compare_again({}).err, HasSubstr("measured.json holds a profile already"));
  std::filesystem::rename(path("results.json"), path("out/results.json"));
  // Others disturbed the kernels, so that those are timed again.
  HardwareProfile disturbed = find_profile(path("out/measured.json"));
  disturbed.noise->disturbed = disturbed.noise->points;
  std::ofstream(path("out/measured.json")) << to_text(disturbed);
  const ProgramResult resumed = compare_again({"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, Not(HasSubstr("collectives: timed")));
  EXPECT_THAT(resumed.err, HasSubstr("collectives again: timed in"));
  const std::string text = test::read_file(path("out/measured.json"));
  EXPECT_THAT(resumed.err, Not(HasSubstr("repeat 1,")));
  EXPECT_EQ(test::read_file(path("out/runs/steps-fp32-repeat-1.json")), first_steps);

  const HardwareProfile profile = find_profile(path("out/measured.json"));
  EXPECT_THAT(profile.steps.size(), ::testing::AnyOf(4U, 8U)) << "two of each kind on one core";
  for (const StepTimes& steps : profile.steps) {
    EXPECT_THAT(steps.source, HasSubstr("means of the middle 2 of 2 calibrations"));
  }
  const json all = results();
  EXPECT_EQ(all.at("profile"), "measured");
  EXPECT_THAT(all.at("profile_source"), HasSubstr("which this comparison measured"));
  EXPECT_THAT(test::read_file(path("out/report.html")),
              HasSubstr("which this comparison measured"));
  const ProgramResult checked = run({"simulate", "--profile", path("out/measured.json"), "--check",
                                     path("out/results.json"), "--format", "json"});
  ASSERT_EQ(checked.exit_code, 0) << checked.err;
  const json runs = json::parse(checked.out).at("runs");
  ASSERT_THAT(runs, SizeIs(2));
  for (std::size_t i = 0; i < 2; ++i) {
    const json& predicted = all.at("cells")[i].at("predicted");
    EXPECT_EQ(runs[i].at("predicted_seconds"), predicted.at("step_seconds"));
    EXPECT_EQ(runs[i].at("half_width"), predicted.at("half_width"));
    EXPECT_EQ(runs[i].at("evidence"), "measured");
  }
  // Nothing is left to do, and the predictions stay.
  EXPECT_EQ(compare_again({"--resume"}).exit_code, 0);
  EXPECT_EQ(test::read_file(path("out/measured.json")), text);
  EXPECT_EQ(results().at("cells"), all.at("cells"));
}

TEST_F(Compare, TheCommandInTheReportAsksForTheSame) {
  const std::string config =
      write("config.json", R"({"ranks": 2, "log": "x.jsonl", "quiet": true, "micro_batch": 4})");
  const ProgramResult result =
      run({"compare", "--config", config, "--layers", "1", "--heads", "2", "--width", "16",
           "--context-length", "16", "--strategies", "zero1", "--simulate", "h100-sxm",
           "--only-simulate", "--out", path("first")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json first = json::parse(test::read_file(path("first/results.json")));
  std::vector<std::string> again = first.at("command");
  EXPECT_THAT(again, ::testing::Contains("--ranks=2"));
  EXPECT_THAT(again, Each(Not(HasSubstr("quiet"))));
  again.push_back("--resume");
  const ProgramResult same = run(again);
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

TEST_F(Compare, WhatIsWrongIsSaidBeforeHoursAreSpent) {
  const std::string data = write_text();
  const auto refused = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"compare", "--layers",         "1",  "--heads", "2",  "--width",
                                 "16",      "--context-length", "16", "--data",  data, "--steps",
                                 "2"};
    all.insert(all.end(), more.begin(), more.end());
    const ProgramResult result = run(all);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, Not(HasSubstr("per step")));
    return result.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("give --out a folder"));
  EXPECT_THAT(refused({"--out", data}), HasSubstr("give --out a path that is writable"));
  EXPECT_THAT(refused({"--out", "/proc/none"}), HasSubstr("--out a"));
  std::filesystem::create_directories(path("taken/report.html"));
  EXPECT_THAT(refused({"--out", path("taken")}), HasSubstr("report.html: cannot be written"));
  const std::string out = path("out");
  EXPECT_THAT(refused({"--out", out, "--strategies", "zero9"}), HasSubstr("did you mean 'zero1'?"));
  EXPECT_THAT(refused({"--out", out, "--ranks", "2,x"}), HasSubstr("'x' is not an integer"));
  EXPECT_THAT(refused({"--out", out, "--ranks", "2,2"}), HasSubstr("'2' is listed twice"));
  EXPECT_THAT(refused({"--out", out, "--precisions", "fp7"}), HasSubstr("fp7"));
  EXPECT_THAT(refused({"--out", out, "--only-simulate"}), HasSubstr("needs --simulate"));
  EXPECT_THAT(refused({"--out", out, "--simulate", "h300"}), HasSubstr("no profile 'h300'"));
  EXPECT_THAT(refused({"--out", out, "--untimed-steps", "2"}), HasSubstr("raise --steps"));
  EXPECT_THAT(refused({"--out", out, "--trace", "t.json"}), HasSubstr("--trace"));
  EXPECT_THAT(
      refused({"--out", out, "--strategies", "hybrid_shard", "--replicas", "3", "--ranks", "2"}),
      HasSubstr("no cell of the matrix can run"));
  EXPECT_FALSE(std::filesystem::exists(out));
  std::filesystem::create_directories(path("broken"));
  write("broken/results.json", "{\"kind\"");
  EXPECT_THAT(refused({"--out", path("broken"), "--resume"}), HasSubstr("are not JSON"));
}

}  // namespace
}  // namespace tessera::compare_command_test
