#include <gmock/gmock.h>

#include <csignal>
#include <fstream>

#include "cli/launched_program.h"
#include "cli/program.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/kernels/numerics.h"

// Checkpoints of the program: --save, --resume, and the command that looks at them.
namespace tessera::checkpoint_command_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Checkpoints : public test::ProgramTest {
 protected:
  ProgramResult train_to(int stop_after, const std::vector<std::string>& more = {},
                         const std::function<void(pid_t)>& while_running = {},
                         int steps = 8) const {
    std::vector<std::string> words{"--data",
                                   path("data.txt"),
                                   "--steps",
                                   std::to_string(steps),
                                   "--log",
                                   path("log"),
                                   "--overwrite",
                                   "--seed",
                                   "3",
                                   "--ranks",
                                   "2",
                                   "--dropout",
                                   "0.1",
                                   "--sample-tokens",
                                   "0"};
    if (stop_after > 0) {
      words.insert(words.end(), {"--stop-after", std::to_string(stop_after)});
    }
    words.insert(words.end(), more.begin(), more.end());
    return train(words, while_running);
  }
  bool is_past_step_1() const {
    return test::read_file(path("stderr")).find("step 1/") != std::string::npos;
  }
  /// Does something to the program when it is past its first step.
  std::function<void(pid_t)> when_it_trains(const std::function<void(pid_t)>& body) const {
    return [this, body](pid_t pid) {
      test::await([this] { return is_past_step_1(); });
      body(pid);
    };
  }
  std::string sha256() const { return read_log("log").back().at("parameters_sha256"); }
  std::vector<json> lines_of(const char* kind) const {
    std::vector<json> lines;
    for (json& line : read_log("log")) {
      if (line.at("kind") == kind) lines.push_back(std::move(line));
    }
    return lines;
  }
};

