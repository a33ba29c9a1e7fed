#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "command_line.h"
#include "commands.h"
#include "gpt_settings.h"
#include "launch/launch_environment.h"
#include "self_test/check_list.h"
#include "self_test/preflight.h"
#include "self_test/self_test_training.h"
#include "tessera/core/error.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kCollectiveSizes[] = {0, 1, 64, 10007};

class SelfTest {
 public:
  explicit SelfTest(const TrainerOptions& options) : options_(options), training_(options) {}

  int run() {
    std::cout << "Testing " << options_.ranks << " ranks on "
              << (options_.device == DeviceChoice::kCuda ? "GPUs" : "the CPU") << ", "
              << to_string(options_.precision) << "\n";
    checks_.check("collectives", [this] { return test_collectives(); });
    checks_.check("no_shard learns", [this] { return training_.run_reference(); });
    for (const Strategy& strategy : strategies()) {
      if (strategy.name == "no_shard") continue;
      if (strategy.hybrid && options_.ranks % 2 != 0) {
        checks_.skip(strategy.name, "needs an even number of ranks");
        continue;
      }
      checks_.check(strategy.name, [&] { return training_.run(strategy); });
    }
    std::cout << "\n";
    if (checks_.failures() == 0) {
      std::cout << "All is well: this machine is ready to train, and every strategy gives the same "
                   "bits on it.\n";
      return kExitGood;
    }
    std::cout << "Do not train here yet: " << checks_.failures()
              << (checks_.failures() == 1 ? " check has failed.\n" : " checks have failed.\n");
    return kExitRunTime;
  }

 private:
  /// Sums of whole numbers, which are exact in any order.
  std::string test_collectives() {
    launch_ranks(make_groups(options_), [this](int rank, ProcessGroup& group) {
      const auto device = make_rank_device(options_, rank);
      const auto stream = device->create_stream({.name = "self-test"});
      for (const std::int64_t numel : kCollectiveSizes) {
        exchange(group, *device, *stream, numel);
      }
    });
    return "all-gather, reduce-scatter and all-reduce of up to 10,007 elements per rank";
  }

  static void exchange(ProcessGroup& group, Device& device, Stream& stream, std::int64_t numel) {
    const std::int64_t n = group.size();
    Memory memory(device);
    const auto tensor = [&](std::int64_t count) {
      return Tensor::empty(memory, Shape{count}, DType::kFloat32, MemoryCategory::kWorkspace,
                           "self-test");
    };
    const Tensor whole = tensor(numel * n);
    const Tensor part = tensor(numel);
    const KernelTable& kernels = kernels_for(device);
    const auto fill = [&](const TensorView& view, float value) {
      stream.submit({.name = "fill"},
                    [&, view, value] { kernels.fill({.dst = view, .value = value}, stream); });
    };
    const auto expect = [&](const char* what, const TensorView& view, std::int64_t at,
                            float wanted) {
      if (view.numel() == 0) return;
      float* const host = static_cast<float*>(device.allocate_host(sizeof(float)));
      stream.copy(host, view.as<float>() + at, sizeof(float));
      stream.synchronize();
      const float found = *host;
      device.deallocate_host(host, sizeof(float));
      require(found == wanted, ErrorCode::kInternal, what, " of ", numel, " elements gave ", found,
              " instead of ", wanted, " on rank ", group.rank());
    };
    const auto own = static_cast<float>(group.rank() + 1);
    const auto sum = static_cast<float>(n * (n + 1) / 2);
    fill(part, own);
    group.all_gather(part, whole, stream);
    for (std::int64_t r = 0; r < n; ++r) {
      expect("all-gather", whole, r * numel, static_cast<float>(r + 1));
    }
    fill(whole, own);
    group.reduce_scatter(whole, part, false, stream);
    expect("reduce-scatter", part, numel - 1, sum);
    fill(part, own);
    group.all_reduce(part, stream);
    expect("all-reduce", part, numel / 2, sum);
    stream.synchronize();
  }

  TrainerOptions options_;
  SelfTestTraining training_;
  CheckList checks_;
};

int run_self_test(const Config& config, const Launcher& launcher) {
  TrainerOptions options = trainer_options(config);
  if (!config.given("ranks")) options.ranks = 4;
  options.threads_per_rank = 0;
  options.trace = false;
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

Command add_self_test(CLI::App& program) {
  const auto command = std::make_shared<SettingsCommand>(
      program, "test",
      "Test that every strategy works here, or that the processes of a launcher work together",
      trainer_settings(), joined({model_settings(), train_only_settings(), plan_only_settings()}));
  return {&command->command(), [command] {
            const Launcher launcher = find_launcher(std::getenv);
            Config config = command->config(std::cerr, facts_of(launcher));
            adopt_launcher(launcher, config);
            if (!config.get<bool>("quiet")) print_announcements(std::cerr, config);
            return run_self_test(config, launcher);
          }};
}

}  // namespace tessera::cli
