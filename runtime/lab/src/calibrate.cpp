#include "tessera/lab/calibrate.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "calibration_run.h"
#include "cpu_contention.h"
#include "kernel_calibration.h"
#include "kernel_probes.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// CPU seconds of the calling thread.
double running_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// How often the scheduler took a core from a thread of this process.
double preemptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_nivcsw);
}

/// A rank that runs probes.
struct ProbingRank {
  explicit ProbingRank(int threads)
      : device(make_cpu_device()),
        memory(std::make_unique<Memory>(*device)),
        stream(device->create_stream({.name = "probe", .threads = threads})),
        operands(*memory, *stream) {}

  std::unique_ptr<Device> device;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Stream> stream;
  ProbeOperands operands;
  double seconds = 0.0, running = 0.0;  ///< of the last batch
};

/// At the end of a task, also of one that throws.
struct CountDown {
  void operator()(std::latch* latch) const { latch->count_down(); }
};

/// Ranks that keep the cores busy, all doing the same.
class ProbingTeam {
 public:
  ProbingTeam(int threads, int cores) : threads_(threads) {
    for (int rank = 0; rank < std::max(cores / threads, 1); ++rank) {
      ranks_.push_back(std::make_unique<ProbingRank>(threads));
    }
  }

  PointTime time(const KernelProbe& probe, double seconds) {
    for (const auto& rank : ranks_) rank->operands.begin_probe();
    return time_point(seconds, [&](int calls) { return run(probe, calls); });
  }

 private:
  /// The mean of the ranks.
  BatchTime run(const KernelProbe& probe, int calls) {
    const KernelTable& kernels = cpu_kernels();
    const double preempted = preemptions();
    // This thread sleeps meanwhile: to wait by synchronize(), which looks and yields before it
    // sleeps, would take a core from a rank where each has one.
    std::latch done(static_cast<std::ptrdiff_t>(ranks_.size()));
    for (const auto& rank : ranks_) {
      rank->stream->submit({.name = "probe"}, [&probe, &kernels, &done, calls, r = rank.get()] {
        const std::unique_ptr<std::latch, CountDown> over(&done);
        const Clock::time_point begin = Clock::now();
        const double running = running_seconds();
        for (int i = 0; i < calls; ++i) probe.run(kernels, r->operands, *r->stream);
        r->running = running_seconds() - running;
        r->seconds = since(begin);
      });
    }
    done.wait();
    const auto count = static_cast<double>(ranks_.size());
    BatchTime batch;
    for (const auto& rank : ranks_) {
      rank->stream->synchronize();
      batch.seconds += rank->seconds / count;
      // A thread that shares its work may wait for the others, which says nothing.
      if (threads_ == 1) batch.running += rank->running / count;
    }
    batch.preemptions = (preemptions() - preempted) / (count * threads_);
    return batch;
  }

  const int threads_;
  std::vector<std::unique_ptr<ProbingRank>> ranks_;
};

std::vector<int> teams_of(int cores) {
  std::vector<int> teams{1};
  if (cores >= 8) {
    teams.push_back(1 << static_cast<int>(std::lround(std::log2(cores) / 2.0)));
  }
  if (cores > 1) teams.push_back(cores);
  return teams;
}