TEST_F(Checkpoints, ARunThatIsResumedGivesTheBitsOfTheWholeRun) {
  write_text();
  ASSERT_EQ(train_to(0).exit_code, 0);
  const std::string whole = sha256();
  const ProgramResult first =
      train_to(5, {"--save", path("run"), "--save-every", "2", "--save-total-limit", "2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("stopped after step 5 of 8"));
  EXPECT_THAT(first.err, HasSubstr("checkpoint " + path("run/step_5")));
  const std::vector<json> saves = lines_of("checkpoint");
  ASSERT_EQ(saves.size(), 3U);
  EXPECT_EQ(saves[1].at("step"), 4);
  EXPECT_EQ(saves[1].at("path"), path("run/step_4"));
  const ProgramResult rest = train_to(0, {"--save", path("run"), "--resume", "auto", "--strategy",
                                          "zero2", "--prefetch-forward", "2"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err, AllOf(HasSubstr("resumed from"), HasSubstr("at step 5, sample 20"),
                              HasSubstr("strategy was full_shard and is zero2")));
  EXPECT_EQ(sha256(), whole);
  EXPECT_EQ(lines_of("step").front().at("step"), 6);
  const ProgramResult again = train_to(0, {"--save", path("run"), "--resume", "auto"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("the run is complete"));
}

TEST_F(Checkpoints, OfAnotherVersionOfTheNumericsSaySo) {
  write_text();
  ASSERT_EQ(train_to(5, {"--save", path("run")}).exit_code, 0);
  EXPECT_EQ(read_log("log").front().at("numerics"), kNumericsVersion);
  Manifest manifest = read_manifest(path("run/step_5"));
  // As programs wrote it that knew of no version.
  EXPECT_EQ(std::erase_if(manifest.run, [](const NamedText& v) { return v.name == "numerics"; }),
            1U);
  std::ofstream(path("run/step_5/") + std::string(kManifestName)) << to_text(manifest);
  const ProgramResult rest = train_to(6, {"--resume", path("run")});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err,
              HasSubstr("the checkpoint is of version 1 of the numerics, and this program has "
                        "version " +
                        std::to_string(kNumericsVersion)));
  const ProgramResult save = train_to(5, {"--save", path("own")});
  ASSERT_EQ(save.exit_code, 0) << save.err;
  const ProgramResult same = train_to(6, {"--resume", path("own")});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.err, ::testing::Not(HasSubstr("numerics")));
}

class LaunchedCheckpoints : public Checkpoints {
 protected:
  /// A run of processes of one rank each, four micro-batches to a step, that saves every step.
  ProgramResult launched(int processes, const std::string& folder,
                         const std::vector<std::string>& launcher_flags,
                         const std::vector<std::string>& more,
                         const std::function<void(pid_t)>& while_running = {}) const {
    std::vector<std::string> words{"launch", "--processes", std::to_string(processes)};
    words.insert(words.end(), launcher_flags.begin(), launcher_flags.end());
    for (const std::string& word : std::vector<std::string>{"--",
                                                            "train",
                                                            "--layers",
                                                            "2",
                                                            "--heads",
                                                            "2",
                                                            "--width",
                                                            "16",
                                                            "--context-length",
                                                            "16",
                                                            "--overwrite",
                                                            "--dropout",
                                                            "0.1",
                                                            "--sample-tokens",
                                                            "0",
                                                            "--micro-batch",
                                                            "1",
                                                            "--data",
                                                            path("data.txt"),
                                                            "--log",
                                                            path("log"),
                                                            "--save",
                                                            folder,
                                                            "--save-every",
                                                            "1",
                                                            "--resume",
                                                            "auto",
                                                            "--accumulate",
                                                            std::to_string(12 / processes)}) {
      words.push_back(word);
    }
    words.insert(words.end(), more.begin(), more.end());
    return run(words, while_running);
  }
};

TEST_F(LaunchedCheckpoints, GoOnWithOtherProcesses) {
  write_text();
  const std::vector<std::string> steps{"--steps", "8"};
  const auto part = [&](int processes, std::vector<std::string> more) {
    more.insert(more.end(), steps.begin(), steps.end());
    const ProgramResult result = launched(processes, path("parts"), {}, more);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  };
  ASSERT_EQ(launched(2, path("whole"), {}, steps).exit_code, 0);
  const std::string whole = sha256();
  part(2, {"--stop-after", "3"});
  part(4, {"--stop-after", "2", "--strategy", "zero2"});
  part(1, {"--stop-after", "1"});
  part(3, {});
  EXPECT_EQ(sha256(), whole);
}

TEST_F(LaunchedCheckpoints, ARunWhoseProcessIsKilledGoesOnWithThoseThatAreLeft) {
  write_text();
  const std::vector<std::string> steps{"--steps", "60"};
  ASSERT_EQ(launched(2, path("whole"), {}, steps).exit_code, 0);
  const std::string whole = sha256();
  for (const bool fewer : {false, true}) {
    const std::string folder = path(fewer ? "fewer" : "same");
    std::vector<std::string> flags{"--max-restarts", "2"};
    if (fewer) flags.insert(flags.end(), {"--min-ranks", "2"});
    const ProgramResult result = launched(4, folder, flags, steps, [&](pid_t launcher) {
      test::await([&] { return std::filesystem::exists(folder + "/latest"); });
      const std::vector<pid_t> processes = test::children_of(launcher);
      ASSERT_EQ(processes.size(), 4U);
      kill(processes[2], SIGKILL);
    });
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err,
                HasSubstr(fewer ? "restart 1 of 2, with 3 ranks" : "restart 1 of 2, with 4 ranks"));
    EXPECT_THAT(result.err, HasSubstr("resumed from"));
    EXPECT_EQ(sha256(), whole);
  }
}

TEST_F(LaunchedCheckpoints, ASignalToTheLauncherSavesAndEndsWell) {
  write_text();
  const std::string folder = path("run");
  const ProgramResult result = launched(2, folder, {}, {"--steps", "1000000"}, [&](pid_t launcher) {
    test::await([&] { return std::filesystem::exists(folder + "/latest"); });
    kill(launcher, SIGUSR1);
  });
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run({"checkpoint", "verify", folder}).exit_code, 0);
}

