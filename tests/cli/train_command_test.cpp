#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>

#include "cli/program.h"

namespace tessera {
namespace {

using test::ProgramResult;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainCommand : public test::ProgramTest {
 protected:
  /// A run that must fail, with one line of error and nothing that looks like a crash.
  std::string error_of(const ProgramResult& result, int exit_code) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(result.err.rfind("tessera: error: ", 0), 0U) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }
  /// How many files there are in a folder.
  int entries(const std::string& folder) const {
    const std::filesystem::directory_iterator files(path(folder));
    return static_cast<int>(std::distance(begin(files), end(files)));
  }
  /// The error of a wrong setting or of data that cannot work.
  std::string usage_error(const std::vector<std::string>& arguments) {
    return error_of(train(arguments), 2);
  }
};

TEST_F(TrainCommand, TrainsAndTellsTheTruth) {
  const ProgramResult result =
      train({"--data", write_text(), "--ranks", "2", "--strategy", "FULL_SHARD", "--steps", "20",
             "--learning-rate", "0.01", "--log", path("log.jsonl"), "--sample-tokens", "20",
             "--prompt", "the "});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("step 1/20"), HasSubstr("step 20/20")));
  EXPECT_THAT(result.err, Not(HasSubstr("\033")));  // no terminal, no escapes
  EXPECT_THAT(result.out, AllOf(HasSubstr("full_shard on 2 ranks"), HasSubstr("from 1 file, "),
                                HasSubstr("MFU"), HasSubstr("equal"), HasSubstr("sample\nthe ")));

  const auto log = read_log("log.jsonl");
  ASSERT_EQ(log.size(), 22U);
  EXPECT_EQ(log[0]["kind"], "run");
  EXPECT_EQ(log[0]["strategy"], "full_shard");
  EXPECT_EQ(log[0]["layers"], 2);
  EXPECT_EQ(log[0]["vocab_size"], 256);
  EXPECT_EQ(log[0]["sequence_length"], 16);
  EXPECT_EQ(log[0]["parameter_placement"], "shard");
  EXPECT_GT(log[0]["threads_per_rank"], 0);
  EXPECT_LT(log[20]["loss"].get<double>(), 0.8 * log[1]["loss"].get<double>());
  EXPECT_EQ(log[1]["tokens"], 2 * 2 * 16);
  EXPECT_GT(log[0]["parameters"], 1000);
  EXPECT_THAT("tessera " + log[0]["version"].get<std::string>() + "\n", Eq(run({"--version"}).out));
  for (const char* key : {"mfu", "peak_bytes", "exposed_seconds"}) {
    EXPECT_TRUE(log[1].contains(key)) << key;  // what the table of --csv has
  }
  const auto& summary = log[21];
  EXPECT_EQ(summary["peak_bytes"]["predicted"], summary["peak_bytes"]["measured"]);
  EXPECT_EQ(summary["sent_bytes"]["predicted"]["all_gather"],
            summary["sent_bytes"]["counted"]["all_gather"]);
  EXPECT_EQ(summary["copied_bytes"], 0);
  EXPECT_GT(summary["mfu"], 0.0);
  EXPECT_EQ(summary["parameters_sha256"].get<std::string>().size(), 64U);
}

TEST_F(TrainCommand, EpochsOfFewerSamplesThanAStepTakesSaySo) {
  const std::string few = write("few.txt", std::string(100, 'a'));  // 6 samples of 16 tokens
  const ProgramResult repeats = train({"--data", few, "--epochs", "1", "--accumulate", "5"});
  ASSERT_EQ(repeats.exit_code, 0) << repeats.err;
  EXPECT_THAT(repeats.out, HasSubstr("--data has 6 samples, and a step takes 10"));
  const ProgramResult fits = train({"--data", few, "--epochs", "1", "--accumulate", "3"});
  ASSERT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_THAT(fits.out, Not(HasSubstr("repeats samples")));
}

TEST_F(TrainCommand, DrawsTheLossAndMakesUpNoTextBeforeThereAreWords) {
  const std::string data = write_text();
  const ProgramResult unasked = train({"--data", data, "--steps", "8"});
  ASSERT_EQ(unasked.exit_code, 0) << unasked.err;
  EXPECT_THAT(unasked.out, ContainsRegex("  loss .+1 +step 8\n"));
  EXPECT_THAT(unasked.out, ContainsRegex("\nsample    left out: at a loss of [2-9]"));
  EXPECT_THAT(unasked.out, Not(HasSubstr("\nsample\n")));

  const ProgramResult asked = train({"--data", data, "--steps", "8", "--sample-tokens", "5"});
  EXPECT_THAT(asked.out, AllOf(HasSubstr("\nsample\n"), Not(HasSubstr("left out"))));
  EXPECT_EQ(train({"--data", data, "--steps", "8", "--quiet"}).out, "");
}