/// Ranks of one process that run collectives.
class CollectiveTeam {
 public:
  CollectiveTeam(int ranks, int cores)
      : has_cores_(ranks <= cores), groups_(make_thread_group(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<ProbingRank>(std::max(cores / ranks, 1)));
    }
  }

  /// Times a buffer of so many elements on all ranks together.
  PointTime time(CollectiveKind kind, std::int64_t numel, double seconds) {
    return time_point(seconds, [&](int calls) { return run(kind, numel, calls); });
  }

 private:
  /// Gives the time of the slowest rank.
  BatchTime run(CollectiveKind kind, std::int64_t numel, int calls) {
    const double preempted = preemptions();
    std::vector<std::thread> threads;
    std::vector<double> seconds(ranks_.size());
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      threads.push_back(start_thread("probe", [&, i] {
        ProbingRank& rank = *ranks_[i];
        groups_[i]->barrier(*rank.stream);
        rank.stream->synchronize();
        const Clock::time_point begin = Clock::now();
        for (int call = 0; call < calls; ++call) submit(kind, numel, *groups_[i], rank);
        rank.stream->synchronize();
        seconds[i] = since(begin);
      }));
    }
    for (std::thread& thread : threads) thread.join();
    // Ranks without a core of their own take it from each other.
    const double taken = has_cores_ ? preemptions() - preempted : 0.0;
    return {.seconds = std::ranges::max(seconds),
            .preemptions = taken / static_cast<double>(ranks_.size())};
  }

  static void submit(CollectiveKind kind, std::int64_t numel, ProcessGroup& group,
                     ProbingRank& rank) {
    const std::int64_t part = numel / group.size();
    const DType f = DType::kFloat32;
    switch (kind) {
      case CollectiveKind::kAllGather:
        return group.all_gather(rank.operands.input({part}, f), rank.operands.output({numel}, f),
                                *rank.stream);
      case CollectiveKind::kReduceScatter:
        return group.reduce_scatter(rank.operands.input({numel}, f),
                                    rank.operands.output({part}, f), false, *rank.stream);
      default:
        return group.all_reduce(rank.operands.state({numel}), *rank.stream);
    }
  }

  const bool has_cores_;
  std::vector<std::unique_ptr<ProcessGroup>> groups_;
  std::vector<std::unique_ptr<ProbingRank>> ranks_;
};

/// Half of a round trip between two streams.
double seconds_of_handover() {
  constexpr int kRounds = 500, kBatches = 5;
  const auto device = make_cpu_device();
  const auto first = device->create_stream({.name = "ping"});
  const auto second = device->create_stream({.name = "pong"});
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    // The streams wait for this, so that the host's part is done before the clock starts.
    Clock::time_point begin, end;
    first->submit({.name = "begin"}, [&] { begin = Clock::now(); });
    for (int round = 0; round < kRounds; ++round) {
      second->wait(first->record());
      second->submit({.name = "pong"}, [] {});
      first->wait(second->record());
      first->submit({.name = "ping"}, [] {});
    }
    first->submit({.name = "end"}, [&] { end = Clock::now(); });
    first->synchronize();
    best = std::min(best, std::chrono::duration<double>(end - begin).count() / (2 * kRounds));
  }
  return best;
}

class Calibration {
 public:
  explicit Calibration(const CalibrationOptions& options) : options_(options) {}

  HardwareProfile run();

 private:
  void time_kernels(HardwareProfile& profile, CalibrationRun& run);
  void time_collectives(HardwareProfile& profile, CalibrationRun& run);
  void time_contention(HardwareProfile& profile, CalibrationRun& run);
  Quantity measured(double value) const { return {value, source_}; }

  const CalibrationOptions& options_;
  const std::string source_ =
      concat("measured on ", options_.machine, ", ", options_.cores, " cores busy");
  KernelCalibration kernels_{source_, options_.coarseness};
  std::vector<std::tuple<int, CollectiveKind, std::int64_t>> collectives_;  ///< ranks, elements
  /// Ranks, and whether it is a GEMM that runs beside the collective.
  std::vector<std::tuple<int, CollectiveKind, bool>> contentions_;
};

void Calibration::time_kernels(HardwareProfile& profile, CalibrationRun& run) {
  std::unique_ptr<ProbingTeam> team;
  int team_threads = 0;
  kernels_.run(profile, run, [&](const KernelProbe& probe, int threads, double seconds) {
    if (threads != team_threads) {
      team.reset();
      team = std::make_unique<ProbingTeam>(threads, options_.cores);
      team_threads = threads;
    }
    return team->time(probe, seconds);
  });
}

void Calibration::time_collectives(HardwareProfile& profile, CalibrationRun& run) {
  std::map<std::pair<int, CollectiveKind>, std::size_t> places;
  std::unique_ptr<CollectiveTeam> team;
  int team_ranks = 0;
  for (const auto& [ranks, kind, numel] : collectives_) {
    run.announce(concat(to_string(kind), " among ", ranks, " ranks"));
    if (team_ranks != ranks) {
      team.reset();
      team = std::make_unique<CollectiveTeam>(ranks, options_.cores);
      team_ranks = ranks;
    }
    std::vector<CollectiveTimes>& measured = profile.process.measured;
    const auto [place, is_new] = places.try_emplace({ranks, kind}, measured.size());
    if (is_new) measured.push_back({std::string(to_string(kind)), ranks, source_, {}});
    PointTime time = team->time(kind, numel, run.seconds_of_point());
    run.finish();
    for (int again = 0; again < kMostRepeats && time.disturbed; ++again) {
      if (!run.suffices_again(time.seconds)) break;
      time = PointTime::better(time, team->time(kind, numel, run.seconds_of_point()));
    }
    run.record(time);
    const auto bytes = static_cast<double>(sent_bytes(kind, numel * 4, ranks));
    measured[place->second].points.push_back({bytes, time.seconds});
  }
}