TEST_F(LaunchedCheckpoints, RestartsAreForFailuresThatMayPass) {
  write_text();
  const ProgramResult refused =
      launched(2, path("run"), {"--max-restarts", "3"}, {"--steps", "2", "--clip-norm", "-1"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err.find("restart 1"), std::string::npos);
  EXPECT_THAT(launched(2, path("run"), {"--min-ranks", "1"}, {"--steps", "2"}).err,
              HasSubstr("give --max-restarts, too"));
}

TEST_F(Checkpoints, SignalsOfSchedulersSaveAndEndWell) {
  write_text();
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const std::string folder = path("run" + std::to_string(signal));
    const ProgramResult result = train_to(
        0, {"--save", folder}, when_it_trains([&](pid_t pid) { kill(pid, signal); }), 1000000);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("checkpoint " + folder));
    EXPECT_EQ(run({"checkpoint", "verify", folder}).exit_code, 0);
  }
}

/// The CPU time of a process and of those that it has started, in seconds.
double cpu_seconds(pid_t process) {
  std::istringstream stat(read_file("/proc/" + std::to_string(process) + "/stat"));
  std::string word;
  double ticks = 0.0;
  for (int field = 1; stat >> word; ++field) {
    if (field == 14 || field == 15) ticks += std::stod(word);
  }
  double seconds = ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  for (const pid_t child : test::children_of(process)) seconds += cpu_seconds(child);
  return seconds;
}

/// A run of steps that take far longer than a test.
class LongSteps : public Checkpoints {
 protected:
  ProgramResult end_by_signal(std::vector<std::string> words) const {
    write_text();
    const bool launched = !words.empty();
    for (const char* word : {"train", "--steps", "1000", "--accumulate", "100", "--micro-batch",
                             "64", "--layers", "2", "--width", "256", "--context-length", "64"}) {
      words.emplace_back(word);
    }
    words.insert(words.end(), {"--data", path("data.txt"), "--log", path("log"), "--save",
                               path("run"), "--strategy", "hybrid_shard"});
    if (!launched) words.insert(words.end(), {"--grace", "1"});
    return run(words, [&](pid_t pid) {
      // What there is to say of hybrid_shard on so few ranks is written when training begins.
      test::await([this] { return !test::read_file(path("log")).empty(); });
      // More than a start takes, on however busy a machine: the first step is under way.
      test::await([pid] { return cpu_seconds(pid) >= 3.0; });
      kill(pid, SIGTERM);
    });
  }
};

TEST_F(LongSteps, WithoutALauncherARunEndsWithAnErrorAfterItsGrace) {
  const ProgramResult result = end_by_signal({});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_THAT(result.err, HasSubstr("tessera: error: the step and the checkpoint after it did not "
                                    "end within --grace 1 s of SIGTERM"));
  EXPECT_FALSE(std::filesystem::exists(path("run/latest")));
}

TEST_F(LongSteps, ALauncherSaysThatItsGraceWasTooShort) {
  const ProgramResult result = end_by_signal({"launch", "--processes", "2", "--grace", "1", "--"});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_THAT(result.err, HasSubstr("not all processes ended within --grace 1 s of SIGTERM"));
}

