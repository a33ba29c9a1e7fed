#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "output/terminal.h"
#include "self_test/self_test.h"
#include "settings/command_line.h"
#include "settings/gpt_settings.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

constexpr int kUsualRanks = 4;

class SelfTest {
 public:
  explicit SelfTest(const TrainerOptions& options) : options_(options), training_(options) {}

  int run() {
    const char* const where = options_.device == DeviceChoice::kCuda ? "GPUs" : "the CPU";
    print_paragraph(std::cout,
                    concat("Testing ", counted(options_.ranks, "rank"), " on ", where, ", ",
                           precision_name(options_),
                           ". Every strategy must end with the losses, gradient norms and "
                           "parameters of no_shard, and take the memory and send the bytes "
                           "that its plan predicts."));
    checks_.check("collectives", [this] { return test_collectives(); });
    checks_.check("no_shard learns", [this] { return training_.run_reference(); });
    bool all_run = true;
    for (const Strategy& strategy : strategies()) {
      if (strategy.name == "no_shard") continue;
      if (strategy.hybrid &&
          default_replicas(strategy, options_.ranks, options_.ranks_per_node) == 1) {
        checks_.skip(strategy.name, "needs several replicas of several ranks: 4 or more");
        all_run = false;
        continue;
      }
      checks_.check(strategy.name, [&] { return training_.run(strategy); });
    }
    std::cout << "\n";
    if (checks_.failures() == 0) {
      std::cout << "All is well: every strategy" << (all_run ? "" : " that was run")
                << " gives the same bits on this machine.\n";
      return kExitGood;
    }
    std::cout << "Do not train here yet: " << checks_.failures()
              << (checks_.failures() == 1 ? " check has failed.\n" : " checks have failed.\n");
    return kExitRunTime;
  }

 private:
  std::string test_collectives() {
    TrainerOptions options = options_;
    options.deterministic_collectives = true;
    launch_ranks(make_groups(options), [&options](int rank, ProcessGroup& group) {
      const auto device = make_rank_device(options, rank);
      check_collectives(group, *device);
    });
    return kCollectivesAreRight;
  }

  TrainerOptions options_;
  SelfTestTraining training_;
  CheckList checks_;
};

/// The settings of a run that decide what is tested; --help shows them alone.
std::vector<Setting> self_test_settings() {
  constexpr std::array<std::string_view, 16> kShown{"ranks",
                                                    "wrap",
                                                    "prefetch_forward",
                                                    "prefetch_backward",
                                                    "recompute",
                                                    "precision",
                                                    "seed",
                                                    "device",
                                                    "group",
                                                    "attention",
                                                    "cuda_graph",
                                                    "threads_per_rank",
                                                    "memory_limit",
                                                    "timeout",
                                                    "check_collectives",
                                                    "deterministic_attention"};
  std::vector<Setting> all = trainer_settings();
  for (Setting& setting : all) {
    if (std::ranges::find(kShown, setting.name) == kShown.end()) setting.group = "";
    if (setting.name != "ranks") continue;
    setting.fallback = kUsualRanks;
    setting.help =
        "ranks to test, as threads of this process; under a launcher those that it starts";
  }
  return all;
}

int run_self_test(Config& config, const Launcher& launcher) {
  TrainerOptions options = trainer_options(config);
  options.time_actions = false;
  if (launcher.kind != Launcher::Kind::kNone) {
    return run_preflight(config, std::move(options), launcher);
  }
  options.device = resolved_device(options.device);
  // Ranks may share a GPU here: the point is that every strategy runs.
  if (options.device == DeviceChoice::kCuda && !config.given("group")) {
    options.group = GroupChoice::kThread;
  }
  return SelfTest(on_this_machine(std::move(options))).run();
}

}  // namespace

std::shared_ptr<SettingsCommand> add_self_test_flags(CLI::App& app) {
  const auto command = std::make_shared<SettingsCommand>(
      app, self_test_settings(),
      joined({model_settings(), train_only_settings(), plan_only_settings()}));
  app.footer(
      "The other flags of 'tessera train' that say how to shard and to step are taken, too: under "
      "a "
      "launcher all processes must have the same.");
  return command;
}

std::function<int()> add_self_test(CLI::App& app) {
  const auto command = add_self_test_flags(app);
  return [command] {
    const Launcher launcher = find_launcher(std::getenv);
    Config config = command->config(facts_of(launcher));
    adopt_launcher(launcher, config);
    if (!config.get<bool>("quiet")) print_announcements(config);
    return run_self_test(config, launcher);
  };
}

}  // namespace tessera::cli
