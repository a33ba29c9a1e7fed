#include "self_test/preflight.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <mutex>
#include <utility>
#include <vector>

#include "commands.h"
#include "self_test/check_list.h"
#include "self_test/collectives_check.h"
#include "self_test/preflight_exchange.h"
#include "self_test/preflight_identity.h"
#include "self_test/preflight_links.h"
#include "self_test/self_test_training.h"
#include "terminal.h"
#include "tessera/core/error.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"

namespace tessera::cli {
namespace {

class Preflight {
 public:
  Preflight(const Config& config, TrainerOptions options, const Launcher& launcher)
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
      std::cout << "\n" << for_reader(inspect(stdout), sentence(good)) << "\n";
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
    const Identity own = own_identity();
    on_ranks([&](ProcessGroup& group, Device& device) {
      std::vector<Identity> all = exchange_identities(group, device, own);
      if (group.rank() == world().first_rank()) identities_ = std::move(all);
    });
    std::string text;
    for (int machine = 0; machine < machines_; ++machine) {
      int ranks = 0;
      std::string host;
      for (int rank = 0; rank < world().size(); ++rank) {
        if (world().machine_of(rank) != machine) continue;
        if (ranks++ == 0) host = identity_of(rank).host;
      }
      text += concat(machine == 0 ? "" : ", ", counted(ranks, "rank"), " on ", host);
    }
    return "all are there: " + text;
  }

  const Identity& identity_of(int rank) const {
    return identities_[static_cast<std::size_t>(rank)];
  }

  /// "process 1 (rank 1 on nodeB)".
  std::string describe(int rank) const {
    const int each = world().local_ranks();
    const int first = rank / each * each;
    return concat(
        "process ", rank / each, " (",
        each == 1 ? concat("rank ", first) : concat("ranks ", first, " to ", first + each - 1),
        " on ", identity_of(rank).host, ")");
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
    const Identity& first = identity_of(0);
    for (int rank = 0; rank < world().size(); ++rank) {
      const Identity& other = identity_of(rank);
      require(other.version == first.version, ErrorCode::kConfig, describe(rank), " runs tessera ",
              other.version, ", but ", describe(0), " runs ", first.version,
              "; install the same version everywhere");
      require(other.build == first.build, ErrorCode::kConfig, describe(rank),
              " runs another build of tessera ", first.version, " than ", describe(0),
              "; copy one program file to all machines");
    }
    return concat("tessera ", first.version, ", the same file everywhere");
  }

  std::string compare_settings() {
    const std::vector<NamedDigest> own = setting_digests(config_);
    std::vector<std::uint64_t> digests;
    for (const NamedDigest& setting : own) digests.push_back(setting.digest);
    const std::vector<std::uint64_t> all = gathered_from_ranks(digests);
    for (int rank = 0; rank < world().size(); ++rank) {
      const std::uint64_t* const theirs = all.data() + static_cast<std::size_t>(rank) * own.size();
      std::string names;
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (theirs[i] != all[i]) names += (names.empty() ? "" : ", ") + own[i].name;
      }
      require(names.empty(), ErrorCode::kConfig, describe(rank), " has other settings than ",
              describe(0), ": ", names, "; give all processes the same flags and file");
    }
    if (!on_gpus()) compare_threads();
    return "the same in every process";
  }

  /// Matrix products on the CPU are split over a rank's threads: with other threads they add in
  /// another order.
  void compare_threads() {
    const std::vector<int> all = gathered_from_ranks(std::vector<int>{options_.threads_per_rank});
    const int first = all.front();
    for (int rank = 0; rank < world().size(); ++rank) {
      const int threads = all[static_cast<std::size_t>(rank)];
      require(threads == first, ErrorCode::kConfig, describe(rank), " has ",
              counted(threads, "thread"), " per rank, but ", describe(0), " has ", first,
              ", and the bits depend on that; give all processes --threads-per-rank ",
              std::min(threads, first), ", or OMP_NUM_THREADS=", std::min(threads, first));
    }
  }

  /// The values of rank 0, then of rank 1, ...; the ranks of this process give the same.
  template <typename T>
  std::vector<T> gathered_from_ranks(const std::vector<T>& own) const {
    std::mutex mutex;
    std::vector<T> all;
    on_ranks([&](ProcessGroup& group, Device& device) {
      std::vector<T> values = gathered(group, device, own);
      const std::lock_guard lock(mutex);
      all = std::move(values);
    });
    return all;
  }

  bool measure_links() {
    const std::vector<Pair> pairs = pairs_of_machines(world());
    if (pairs.empty()) {
      checks_.skip("links", "there is one machine, whose ranks share memory");
      return true;
    }
    for (const Pair& pair : pairs) {
      const std::string name =
          concat("link between ", identity_of(pair.first).host, " (rank ", pair.first, ") and ",
                 identity_of(pair.second).host, " (rank ", pair.second, ")");
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

  const Config& config_;
  TrainerOptions options_;
  const Launcher& launcher_;
  CheckList checks_;
  int machines_ = 0;
  std::vector<Identity> identities_;  // by rank
  Link slowest_{.round_trip_seconds = 0.0, .bytes_per_second = 1e30};
};

}  // namespace

int run_preflight(const Config& config, TrainerOptions options, const Launcher& launcher) {
  options.device = resolved_device(options.device);
  return Preflight(config, std::move(options), launcher).run();
}

}  // namespace tessera::cli