/// Slurm signals every process of a step itself, which no launcher of ours sees.
TEST_F(LaunchedCheckpoints, ASignalToEachProcessSavesHoweverLongTheFirstOneTakes) {
  write_text();
  test::ScopedVariables srun{{"RANK", "0"},
                             {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", port_of_test()},
                             {"TESSERA_JOB_TOKEN", "of this test"},
                             {"OMP_NUM_THREADS", "1"}};
  const std::vector<std::string> words{"train",
                                       "--layers",
                                       "2",
                                       "--heads",
                                       "2",
                                       "--width",
                                       "16",
                                       "--context-length",
                                       "16",
                                       "--data",
                                       path("data.txt"),
                                       "--steps",
                                       "1000000",
                                       "--save",
                                       path("run"),
                                       "--grace",
                                       "60",
                                       "--sample-tokens",
                                       "0"};
  std::string line = "'" TESSERA_PROGRAM "'";
  for (const std::string& word : words) line += " '" + word + "'";
  const ProgramResult result = run(words, [&](pid_t first) {
    srun.set("RANK", "1");
    const std::string second = "{ " + line + " >" + path("out2") + " 2>" + path("err2") +
                               " & p=$!; echo $p >" + path("pid2") + "; wait $p; echo $? >" +
                               path("exit2") + "; } &";
    ASSERT_EQ(std::system(second.c_str()), 0);
    test::await([this] { return is_past_step_1(); });
    const pid_t other = std::stoi(test::read_file(path("pid2")));
    kill(first, SIGSTOP);
    kill(first, SIGTERM);
    kill(other, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(5000));
    kill(first, SIGCONT);
  });
  EXPECT_EQ(result.exit_code, 0) << result.err;
  test::await([this] { return !test::read_file(path("exit2")).empty(); });
  EXPECT_EQ(test::read_file(path("exit2")), "0\n") << test::read_file(path("err2"));
  EXPECT_EQ(run({"checkpoint", "verify", path("run")}).exit_code, 0);
}

TEST_F(Checkpoints, OfAnotherRunThatStillWritesThemAreRefused) {
  write_text();
  ProgramResult second;
  pid_t writer = 0;
  const ProgramResult first = train_to(0, {"--save", path("run")}, when_it_trains([&](pid_t pid) {
                                         writer = pid;
                                         const std::string line =
                                             "'" TESSERA_PROGRAM "' train --data '" +
                                             path("data.txt") + "' --save '" + path("run") +
                                             "' --resume auto 2>'" + path("err2") + "' >/dev/null";
                                         second.exit_code = std::system(line.c_str());
                                         kill(pid, SIGTERM);
                                       }),
                                       1000000);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(WEXITSTATUS(second.exit_code), 1);
  EXPECT_THAT(test::read_file(path("err2")),
              HasSubstr("is in use: process " + std::to_string(writer) + " on "));
}

TEST_F(Checkpoints, CanBeLookedAt) {
  write_text();
  ASSERT_EQ(train_to(2, {"--save", path("run"), "--save-every", "1"}).exit_code, 0);
  const ProgramResult inspected = run({"checkpoint", "inspect", path("run"), "--json"});
  ASSERT_EQ(inspected.exit_code, 0) << inspected.err;
  const json object = json::parse(inspected.out);
  EXPECT_EQ(object.at("step"), 2);
  EXPECT_EQ(object.at("model").at("layers"), "2");
  EXPECT_EQ(object.at("files").size(), 2U);
  EXPECT_THAT(run({"checkpoint", "inspect", path("run/step_1")}).out,
              AllOf(HasSubstr("step 1"), HasSubstr("first-moment")));
  EXPECT_THAT(run({"checkpoint", "list", path("run")}).out, HasSubstr("latest"));
  EXPECT_THAT(run({"checkpoint", "verify", path("run")}).out, HasSubstr("whole"));

  std::string bytes = test::read_file(path("run/step_2/rank_00001.safetensors"));
  bytes[bytes.size() / 2] ^= 1;
  write("run/step_2/rank_00001.safetensors", bytes);
  const ProgramResult damaged = run({"checkpoint", "verify", path("run")});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("rank_00001"), HasSubstr("damaged")));
  EXPECT_NE(train_to(0, {"--resume", path("run/step_2")}).exit_code, 0);
  const ProgramResult older = train_to(0, {"--resume", path("run")});
  EXPECT_EQ(older.exit_code, 0) << older.err;
  EXPECT_THAT(older.err, AllOf(HasSubstr("WARNING: the run goes on from the older checkpoint"),
                               HasSubstr("rank_00001"), HasSubstr("step 2/8")));
  const ProgramResult none = run({"checkpoint", "inspect", path("nothing")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("there is no checkpoint"));
}