TEST_F(TrainCommand, ALogIsAConfigThatTrainsTheSame) {
  const std::string data = write_text();
  ASSERT_EQ(train({"--data", data, "--ranks", "3", "--strategy", "zero1", "--steps", "3", "--quiet",
                   "--log", path("first.jsonl"), "--accumulate", "2"})
                .exit_code,
            0);
  auto settings = read_log("first.jsonl").at(0);
  settings["log"] = path("second.jsonl");
  const std::string config = write("config.json", settings.dump());
  const ProgramResult again = run({"train", "--config", config});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out + again.err, "");  // quiet came along
  EXPECT_EQ(read_log("first.jsonl").back()["parameters_sha256"],
            read_log("second.jsonl").back()["parameters_sha256"]);
  // A flag wins over the file.
  ASSERT_EQ(run({"train", "--config", config, "--seed", "9", "--overwrite"}).exit_code, 0);
  EXPECT_EQ(read_log("second.jsonl").at(0)["seed"], 9);
  EXPECT_NE(read_log("first.jsonl").back()["parameters_sha256"],
            read_log("second.jsonl").back()["parameters_sha256"]);
}

TEST_F(TrainCommand, AHashThatIsNotWantedIsNull) {
  const ProgramResult result = train({"--data", write_text(), "--steps", "2", "--log",
                                      path("log.jsonl"), "--parameters-hash", "false"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(read_log("log.jsonl").back().at("parameters_sha256").is_null());
  EXPECT_THAT(result.out, Not(HasSubstr("sha256")));
}

TEST_F(TrainCommand, TheLogSaysWhatAutoCameToBe) {
  ASSERT_EQ(train({"--data", write_text(), "--device", "cpu", "--steps", "1", "--quiet", "--log",
                   path("log.jsonl")})
                .exit_code,
            0);
  const auto settings = read_log("log.jsonl").at(0);
  EXPECT_EQ(settings["group"], "thread");
  EXPECT_EQ(settings["attention"], "own");
  EXPECT_EQ(settings["data_kind"], "text");
  for (const auto& [key, value] : settings.items()) EXPECT_NE(value, "auto") << key;
}

TEST_F(TrainCommand, EveryFlagOfHelpIsAKey) {
  const ProgramResult help = run({"train", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  ASSERT_EQ(train({"--data", write_text(), "--steps", "1", "--quiet", "--log", path("log.jsonl")})
                .exit_code,
            0);
  auto settings = read_log("log.jsonl").at(0);
  for (const char* key : {"kind", "version", "numerics", "date", "host", "parameters"}) {
    settings.erase(key);
  }
  EXPECT_GT(settings.size(), 45U);
  for (const auto& [key, value] : settings.items()) {
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    EXPECT_THAT(help.out, HasSubstr(flag + " "));
  }
  for (std::size_t at = 0; (at = help.out.find("\n  --", at)) != std::string::npos; ++at) {
    std::string flag = help.out.substr(at + 5, help.out.find(' ', at + 5) - at - 5);
    std::replace(flag.begin(), flag.end(), '-', '_');
    // These two say which file is read: no file could.
    const bool about_files = flag == "config" || flag == "no_default_config";
    EXPECT_TRUE(settings.contains(flag) || about_files || flag == "help") << flag;
  }
  for (const char* strategy : {"no_shard", "zero1", "zero2", "full_shard", "hybrid_shard"}) {
    EXPECT_THAT(help.out, HasSubstr(strategy));
  }
}

TEST_F(TrainCommand, UnknownNamesSuggestTheNearest) {
  EXPECT_THAT(usage_error({"--micro-bacth", "3"}), HasSubstr("did you mean '--micro-batch'"));
  EXPECT_THAT(usage_error({"--micro-bacth=3"}), HasSubstr("did you mean '--micro-batch'"));
  EXPECT_THAT(usage_error({"--strategy", "zero4"}), HasSubstr("zero"));
  EXPECT_THAT(usage_error({"--model", "gpt2-tyni"}), HasSubstr("gpt2-tiny"));
  EXPECT_THAT(usage_error({"--config", write("c.json", "{\"precison\": \"bf16\"}")}),
              AllOf(HasSubstr("c.json"), HasSubstr("did you mean 'precision'")));
  EXPECT_THAT(usage_error({"--config", path("none.json")}), HasSubstr("none.json"));
  EXPECT_THAT(usage_error({"some.txt"}), HasSubstr("unexpected argument 'some.txt'"));
  EXPECT_THAT(error_of(run({"trian"}), 2), HasSubstr("trian"));
  EXPECT_EQ(run({}).exit_code, 2);
}

TEST_F(TrainCommand, BadDataSaysWhatToDo) {
  EXPECT_THAT(usage_error({}), HasSubstr("give --data"));
  EXPECT_THAT(usage_error({"--data", path("missing.txt")}), HasSubstr("missing.txt"));
  EXPECT_THAT(usage_error({"--data", write("empty.txt", "")}), HasSubstr("empty.txt"));
  EXPECT_THAT(usage_error({"--data", write("short.txt", "abc")}), HasSubstr("short.txt"));
  const std::string data = write_text();
  EXPECT_THAT(usage_error({"--data", data, "--vocab-size", "100"}), HasSubstr("100"));
  EXPECT_THAT(usage_error({"--data", data, "--sequence-length", "17"}),
              AllOf(HasSubstr("--sequence-length is 17"), HasSubstr("--context-length")));
}

TEST_F(TrainCommand, BadNumbersNameTheFlag) {
  const std::string data = write_text();
  const auto refuse = [&](const std::string& flag, const std::string& value) {
    EXPECT_THAT(usage_error({"--data", data, flag, value}), HasSubstr(flag)) << value;
  };
  refuse("--ranks", "0");
  refuse("--ranks", "two");
  refuse("--steps", "-1");
  refuse("--learning-rate", "nan");
  refuse("--temperature", "-1");
  refuse("--memory-limit", "many");
  refuse("--quiet", "perhaps");
  EXPECT_THAT(usage_error({"--data", data, "--ranks", "2", "--replicas", "4"}),
              HasSubstr("replicas"));
  EXPECT_THAT(usage_error({"--data", data, "--heads", "3"}), HasSubstr("heads"));
  EXPECT_THAT(usage_error({"--data", data, "--parameter-placement", "shard", "--gradient-placement",
                           "none"}),
              HasSubstr("shard"));
  EXPECT_THAT(usage_error({"--data", data, "--steps", "3", "--warmup-steps", "4"}),
              HasSubstr("warm-up"));
}

TEST_F(TrainCommand, WhatAnErrorRepeatsIsSafeToShow) {
  const std::string data = write_text();
  EXPECT_THAT(usage_error({"--data", data, "--strategy", "a\x1b[31mb"}),
              HasSubstr(R"(unknown strategy 'a\x1b[31mb')"));
  const std::string error = usage_error({"--data", data, "--strategy", std::string(9000, 'x')});
  EXPECT_THAT(error, AllOf(HasSubstr("xxx...'"), HasSubstr("no_shard")));
  EXPECT_LT(error.size(), 400U);
}

TEST_F(TrainCommand, MemoryThatDoesNotFitIsRefusedBeforeAnythingIsWritten) {
  const ProgramResult result = train({"--data", write_text(), "--memory-limit", "100KiB", "--ranks",
                                      "2", "--log", path("log.jsonl")});
  EXPECT_THAT(error_of(result, 1), AllOf(HasSubstr("limit of 100 KiB"), HasSubstr("optimizer")));
  EXPECT_FALSE(std::filesystem::exists(path("log.jsonl")));
  const ProgramResult huge = run({"train", "--data", write_text(), "--model", "gpt2-124m",
                                  "--vocab-size", "256", "--ranks", "1024"});
  EXPECT_THAT(error_of(huge, 1), HasSubstr("this machine has free"));
  const auto begin = std::chrono::steady_clock::now();
  const ProgramResult wide =
      run({"train", "--no-default-config", "--data", write_text(), "--width", "500000", "--heads",
           "10", "--layers", "1", "--memory-limit", "1GiB", "--micro-batch", "1024"});
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin);
  EXPECT_THAT(error_of(wide, 1),
              AllOf(HasSubstr("limit of 1.00 GiB"), HasSubstr("take a smaller model")));
  EXPECT_LT(seconds.count(), 20.0);
}

TEST_F(TrainCommand, ALogThatCannotBeWrittenIsAnErrorAtOnce) {
  const std::string data = write_text();
  for (const char* flag : {"--log", "--csv", "--tensorboard"}) {
    const std::string target = data + "/in/a/file";  // which is no folder
    const ProgramResult result = train({"--data", data, flag, target});
    EXPECT_THAT(error_of(result, 1),
                AllOf(HasSubstr(target), HasSubstr("Not a directory"), HasSubstr(flag)));
    EXPECT_EQ(result.out, "");  // before anything is computed
  }
  EXPECT_THAT(error_of(train({"--data", data, "--log", "/dev/full"}), 1), HasSubstr("/dev/full"));
}

TEST_F(TrainCommand, OutputsMakeTheirFoldersWithTheFirstStep) {
  const std::vector<std::string> outputs{
      "--log", path("a/b/log.jsonl"), "--csv", path("c/d/log.csv"), "--tensorboard", path("e/f")};
  const auto run_with = [&](const char* data) {
    std::vector<std::string> arguments{"--data", data, "--steps", "1"};
    arguments.insert(arguments.end(), outputs.begin(), outputs.end());
    return train(arguments);
  };
  EXPECT_NE(run_with("missing.txt").exit_code, 0);
  for (const char* folder : {"a", "c", "e"}) EXPECT_FALSE(std::filesystem::exists(path(folder)));
  const ProgramResult result = run_with(write_text().c_str());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(path("a/b/log.jsonl")));
  EXPECT_TRUE(std::filesystem::exists(path("c/d/log.csv")));
  EXPECT_FALSE(std::filesystem::is_empty(path("e/f")));
}

// What one run has written, another one neither destroys nor mixes with its own.
TEST_F(TrainCommand, WhatAnEarlierRunHasWrittenIsKept) {
  const std::string data = write_text();
  const auto run_with = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--data", data, "--steps", "2", "--quiet", "--threads-per-rank", "1"});
    return train(more);
  };
  const std::vector<std::vector<std::string>> outputs{
      {"--log", path("log.jsonl")}, {"--csv", path("log.csv")}, {"--tensorboard", path("board")}};
  for (const auto& output : outputs) {
    SCOPED_TRACE(output[0]);
    const auto with = [&](const char* flag) {
      std::vector<std::string> all = output;
      if (flag != nullptr) all.emplace_back(flag);
      return run_with(all);
    };
    ASSERT_EQ(with(nullptr).exit_code, 0);
    EXPECT_THAT(error_of(with(nullptr), 2), AllOf(HasSubstr(output[0] + ": " + output[1]),
                                                  HasSubstr("--append"), HasSubstr("--overwrite")));
    EXPECT_EQ(with("--append").exit_code, 0);
    if (output[0] == "--tensorboard") {
      EXPECT_EQ(entries("board"), 2);
    }
    EXPECT_EQ(with("--overwrite").exit_code, 0);
    if (output[0] == "--tensorboard") {
      EXPECT_EQ(entries("board"), 1);
    }
    EXPECT_EQ(with("--append").exit_code, 0);
  }
  EXPECT_EQ(read_log("log.jsonl").size(), 8U);  // two runs
  const std::string table = test::read_file(path("log.csv"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
  EXPECT_THAT(error_of(run_with({"--append", "--overwrite"}), 2), HasSubstr("give one of them"));

  write("log.csv", "step,loss\n");
  EXPECT_THAT(error_of(run_with({"--csv", path("log.csv"), "--append"}), 2),
              HasSubstr("other columns"));
  write("board/events.out.tfevents.1700000000.host.1.0", "of PyTorch");
  EXPECT_THAT(error_of(run_with({"--tensorboard", path("board"), "--overwrite"}), 2),
              HasSubstr("another program has written"));
  EXPECT_EQ(entries("board"), 3);
}

TEST_F(TrainCommand, ABadSettingLeavesTheOldLogAlone) {
  const std::string log = write("log.jsonl", "precious\n");
  usage_error({"--data", path("missing.txt"), "--log", log});
  EXPECT_EQ(test::read_file(log), "precious\n");
}

TEST_F(TrainCommand, ABadSecondOutputLeavesTheOldLogAlone) {
  const std::string log = write("log.jsonl", "precious\n");
  std::filesystem::create_symlink("/no/such/folder", path("lost"));
  for (const std::vector<std::string>& bad :
       {std::vector<std::string>{"--tensorboard", path("lost")},
        {"--csv", path("lost")},
        {"--csv", path("runs/" + std::string(256, 'x'))},
        {"--csv", "/dev/full"}}) {
    const std::string data = write_text();
    const ProgramResult result = train(
        {"--data", data, "--log", log, "--overwrite", "--steps", "2", "--quiet", bad[0], bad[1]});
    EXPECT_THAT(error_of(result, 1), HasSubstr(bad[0] + " a path"));
    EXPECT_EQ(test::read_file(log), "precious\n") << bad[1];
  }
}

// The longer context's other positions were never trained: they must not be sampled with.
TEST_F(TrainCommand, TheSampleStaysWithinTheTrainedLength) {
  const auto sample = [&](const std::string& context) {
    const ProgramResult result =
        run({"train", "--layers",         "2",          "--heads",           "2",  "--width",
             "16",    "--context-length", context,      "--sequence-length", "16", "--micro-batch",
             "2",     "--data",           write_text(), "--steps",           "8",  "--clip-norm",
             "0",     "--sample-tokens",  "40"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::size_t at = result.out.find("\nsample\n");
    return at == std::string::npos ? std::string() : result.out.substr(at);
  };
  const std::string expected = sample("16");
  EXPECT_GT(expected.size(), 40U);
  EXPECT_EQ(sample("64"), expected);
}

TEST_F(TrainCommand, DivergenceIsAnError) {
  const ProgramResult result =
      train({"--data", write_text(), "--learning-rate", "1e30", "--clip-norm", "0",
             "--warmup-steps", "0", "--steps", "20", "--quiet", "--log", path("log.jsonl")});
  EXPECT_THAT(error_of(result, 1), AllOf(HasSubstr("diverged"), HasSubstr("--learning-rate")));
  for (const auto& line : read_log("log.jsonl")) EXPECT_NE(line["kind"], "summary");
}

/// Waits until the log has `lines` lines, at most a minute; then the run has come that far.
bool wait_for_lines(const std::string& log, int lines) {
  return test::await([&] {
    const std::string text = test::read_file(log);
    return std::count(text.begin(), text.end(), '\n') >= lines;
  });
}

TEST_F(TrainCommand, CtrlCEndsAfterTheStepWithASummary) {
  const std::string log = path("log.jsonl");
  const ProgramResult result =
      train({"--data", write_text(), "--ranks", "2", "--steps", "100000000", "--log", log},
            [&](pid_t pid) {
              EXPECT_TRUE(wait_for_lines(log, 4));
              kill(pid, SIGINT);
            });
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped after step"));
  const auto lines = read_log("log.jsonl");
  ASSERT_GE(lines.size(), 5U);
  EXPECT_EQ(lines.back()["kind"], "summary");
  EXPECT_EQ(lines.back()["steps"], lines.size() - 2);
  EXPECT_EQ(lines.back()["peak_bytes"]["predicted"], lines.back()["peak_bytes"]["measured"]);
}

TEST_F(TrainCommand, AnEmptyPathForOutputIsNamed) {
  for (const std::string flag : {"--log", "--csv", "--tensorboard"}) {
    const ProgramResult result = train({"--data", write_text(), flag, ""});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(flag + ": is empty; give a path")) << result.err;
  }
}

TEST_F(TrainCommand, ASignalEndsTheSample) {
  const std::string log = path("log.jsonl");
  const ProgramResult result =
      train({"--data", write_text(), "--steps", "2", "--sample-tokens", "1048576", "--log", log},
            [&](pid_t pid) {
              EXPECT_TRUE(wait_for_lines(log, 4));
              kill(pid, SIGTERM);
            });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nsample\n"));
  EXPECT_EQ(read_log("log.jsonl").back()["kind"], "summary");
}

TEST_F(TrainCommand, TheSecondSignalKillsWhicheverItIs) {
  const std::string log = path("log.jsonl");
  // Steps of so many micro-steps that the first signal cannot end one soon.
  const ProgramResult result =
      run({"train", "--data", write_text(), "--steps", "1000", "--accumulate", "100", "--width",
           "16", "--context-length", "16", "--micro-batch", "200", "--log", log},
          [&](pid_t pid) {
            EXPECT_TRUE(wait_for_lines(log, 1));
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            kill(pid, SIGINT);
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            kill(pid, SIGTERM);
          });
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  for (const auto& line : read_log("log.jsonl")) EXPECT_NE(line["kind"], "summary");
}

TEST_F(TrainCommand, VersionAndHelp) {
  EXPECT_THAT(run({"--version"}).out, HasSubstr("tessera "));
  const ProgramResult help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("train"), HasSubstr("plan")));
}

TEST_F(TrainCommand, NothingIsWrittenOverWhatIsRead) {
  const std::string data = write_text();
  const std::string before = test::read_file(data);
  std::filesystem::create_hard_link(data, path("hard"));
  std::filesystem::create_symlink(path("."), path("link"));
  for (const char* flag : {"--log", "--csv"}) {
    for (const std::string& target : {data, path("hard"), path("link/data.txt")}) {
      EXPECT_THAT(usage_error({"--data", data, "--steps", "2", flag, target}),
                  AllOf(HasSubstr(std::string(flag) + " would write over " + target),
                        HasSubstr("the data")));
    }
  }
  EXPECT_EQ(test::read_file(data), before);

  const std::string settings = R"({"steps": 2})";
  const std::string config = write("c.json", settings);
  EXPECT_THAT(usage_error({"--data", data, "--config", config, "--log", config}),
              HasSubstr("the settings are read"));
  EXPECT_EQ(test::read_file(config), settings);
}

TEST_F(TrainCommand, FlagsOfTheLearningRateThatItsScheduleDoesNotUseAreTold) {
  const std::string data = write_text();
  const auto said = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--data", data, "--steps", "1", "--warmup-steps", "0"});
    const ProgramResult result = train(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string decay = "note: --decay-steps has no effect: the learning rate is ";
  const std::string minimum = "note: --minimum-learning-rate has no effect: the learning rate is ";
  const std::string both = said({"--learning-rate-schedule", "constant", "--decay-steps", "1",
                                 "--minimum-learning-rate", "0"});
  EXPECT_THAT(both, AllOf(HasSubstr(decay + "constant"), HasSubstr(minimum + "constant")));
  const std::string cosine = said({"--decay-steps", "1", "--minimum-learning-rate", "0"});
  EXPECT_THAT(cosine, AllOf(HasSubstr(decay + "cosine"), Not(HasSubstr(minimum))));
  EXPECT_THAT(said({"--learning-rate-schedule", "wsd", "--decay-steps", "1",
                    "--minimum-learning-rate", "0"}),
              Not(HasSubstr("has no effect")));

  // Files hold more than one schedule uses: all settings, as a log does, or those of another tool.
  const std::string file = write(
      "c.json",
      R"({"learning_rate_schedule": "constant", "decay_steps": 1, "minimum_learning_rate": 0})");
  EXPECT_THAT(said({"--config", file}), Not(HasSubstr("has no effect")));
}

TEST_F(TrainCommand, EachOutputHasAFileOfItsOwn) {
  const std::string data = write_text();
  std::filesystem::create_symlink(path("."), path("link"));
  EXPECT_THAT(usage_error({"--data", data, "--log", path("new/x"), "--csv", path("link/new/x")}),
              HasSubstr("--csv and --log would both write to "));
  EXPECT_THAT(usage_error({"--data", data, "--log", path("x"), "--tensorboard", path("./x")}),
              HasSubstr("--tensorboard and --log would both write to "));
  EXPECT_THAT(usage_error({"--data", data, "--log", "both.out", "--csv", "./both.out"}),
              HasSubstr("--csv and --log would both write to "));  // in the current folder
  EXPECT_FALSE(std::filesystem::exists(path("x")));
  EXPECT_EQ(
      train({"--data", data, "--steps", "1", "--log", "/dev/null", "--csv", "/dev/null"}).exit_code,
      0);
}

TEST_F(TrainCommand, FlagsMayBeSpeltAsInOtherPrograms) {
  const std::string file = write("c.json", R"({"steps": 3})");
  const ProgramResult result = train({"--data", write_text(), "--config_file", file,
                                      "--learning_rate=0.01", "--log", path("log_a.jsonl")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto log = read_log("log_a.jsonl");
  EXPECT_EQ(log[0]["steps"], 3);
  EXPECT_EQ(log[0]["learning_rate"], 0.01);
}

TEST_F(TrainCommand, AFlagThatIsGivenTwiceIsRefused) {
  EXPECT_THAT(usage_error({"--data", "x", "--steps", "2", "--steps", "6"}),
              HasSubstr("--steps is given 2 times; give it once"));
  EXPECT_THAT(usage_error({"--data", "x", "--time-actions", "--time-actions=false"}),
              HasSubstr("--time-actions"));
}

TEST_F(TrainCommand, DataThatCannotWorkIsAUsersError) {
  write("odd.bin", "xyz");
  EXPECT_THAT(usage_error({"--data", path("odd.bin")}), HasSubstr("an odd number"));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(usage_error({"--data", path("pipe")}), HasSubstr("regular file"));
}

}  // namespace
}  // namespace tessera
