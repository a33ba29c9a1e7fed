#include "cpu_contention.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <latch>

#include "kernel_probes.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/core/quantile.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;
/// Rounds whose collectives ended before the kernels, which are done again with twice as many.
constexpr int kMostShortRounds = 6;
constexpr int kMostCollectives = 4000;
/// Elements of a collective and of the kernel that is bound by memory: a MiB.
constexpr std::int64_t kElements = 1 << 18;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

void call_kernel(bool multiplies, ProbeOperands& operands, Stream& stream) {
  const DType f = DType::kFloat32;
  if (!multiplies) {
    return cpu_kernels().add(
        {.src = operands.input({kElements}, f), .dst = operands.state({kElements})}, stream);
  }
  GemmArgs args{.a = operands.input({192, 512}, f),
                .b = operands.input({512, 512}, f),
                .c = operands.output({192, 512}, f)};
  args.transpose_b = true;
  cpu_kernels().gemm(args, stream);
}

/// Counts down at the end of a task, also of one that throws.
struct CountDownAtEnd {
  void operator()(std::latch* latch) const { latch->count_down(); }
};

std::string two_digits(double factor) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", factor);
  return text.data();
}

}  // namespace

struct ContentionTeam::Rank {
  explicit Rank(int threads)
      : device(make_cpu_device()),
        memory(std::make_unique<Memory>(*device)),
        compute(device->create_stream({.name = "compute", .threads = threads})),
        gather(device->create_stream({.name = "gather"})),
        reduce(device->create_stream({.name = "reduce", .threads = threads})),
        operands(*memory, *compute),
        of_gather(*memory, *gather),
        of_reduce(*memory, *reduce) {}

  std::unique_ptr<Device> device;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Stream> compute, gather, reduce;
  ProbeOperands operands, of_gather, of_reduce;
  // The last batch began and ended, and its lane ended.
  Clock::time_point begin{}, end{}, lane_end{};
};

ContentionTeam::ContentionTeam(int ranks, int threads, int cores)
    : threads_(threads),
      cores_of_rank_(static_cast<double>(cores) / ranks),
      gathers_(make_thread_group(ranks)),
      reductions_(make_thread_group(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<Rank>(threads));
}

ContentionTeam::~ContentionTeam() = default;

ContentionTeam::Batch ContentionTeam::run(CollectiveKind kind, bool multiplies, int calls,
                                          int collectives) {
  const bool gathers = kind == CollectiveKind::kAllGather;
  const DType f = DType::kFloat32;
  std::latch done(static_cast<std::ptrdiff_t>(ranks_.size()));
  const auto lane_of = [&](Rank& rank) -> Stream& { return gathers ? *rank.gather : *rank.reduce; };
  const auto submit_collective = [&](std::size_t i) {
    Rank& rank = *ranks_[i];
    const std::int64_t part = kElements / static_cast<std::int64_t>(ranks_.size());
    const std::int64_t numel = part * static_cast<std::int64_t>(ranks_.size());
    if (gathers) {
      return gathers_[i]->all_gather(rank.of_gather.input({part}, f),
                                     rank.of_gather.output({numel}, f), *rank.gather);
    }
    reductions_[i]->reduce_scatter(rank.of_reduce.input({numel}, f),
                                   rank.of_reduce.output({part}, f), false, *rank.reduce);
  };
  // The kernels of all ranks begin when the first collective is over, and the others run on.
  for (std::size_t i = 0; i < ranks_.size() && collectives > 0; ++i) {
    submit_collective(i);
    ranks_[i]->compute->wait(lane_of(*ranks_[i]).record());
  }
  for (int n = 0; n < collectives; ++n) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) submit_collective(i);
  }
  for (const auto& rank : ranks_) {
    if (collectives > 0) {
      lane_of(*rank).submit({.name = "end"}, [r = rank.get()] { r->lane_end = Clock::now(); });
    }
    rank->compute->submit({.name = "kernels"}, [&done, calls, multiplies, r = rank.get()] {
      const std::unique_ptr<std::latch, CountDownAtEnd> over(&done);
      r->begin = Clock::now();
      for (int i = 0; i < calls; ++i) call_kernel(multiplies, r->operands, *r->compute);
      r->end = Clock::now();
    });
  }
  done.wait();
  Batch batch;
  for (const auto& rank : ranks_) {
    rank->compute->synchronize();
    lane_of(*rank).synchronize();
    batch.seconds += seconds_between(rank->begin, rank->end) / static_cast<double>(ranks_.size());
    batch.covered = batch.covered && (collectives == 0 || rank->lane_end >= rank->end);
  }
  return batch;
}