TEST_F(Checkpoints, TheNewestWholeOneIsResumedIfTheNewestIsDamaged) {
  write_text();
  ASSERT_EQ(train_to(0).exit_code, 0);
  const std::string whole = sha256();
  ASSERT_EQ(train_to(5, {"--save", path("run"), "--save-every", "2"}).exit_code, 0);
  write("run/step_5/manifest.json", "");
  const ProgramResult listed = run({"checkpoint", "list", path("run")});
  EXPECT_EQ(listed.exit_code, 2);
  EXPECT_THAT(listed.out, AllOf(HasSubstr("step_4"), HasSubstr("damaged"), HasSubstr("is empty")));
  const ProgramResult inspected = run({"checkpoint", "inspect", path("run/step_5")});
  EXPECT_EQ(inspected.exit_code, 2);
  EXPECT_THAT(inspected.err, HasSubstr("it is empty"));
  const ProgramResult rest = train_to(0, {"--save", path("run"), "--resume", "auto"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err, AllOf(HasSubstr("WARNING"), HasSubstr("step_5"), HasSubstr("step_4")));
  EXPECT_EQ(sha256(), whole);
}

TEST_F(Checkpoints, TheFileLatestStandsForTheNewest) {
  write_text();
  ASSERT_EQ(train_to(2, {"--save", path("run")}).exit_code, 0);
  const std::string latest = path("run/latest");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"checkpoint", "inspect", latest},
                                             {"checkpoint", "verify", latest},
                                             {"checkpoint", "list", latest},
                                             {"checkpoint", "convert", latest, path("hf")},
                                             {"generate", "--init", latest, "--tokens", "1"}}) {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << words[1] << ": " << result.err;
    if (words[0] == "checkpoint") {
      EXPECT_THAT(result.out, HasSubstr("run/step_2")) << words[1];
    }
  }
  const ProgramResult resumed = train_to(0, {"--resume", latest});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("at step 2"));
}

TEST_F(Checkpoints, GiveTheirParametersToOtherCommandsAndPrograms) {
  write_text();
  ASSERT_EQ(train_to(4, {"--save", path("run"), "--eval-data", path("data.txt")}).exit_code, 0);
  const double loss = lines_of("evaluation").back().at("loss");
  ASSERT_EQ(run({"checkpoint", "export", path("run"), path("hf")}).exit_code, 0);
  ASSERT_EQ(run({"checkpoint", "export", path("hf"), path("m.bin"), "--format", "llm.c"}).exit_code,
            0);
  for (const char* model : {"run", "run/step_4", "hf", "m.bin"}) {
    SCOPED_TRACE(model);
    const ProgramResult evaluated = run(
        {"evaluate", "--init", path(model), "--eval-data", path("data.txt"), "--format", "json"});
    ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
    EXPECT_NEAR(json::parse(evaluated.out).at("loss").get<double>(), loss, 1e-5);
    const ProgramResult text = run({"generate", "--init", path(model), "--prompt", "the quick",
                                    "--tokens", "12", "--temperature", "0"});
    ASSERT_EQ(text.exit_code, 0) << text.err;
    EXPECT_EQ(text.out.substr(0, 9), "the quick");
    EXPECT_GE(text.out.size(), 9U + 12U);
    EXPECT_EQ(text.out, run({"generate", "--checkpoint", path("run"), "--prompt", "the quick",
                             "--tokens", "12", "--top-k", "1"})
                            .out);
  }
  const ProgramResult again = run({"checkpoint", "export", path("run"), path("hf")});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("exists already"));
  EXPECT_THAT(run({"generate"}).err, HasSubstr("--init"));
}

}  // namespace
}  // namespace tessera::checkpoint_command_test
