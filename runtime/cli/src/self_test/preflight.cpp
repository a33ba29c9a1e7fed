#include "self_test/preflight.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <mutex>
#include <utility>
#include <vector>

#include "commands.h"
#include "launch/same_run.h"
#include "output/terminal.h"
#include "self_test/check_list.h"
#include "self_test/collectives_check.h"
#include "self_test/preflight_links.h"
#include "self_test/self_test_training.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"

namespace tessera::cli {
namespace {

class Preflight {
 public:
  Preflight(Config& config, TrainerOptions options, const Launcher& launcher)
      : config_(config),
        options_(std::move(options)),
        launcher_(launcher),
        checks_(launcher.process != 0) {}

  int run() {
    if (launcher_.process == 0) {
      std::cout << "Testing " << options_.ranks << " ranks in "
                << counted(launcher_.processes, "process", "processes") << " of " << launcher_.name
                << ", on " << (on_gpus() ? "GPUs" : "the CPU") << "\n";
    }
    // After a failure the processes no longer agree about what comes next.
    const bool good =
        checks_.check("processes", [this] { return join(); }) && compare() && measure_links() &&
        checks_.check("collectives", [this] { return test_collectives(); }) && train();
    if (!good && launcher_.process != 0) {
      fail(ErrorCode::kUnavailable, checks_.first_failure());
    }
    if (launcher_.process == 0) {
      std::cout << "\n";
      print_line(stdout, sentence(good));
    }
    return good ? kExitGood : kExitRunTime;
  }

 private:
  bool on_gpus() const { return options_.device == DeviceChoice::kCuda; }

  World& world() const { return *options_.world; }

  /// Runs `body` on the ranks of this process, on the CPU; training is what uses GPUs.
  void on_ranks(const std::function<void(ProcessGroup& group, Device& device)>& body) const {
    launch_ranks(world().groups(), [&](int, ProcessGroup& group) {
      const auto device = world().make_device();
      body(group, *device);
    });
  }

  std::string join() {
    join_world(launcher_, config_, options_);
    for (int rank = 0; rank < world().size(); ++rank) {
      machines_ = std::max(machines_, world().machine_of(rank) + 1);
    }
    hosts_ = gather_texts(world(), host_name());
    std::string text;
    for (int machine = 0; machine < machines_; ++machine) {
      int ranks = 0;
      std::string host;
      for (int rank = 0; rank < world().size(); ++rank) {
        if (world().machine_of(rank) != machine) continue;
        if (ranks++ == 0) host = host_of(rank);
      }
      text += concat(machine == 0 ? "" : ", ", counted(ranks, "rank"), " on ", host);
    }
    return "all are there: " + text;
  }

  const std::string& host_of(int rank) const {
    return hosts_[static_cast<std::size_t>(rank / world().local_ranks())];
  }

  bool compare() {
    const bool same = checks_.check("program", [this] { return compare_programs(); }) &&
                      checks_.check("settings", [this] { return compare_settings(); });
    // All processes compare the same values. Each leaves as at a good end, and tells of no failure,
    // since that might reach another one before it has come to its own.
    if (!same) options_.world.reset();
    return same;
  }

  std::string compare_programs() {
    require_same_program(world());
    return concat("tessera ", TESSERA_VERSION, ", the same file everywhere");
  }

  std::string compare_settings() {
    require_same_settings(config_, options_);
    return "the same in every process";
  }

  bool measure_links() {
    const std::vector<Pair> pairs = pairs_of_machines(world());
    if (pairs.empty()) {
      checks_.skip("links", "there is one machine, whose ranks share memory");
      return true;
    }
    for (const Pair& pair : pairs) {
      const std::string name = concat("link between ", host_of(pair.first), " (rank ", pair.first,
                                      ") and ", host_of(pair.second), " (rank ", pair.second, ")");
      if (!checks_.check(name, [&] { return measure(pair); })) return false;
    }
    return true;
  }

  std::string measure(const Pair& pair) {
    std::mutex mutex;
    Link link;
    on_ranks([&](ProcessGroup& group, Device& device) {
      const Link measured = measure_link(group, device, pair);
      const std::lock_guard lock(mutex);
      link = measured;
    });
    slowest_ = {std::max(slowest_.round_trip_seconds, link.round_trip_seconds),
                std::min(slowest_.bytes_per_second, link.bytes_per_second)};
    return describe(link);
  }

  static std::string describe(const Link& link) {
    return concat("round trip ", fixed(link.round_trip_seconds * 1e6, 0), " us, ",
                  fixed(link.bytes_per_second * 1e-9, 2), " GB/s");
  }

  std::string test_collectives() {
    on_ranks([](ProcessGroup& group, Device& device) { check_collectives(group, device); });
    return kCollectivesAreRight;
  }

  bool train() {
    SelfTestTraining training(options_);
    return checks_.check("no_shard learns", [&] { return training.run_reference(); }) &&
           checks_.check("full_shard", [&] { return training.run(find_strategy("full_shard")); });
  }

  std::string sentence(bool good) const {
    if (!good) {
      return concat("Do not train with these processes yet: ", checks_.first_failure());
    }
    const std::string all =
        concat(options_.ranks == 1 ? "The one rank" : concat("All ", options_.ranks, " ranks"),
               " on ", counted(machines_, "machine"), " work");
    if (machines_ == 1) return all + " and give the same bits.";
    return concat(all, " and give the same bits; the slowest link: ", describe(slowest_), ".");
  }

  Config& config_;
  TrainerOptions options_;
  const Launcher& launcher_;
  CheckList checks_;
  int machines_ = 0;
  std::vector<std::string> hosts_;  // by process
  Link slowest_{.round_trip_seconds = 0.0, .bytes_per_second = 1e30};
};

}  // namespace

int run_preflight(Config& config, TrainerOptions options, const Launcher& launcher) {
  options.device = resolved_device(options.device);
  return Preflight(config, std::move(options), launcher).run();
}

}  // namespace tessera::cli
