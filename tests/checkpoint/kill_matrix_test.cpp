#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpointed_run.h"
#include "checkpoint/faulty_run.h"
#include "support/extent.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/collectives/listening_socket.h"
#include "tessera/compat/launcher.h"
#include "tessera/trainer/same_bits.h"

// A run of several processes to which something happens at an exact place goes on from its newest
// checkpoint, with as many processes, fewer or more, and gives the bits of a run that nothing has
// happened to.
namespace tessera::kill_matrix_test {
namespace {

using test::Fault;
using test::FaultyRun;
using test::Numbers;
using test::TemporaryFolder;
using test::Variant;
using ::testing::Contains;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A checkpoint after every second step: when the fifth begins, that of the second is durable.
constexpr std::int64_t kSteps = 8;
constexpr std::int64_t kSaveEvery = 2;
constexpr std::int64_t kFaultStep = 4;
constexpr std::int64_t kFaultCheckpoint = 4;

/// How long the others wait for a process that is stopped, and for one that is only slow.
constexpr int kShortTimeoutMs = 6000;
constexpr int kLongTimeoutMs = 60000;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The processes of a run, one rank each, as a launcher starts them.
class Processes {
 public:
  Processes(int count, const FaultyRun& run, const std::string& errors) {
    const Listening listening = listen_at(kLoopback, 0);
    const int listener = listening.socket;
    const std::string port = std::to_string(port_of_listener(listener));
    for (int process = 0; process < count; ++process) {
      std::vector<std::string> words{TESSERA_FAULTY_RUN, nlohmann::json(run).dump()};
      std::vector<std::string> variables{concat("RANK=", process),
                                         concat("LOCAL_RANK=", process),
                                         concat("WORLD_SIZE=", count),
                                         concat("LOCAL_WORLD_SIZE=", count),
                                         concat("MASTER_ADDR=", kLoopback),
                                         concat("MASTER_PORT=", port),
                                         concat(kJobToken, "=of the test"),
                                         concat(kRanksPerProcess, "=1"),
                                         "OMP_NUM_THREADS=1"};
      if (process == 0) variables.push_back(concat(kListener, "=", listener));
      spawn(words, variables, process == 0 ? listener : -1, errors);
    }
    close(listener);
  }
  ~Processes() {
    for (const pid_t pid : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Until all have ended but those that are stopped.
  void wait() {
    const Clock::time_point deadline = Clock::now() + std::chrono::minutes(5);
    while (running_.size() > stopped_) {
      ASSERT_LT(Clock::now(), deadline) << "a process has not ended in time";
      for (std::size_t i = 0; i < running_.size(); ++i) {
        int status = 0;
        if (waitpid(running_[i], &status, WNOHANG | WUNTRACED) <= 0) continue;
        if (WIFSTOPPED(status)) {
          ++stopped_;
          continue;
        }
        exits_.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i--));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::size_t stopped() const { return stopped_; }
  /// Of those that have ended, in that order; 128 + signal if one killed it.
  const std::vector<int>& exits() const { return exits_; }

 private:
  void spawn(std::vector<std::string>& words, std::vector<std::string>& variables, int listener,
             const std::string& errors) {
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND;
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(), kFlags, 0600);
    if (listener >= 0) posix_spawn_file_actions_adddup2(&actions, listener, listener);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, running_.empty() ? 0 : running_.front());
    pid_t pid = 0;
    const int error = posix_spawn(&pid, words[0].c_str(), &actions, &attributes,
                                  pointers(words).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    ASSERT_EQ(error, 0) << words[0];
    running_.push_back(pid);
  }

  std::vector<pid_t> running_;
  std::size_t stopped_ = 0;
  std::vector<int> exits_;
};

/// A strategy on as many processes as it begins with, and the worlds in which it goes on.
struct Setting {
  std::string strategy;
  int processes;
  std::vector<int> restarts;  ///< the same, fewer, more
  int samples;                ///< of a step, whatever the world
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{{"full_shard", 2, {2, 1, 3}, 6},
                                        {"zero2", 3, {3, 2, 6}, 6},
                                        {"hybrid_shard", 4, {4, 3, 6}, 12}};
  return all;
}

/// Of a run in this process that nothing happens to.
const Numbers& expected(int samples) {
  static std::map<int, Numbers> all;
  const auto [found, is_new] = all.try_emplace(samples);
  if (is_new) {
    found->second = test::train_numbers(test::options_of(
        {.strategy = "full_shard", .ranks = 1, .samples_per_step = samples}, kSteps));
  }
  return found->second;
}

std::uint64_t sums_of(const Setting& setting, const std::string& strategy, int ranks) {
  const Variant variant{.strategy = strategy, .ranks = ranks, .samples_per_step = setting.samples};
  return hash_of_sums(test::checkpointed_gpt(), resolved(test::options_of(variant, kSteps)));
}

/// The files of a run, of all its attempts.
struct Attempts {
  FaultyRun run(const Setting& setting) const {
    return {.strategy = setting.strategy,
            .samples_per_step = setting.samples,
            .steps = kSteps,
            .save_every = kSaveEvery,
            .total_limit = 1,
            .folder = files.path("run"),
            .log = files.path("log"),
            .calls = {},
            .timeout_ms = kLongTimeoutMs,
            .fault = {.checkpoint = kFaultCheckpoint}};
  }
  std::string errors() const { return files.path("errors"); }

  /// Every step that any attempt has logged, and the parameters of the one that has ended.
  void expect_numbers(const Numbers& whole) const {
    std::istringstream log(read_file(files.path("log")));
    std::vector<bool> seen(kSteps);
    std::string sha256;
    for (std::string kind; log >> kind;) {
      if (kind == "parameters") {
        log >> sha256;
        continue;
      }
      std::size_t step = 0;
      std::string loss, norm;
      ASSERT_TRUE(log >> step >> loss >> norm);
      ASSERT_LE(step, seen.size());
      seen[step - 1] = true;
      EXPECT_EQ(std::strtod(loss.c_str(), nullptr), whole.losses[step - 1]) << "step " << step;
      EXPECT_EQ(std::strtod(norm.c_str(), nullptr), whole.norms[step - 1]) << "step " << step;
    }
    EXPECT_THAT(seen, testing::Each(true));
    EXPECT_EQ(sha256, whole.sha256);
  }

  TemporaryFolder files;
};

/// What the processes of a run with a fault come to.
void expect_end(const Fault& fault, const Processes& processes, const std::string& errors) {
  const std::vector<int>& exits = processes.exits();
  if (fault.how == "term") {  // it saves and ends well
    EXPECT_THAT(exits, testing::Each(0));
    return;
  }
  // What is done when the checkpoint is durable is no part of it.
  if (fault.how == "throw" && fault.place.find("step_2") != std::string::npos) {
    EXPECT_THAT(exits, testing::Each(0));
    EXPECT_THAT(errors, HasSubstr("the checkpoint of step 4 is saved; an old one could not be"));
    return;
  }
  if (fault.how == "stop") {
    EXPECT_EQ(processes.stopped(), 1U);
  } else if (fault.how == "kill") {
    EXPECT_THAT(exits, Contains(128 + SIGKILL));
  } else {
    EXPECT_THAT(errors, HasSubstr("a fault of the test"));
  }
  EXPECT_THAT(exits, testing::Not(Contains(0)));
}

/// Runs until the fault, looks at what is there, and goes on with `restart` processes.
void expect_same_bits(const Setting& setting, const Fault& fault, int restart) {
  SCOPED_TRACE(concat(setting.strategy, " on ", setting.processes, ", ", fault.how, " at '",
                      fault.place, "' in process ", fault.process, ", then on ", restart));
  ASSERT_EQ(sums_of(setting, setting.strategy, setting.processes),
            sums_of(setting, "full_shard", 1));
  ASSERT_EQ(sums_of(setting, setting.strategy, restart), sums_of(setting, "full_shard", 1));
  const Attempts attempts;
  FaultyRun run = attempts.run(setting);
  run.fault = fault;
  if (fault.how == "stop") run.timeout_ms = kShortTimeoutMs;
  {
    Processes processes(setting.processes, run, attempts.errors());
    processes.wait();
    expect_end(fault, processes, read_file(attempts.errors()));
  }
  const std::string newest = find_checkpoint(run.folder);
  ASSERT_NE(newest, "");
  const Manifest manifest = read_manifest(newest);
  verify_files(manifest, newest);
  EXPECT_GE(manifest.step, kFaultStep - kSaveEvery);
  if (fault.how == "term") {
    EXPECT_LT(manifest.step, kSteps);
  }

  Processes processes(restart, attempts.run(setting), attempts.errors());
  processes.wait();
  EXPECT_THAT(processes.exits(), testing::Each(0)) << read_file(attempts.errors());
  attempts.expect_numbers(expected(setting.samples));
}

const std::vector<std::string>& operations_of_a_step() {
  static const std::vector<std::string> all{"all-gather",     "forward", "backward",
                                            "reduce-scatter", "results", "optimizer-step",
                                            "snapshot"};
  return all;
}

/// What the first process does for a checkpoint, in this order.
const std::vector<std::string>& calls_of_a_save() {
  static const std::vector<std::string> all{"remove step_4.tmp",
                                            "make-folder step_4.tmp",
                                            "create rank",
                                            "write rank",
                                            "write rank 2",
                                            "sync rank",
                                            "create step_4.tmp/manifest.json",
                                            "write step_4.tmp/manifest.json",
                                            "sync step_4.tmp/manifest.json",
                                            "sync-folder step_4.tmp",
                                            "rename step_4.tmp",
                                            "sync-folder .",
                                            "create latest.tmp",
                                            "write latest.tmp",
                                            "sync latest.tmp",
                                            "rename latest.tmp",
                                            "sync-folder . 2",
                                            "remove step_2/manifest.json",
                                            "sync-folder step_2",
                                            "remove step_2"};
  return all;
}

TEST(KillMatrixPlaces, AreAllCallsOfASave) {
  const Attempts attempts;
  const Setting& setting = settings().front();
  FaultyRun run = attempts.run(setting);
  run.calls = attempts.files.path("calls");
  Processes processes(1, run, attempts.errors());
  processes.wait();
  EXPECT_THAT(processes.exits(), testing::ElementsAre(0)) << read_file(attempts.errors());
  attempts.expect_numbers(expected(setting.samples));
  std::istringstream calls(read_file(run.calls));
  std::vector<std::string> all;
  for (std::string line; std::getline(calls, line);) all.push_back(line);
  EXPECT_EQ(all, calls_of_a_save());
}

struct Case {
  std::string how, place;
  bool is_call;
  std::size_t number;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.how << " at " << c.place; }
};

/// The sample of a run without --long, or the other cases. It has every place, every pair of a
/// fault and a setting, and every pair of a fault and a restart.
std::vector<Case> cases(bool sampled) {
  std::vector<Case> some;
  std::size_t number = 0, faults = 0;
  for (const char* how : {"kill", "stop", "throw", "term"}) {
    std::size_t places = 0;
    const auto add = [&](const std::string& place, bool is_call) {
      const bool in_sample = (faults + places + places / 3) % 3 == 0;
      if (in_sample == sampled) some.push_back({how, place, is_call, number});
      ++number, ++places;
    };
    for (const std::string& place : operations_of_a_step()) add(place, false);
    for (const std::string& place : calls_of_a_save()) add(place, true);
    ++faults;
  }
  return some;
}

class KillMatrix : public testing::TestWithParam<Case> {};

TEST_P(KillMatrix, GivesTheBitsOfTheWholeRun) {
  const Case& c = GetParam();
  // Every process has actions and a file; the first one publishes.
  const bool in_all = !c.is_call || c.place.find(" rank") != std::string::npos;
  const auto expect = [&](const Setting& setting, int restart, bool last_process) {
    const int process = last_process && in_all ? setting.processes - 1 : 0;
    expect_same_bits(setting,
                     {.how = c.how,
                      .place = c.place,
                      .process = process,
                      .step = kFaultStep,
                      .checkpoint = kFaultCheckpoint},
                     restart);
  };
  if (!test::runs_long_tests()) {  // neighbours take different ones
    const Setting& setting = settings()[c.number % settings().size()];
    const auto restart = c.number / settings().size() % setting.restarts.size();
    return expect(setting, setting.restarts[restart], c.number % 2 == 0);
  }
  for (const Setting& setting : settings()) {
    for (const int restart : setting.restarts) {
      expect(setting, restart, false);
      if (in_all) expect(setting, restart, true);
    }
  }
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.how + "_" + info.param.place;
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Faults, KillMatrix, testing::ValuesIn(cases(true)), name_of);
INSTANTIATE_TEST_SUITE_P(LongFaults, KillMatrix, testing::ValuesIn(cases(false)), name_of);

TEST(KillMatrixLock, AStoppedProcessKeepsItsFolderUntilItIsKilled) {
  const Attempts attempts;
  const Setting& setting = settings().front();
  FaultyRun run = attempts.run(setting);
  run.timeout_ms = kShortTimeoutMs;
  run.fault = {.how = "stop", .place = "forward", .step = kFaultStep};
  {
    Processes stopped(setting.processes, run, attempts.errors());
    stopped.wait();
    ASSERT_EQ(stopped.stopped(), 1U) << read_file(attempts.errors());
    Processes second(setting.processes, attempts.run(setting), attempts.errors());
    second.wait();
    EXPECT_THAT(second.exits(), testing::Each(1));
    EXPECT_THAT(read_file(attempts.errors()),
                HasSubstr(concat("'", run.folder, "' is in use: process ")));
  }
  Processes third(setting.processes, attempts.run(setting), attempts.errors());
  third.wait();
  EXPECT_THAT(third.exits(), testing::Each(0)) << read_file(attempts.errors());
  attempts.expect_numbers(expected(setting.samples));
}

}  // namespace
}  // namespace tessera::kill_matrix_test