/// Collectives run one after another, while nothing is computed.
double ContentionTeam::seconds_of_collective(CollectiveKind kind) {
  constexpr int kCollectives = 8;
  run(kind, false, 0, 1);  // memory is touched
  const Clock::time_point begin = Clock::now();
  run(kind, false, 0, kCollectives);
  return std::max(seconds_between(begin, Clock::now()) / (kCollectives + 1), 1e-7);
}

ContentionTime ContentionTeam::time(CollectiveKind kind, bool multiplies, double seconds) {
  const double lane_threads = kind == CollectiveKind::kAllGather ? 1.0 : threads_;
  const double by_sharing = share_of_cores(cores_of_rank_, threads_) /
                            share_of_cores(cores_of_rank_, threads_ + lane_threads);
  run(kind, multiplies, 1, 0);  // libraries generate code
  const double one = std::max(run(kind, multiplies, 1, 0).seconds, 1e-7);
  const int calls = static_cast<int>(std::clamp(seconds / one, 1.0, 10000.0));
  const double lasts = 1.5 * by_sharing * one * calls;
  int collectives = static_cast<int>(
      std::clamp(std::ceil(lasts / seconds_of_collective(kind)), 1.0, double{kMostCollectives}));
  std::vector<double> ratios;
  std::vector<BatchTime> alone;
  for (int short_rounds = 0; std::ssize(ratios) < kRounds;) {
    const double without = run(kind, multiplies, calls, 0).seconds;
    const Batch beside = run(kind, multiplies, calls, collectives);
    alone.push_back({.seconds = without});
    if (!beside.covered && short_rounds < kMostShortRounds && collectives < kMostCollectives) {
      ++short_rounds;
      collectives = std::min(2 * collectives, kMostCollectives);
      continue;
    }
    ratios.push_back(beside.seconds / without / by_sharing);
  }
  return {.factor = median(ratios),
          .spread = relative_spread(ratios),
          .alone = summarize(alone, calls)};
}

double ContentionFactors::Factor::value() const {
  return count == 0 ? 1.0 : std::max(1.0, std::exp(logarithms / count));
}

void ContentionFactors::add(CollectiveKind kind, bool multiplies, int ranks,
                            const ContentionTime& time) {
  Factor& factor = factors_[{kind, multiplies}];
  factor.logarithms += std::log(time.factor);
  factor.spread = std::max(factor.spread, time.spread);
  factor.count += 1;
  factor.words +=
      concat(factor.words.empty() ? "" : ", ", two_digits(time.factor), " on ", ranks, " ranks");
}

void ContentionFactors::write(HardwareProfile& profile, const std::string& source) const {
  const auto write_lane = [&](CollectiveKind kind, Quantity& all,
                              std::optional<Quantity>& of_memory) {
    const auto gemm = factors_.find({kind, true}), memory = factors_.find({kind, false});
    if (gemm == factors_.end() || memory == factors_.end()) {
      all = {1.0, "not measured; lanes share the cores, see 'cores'"};
      return;
    }
    const double of_gemm = gemm->second.value(), of_bytes = memory->second.value();
    const std::string beyond = concat(source, "; beyond the sharing of cores: ");
    const std::string gemms = "GEMMs " + gemm->second.words,
                      bytes = "kernels bound by memory " + memory->second.words;
    const double apart = of_gemm * gemm->second.spread + of_bytes * memory->second.spread;
    if (std::abs(of_gemm - of_bytes) > apart) {
      all = {of_gemm, beyond + gemms};
      of_memory = {of_bytes, beyond + bytes};
    } else {
      all = {std::sqrt(of_gemm * of_bytes), concat(beyond, gemms, "; ", bytes)};
    }
  };
  write_lane(CollectiveKind::kAllGather, profile.under_gather, profile.memory_under_gather);
  write_lane(CollectiveKind::kReduceScatter, profile.under_reduce, profile.memory_under_reduce);
}

}  // namespace tessera
