// A process of a run that saves checkpoints, and to which something happens at an exact place: see
// faulty_run.h, and kill_matrix_test.cpp, which starts it.
#include "faulty_run.h"

#include <signal.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <stdexcept>

#include "checkpointed_run.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/compat/launcher.h"
#include "tessera/sharding/operation.h"
#include "watched_storage.h"

namespace tessera::test {
namespace {

std::atomic<bool> asked_to_stop{false};
extern "C" void remember_signal(int /*signal*/) { asked_to_stop = true; }

/// Happens once.
class FaultHere {
 public:
  FaultHere(const Fault& fault, int process) : fault_(fault), armed_(fault.process == process) {}

  void at_action(std::int64_t step, const Action& action) {
    if (action.operation == &operations::kCopy && step == fault_.checkpoint) at("snapshot");
    if (step == fault_.step) at(action.operation->name);
  }
  void at(std::string_view place) {
    if (place != fault_.place || !armed_.exchange(false)) return;
    if (fault_.how == "kill") raise(SIGKILL);
    if (fault_.how == "stop") raise(SIGSTOP);
    if (fault_.how == "term") kill(0, SIGTERM);  // the group: all processes of the run
    if (fault_.how == "throw") fail(ErrorCode::kIo, "a fault of the test");
  }

 private:
  const Fault fault_;
  std::atomic<bool> armed_;
};

/// Gives the storage's calls for one checkpoint names: what is done and to which file, rank files
/// being "rank", with a number from the second time on.
class NamedCalls {
 public:
  NamedCalls(const FaultyRun& run, FaultHere& fault) : run_(run), fault_(fault) {}

  void before(const std::string& call, const std::string& path) {
    const std::string name = std::filesystem::relative(path, run_.folder).string();
    const auto is_of = [&](std::int64_t step) {
      return name.starts_with(concat("step_", step, ".tmp"));
    };
    std::string place;
    {
      const std::lock_guard lock(mutex_);
      if (is_of(run_.fault.checkpoint)) counts_ = true;
      const bool begins = name == "." && call == "make-folder";
      if (begins || is_of(run_.fault.checkpoint + run_.save_every)) counts_ = false;
      if (!counts_) return;
      place = concat(call, " ", name.find("rank_") == std::string::npos ? name : "rank");
      if (const int times = ++times_[place]; times > 1) place += concat(" ", times);
      if (!run_.calls.empty()) std::ofstream(run_.calls, std::ios::app) << place << "\n";
    }
    fault_.at(place);
  }

 private:
  const FaultyRun& run_;
  FaultHere& fault_;
  std::mutex mutex_;
  bool counts_ = false;
  std::map<std::string, int> times_;
};

/// As join_launched(), but the processes may look for each other for longer than they wait.
void join(TrainerOptions& options, const Launcher& launcher) {
  options.world = make_socket_world({.process = launcher.process,
                                     .processes = launcher.processes,
                                     .address = launcher.address,
                                     .port = launcher.port,
                                     .listener = launcher.listener,
                                     .token = launcher.token,
                                     .patience = std::chrono::seconds(60)},
                                    {.local_ranks = 1, .timeout = options.timeout});
}

bool is_complete(const FaultyRun& run) {
  const std::string newest = find_checkpoint(run.folder);
  return !newest.empty() && read_manifest(newest).step >= run.steps;
}

void train_one_process(const FaultyRun& run) {
  const Launcher launcher = find_launcher(std::getenv);
  FaultHere fault(run.fault, launcher.process);
  NamedCalls calls(run, fault);
  WatchedStorage storage(
      [&](const std::string& call, const std::string& path) { calls.before(call, path); });
  TrainerOptions options = options_of({.strategy = run.strategy,
                                       .ranks = launcher.processes,
                                       .samples_per_step = run.samples_per_step},
                                      run.steps);
  options.timeout = std::chrono::milliseconds(run.timeout_ms);
  options.before_action = [&](int, std::int64_t step, const Action& action) {
    fault.at_action(step, action);
  };
  options.checkpoints = {.folder = run.folder,
                         .every = run.save_every,
                         .total_limit = run.total_limit,
                         .resume = "auto",
                         .storage = &storage};
  join(options, launcher);
  const Model model = checkpointed_gpt();
  const RandomTokens data = checkpointed_data();
  const bool tells = launcher.process == 0;
  const auto log = [&](const std::string& line) {
    if (tells) std::ofstream(run.log, std::ios::app) << line << std::endl;
  };
  std::int64_t last = 0;
  const TrainingSummary summary =
      Trainer(model, data, options)
          .train(
              [&](const StepRecord& record) {
                std::array<char, 128> line{};
                std::snprintf(line.data(), line.size(), "step %lld %a %a",
                              static_cast<long long>(record.step), record.loss,
                              record.gradient_norm);
                log(line.data());
                last = record.step;
                return !asked_to_stop;
              },
              [&](const std::string& note) { std::cerr << note << "\n"; });
  if (last == run.steps) log("parameters " + summary.parameters_sha256);
}

}  // namespace
}  // namespace tessera::test

int main(int argc, char** argv) {
  using namespace tessera::test;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, remember_signal);
  try {
    if (argc != 2) throw std::runtime_error("usage: faulty_run JSON; see faulty_run.h");
    const auto run = nlohmann::json::parse(argv[1]).get<FaultyRun>();
    if (!is_complete(run)) train_one_process(run);
  } catch (const std::exception& error) {
    std::cerr << "faulty_run: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
