#include "self_test/self_test.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <mutex>
#include <utility>
#include <vector>

#include "commands.h"
#include "launch/same_run.h"
#include "output/terminal.h"
#include "tessera/collectives/process_group.h"
#include "tessera/collectives/world.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/core/tensor.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/gather.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"

namespace tessera::cli {
namespace {

/// Two ranks that talk.
struct Pair {
  int first = 0;
  int second = 0;
};

/// How fast two ranks exchange messages. Only the first one's clock is used.
struct Link {
  double round_trip_seconds = 0.0;  ///< of a message of 4 bytes and its answer, the median
  double bytes_per_second = 0.0;    ///< of 16 MiB there and back, the best
};

constexpr int kMachinesInPairs = 8;  // more of them are measured in a ring
constexpr int kWarmups = 5;
constexpr int kRoundTrips = 51;
constexpr int kLargeTrips = 3;
constexpr std::int64_t kLargeNumel = std::int64_t{4} << 20;

/// Messages between this rank and its partner.
class Echo {
 public:
  Echo(ProcessGroup& group, Device& device, const Pair& pair)
      : group_(group),
        asks_(group.rank() == pair.first),
        partner_(asks_ ? pair.second : pair.first),
        stream_(device.create_stream({.name = "link"})),
        memory_(device) {}

  /// Seconds of each round trip, ascending.
  std::vector<double> trips(std::int64_t numel, int count) {
    const Tensor data =
        Tensor::empty(memory_, Shape{numel}, DType::kFloat32, MemoryCategory::kWorkspace, "link");
    std::fill_n(data.as<float>(), numel, 1.0F);
    std::vector<double> seconds;
    for (int i = 0; i < kWarmups + count; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (asks_) group_.send(data, partner_, *stream_);
      group_.recv(data, partner_, *stream_);
      if (!asks_) group_.send(data, partner_, *stream_);
      stream_->synchronize();
      const auto took = std::chrono::steady_clock::now() - begin;
      if (i >= kWarmups) seconds.push_back(std::chrono::duration<double>(took).count());
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  }

 private:
  ProcessGroup& group_;
  const bool asks_;
  const int partner_;
  const std::unique_ptr<Stream> stream_;
  Memory memory_;
};

/// The first ranks of every two machines, or of neighbours in a ring if there are many machines.
std::vector<Pair> pairs_of_machines(const World& world) {
  std::vector<int> firsts;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.machine_of(rank) == static_cast<int>(firsts.size())) firsts.push_back(rank);
  }
  const std::size_t machines = firsts.size();
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < machines; ++a) {
    for (std::size_t b = a + 1; b < machines; ++b) {
      const bool neighbours = b == a + 1 || (a == 0 && b == machines - 1);
      if (machines <= kMachinesInPairs || neighbours) pairs.push_back({firsts[a], firsts[b]});
    }
  }
  return pairs;
}

/// Every rank must call it and gets the result; those that are not of the pair wait.
Link measure_link(ProcessGroup& group, Device& device, const Pair& pair) {
  Link measured;
  if (group.rank() == pair.first || group.rank() == pair.second) {
    constexpr double kThereAndBack = 2.0 * sizeof(float) * static_cast<double>(kLargeNumel);
    Echo echo(group, device, pair);
    measured.round_trip_seconds = echo.trips(1, kRoundTrips)[kRoundTrips / 2];
    measured.bytes_per_second = kThereAndBack / echo.trips(kLargeNumel, kLargeTrips).front();
  }
  return gather(group, measured)[static_cast<std::size_t>(pair.first)];
}

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