void Calibration::time_contention(HardwareProfile& profile, CalibrationRun& run) {
  ContentionFactors factors;
  std::unique_ptr<ContentionTeam> team;
  int team_ranks = 0;
  for (const auto& [ranks, kind, multiplies] : contentions_) {
    run.announce(concat(multiplies ? "GEMMs" : "kernels bound by memory", " beside ",
                        to_string(kind), " among ", ranks, " ranks"));
    if (team_ranks != ranks) {
      team.reset();
      const int all = std::get<int>(contentions_.front());
      team = std::make_unique<ContentionTeam>(ranks, std::max(options_.cores / all, 1),
                                              options_.cores);
      team_ranks = ranks;
    }
    const ContentionTime time = team->time(kind, multiplies, run.seconds_of_point());
    run.finish();
    run.record(time.alone);
    factors.add(kind, multiplies, ranks, time);
  }
  factors.write(profile, source_);
}

HardwareProfile Calibration::run() {
  for (const int threads : teams_of(options_.cores)) {
    kernels_.add(threads, std::max(options_.cores / threads, 1));
  }
  for (int ranks = 2; ranks <= std::min(2 * options_.cores, 16); ranks *= 2) {
    for (const CollectiveKind kind :
         {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllReduce}) {
      constexpr std::int64_t kElements[] = {64, 4096, 65536, 1 << 19, 1 << 22};
      for (std::size_t i = 0; i < std::size(kElements);
           i += static_cast<std::size_t>(options_.coarseness)) {
        collectives_.emplace_back(ranks, kind, kElements[i]);
      }
    }
  }
  // Ranks are as many as keep all cores busy, and half of them.
  constexpr int kMostRanks = 16;
  const int all = std::clamp(options_.cores, 2, kMostRanks);
  for (int ranks = all; ranks >= std::max(all / 2, 2); ranks = ranks > all / 2 ? all / 2 : 0) {
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      for (const bool multiplies : {true, false})
        contentions_.emplace_back(ranks, kind, multiplies);
    }
  }
  HardwareProfile profile;
  profile.name = options_.name;
  profile.device = "cpu";
  CalibrationRun run(options_, kernels_.size() + static_cast<int>(collectives_.size()) +
                                   static_cast<int>(contentions_.size()));
  time_collectives(profile, run);
  time_contention(profile, run);
  profile.handover = measured(seconds_of_handover());
  time_kernels(profile, run);
  profile.noise = run.noise(options_.cores);
  const KernelRates& copies = *profile.find("cast", "fp32", 1);
  profile.memory_bandwidth = measured(copies.points.back().per_second);
  profile.copy_out = measured(profile.memory_bandwidth.value / 2.0);
  profile.host_bandwidth = profile.memory_bandwidth;
  const KernelRates& fills = *profile.find("fill", "fp32", 1);
  profile.launch =
      measured(4.0 * fills.points.front().size.front() / fills.points.front().per_second);
  profile.memory_bytes = measured(options_.memory_bytes);
  profile.cores = {static_cast<double>(options_.cores), "those that this process may use"};
  const auto& largest = profile.process.measured.front().points.back();
  profile.process.latency = measured(profile.process.measured.front().points.front().seconds);
  profile.process.hop = {0.0, "in the latency"};
  profile.process.bandwidth = measured(largest.bytes / largest.seconds);
  profile.node = profile.process;
  for (CollectiveTimes& times : profile.node.measured) {
    times.source = "as threads of one process: ranks of a machine read each other's memory";
  }
  profile.network = {.latency = {50e-6, "assumed: TCP"},
                     .hop = {50e-6, "assumed: TCP"},
                     .bandwidth = {1.25e9, "assumed: an adapter of 10 Gbit/s"}};
  return profile;
}

}  // namespace

HardwareProfile calibrate_cpu(const CalibrationOptions& options) {
  check_calibration(options);
  return Calibration(options).run();
}

}  // namespace tessera
