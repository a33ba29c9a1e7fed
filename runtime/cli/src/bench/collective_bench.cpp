#include "bench/collective_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "bench/collective_buffers.h"
#include "bench/gemm_load.h"
#include "bench/rank_clock.h"
#include "tessera/core/cpu_list.h"
#include "tessera/core/error.h"
#include "tessera/core/quantile.h"

namespace tessera::bench {
namespace {

/// nccl-tests let the parts of ranks begin at multiples of so many bytes.
constexpr std::int64_t kPartAlignment = 16;
/// A timing beside GEMMs lasts so long at least: many of them.
constexpr double kContendedSeconds = 0.05;
constexpr int kMostContendedCalls = 1000;

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

/// The elements of whole buffers that come to `bytes`, or as much less as parts must be even.
std::int64_t whole_numel(const CollectiveCase& collective, const CollectiveOptions& options,
                         std::int64_t bytes, int n) {
  const auto element = static_cast<std::int64_t>(size_of(options.dtype));
  const std::int64_t numel = bytes / element;
  if (!collective.parted) return numel;
  const std::int64_t multiple =
      options.unalign > 0 ? 1 : std::max<std::int64_t>(1, kPartAlignment / element);
  return numel / n / multiple * multiple * n;
}

/// Binds the thread that runs a stream's tasks to one of the cores that this process may use.
void bind_to_core(Stream& stream, int index) {
  stream.submit({.name = "bind"}, [index] {
    const CpuList cpus = cpus_of_thread();
    bind_thread({cpus[static_cast<std::size_t>(index) % cpus.size()]});
  });
}

/// A collective between the ranks of one group.
class Measurement {
 public:
  Measurement(const CollectiveCase& collective, const BenchGroups& groups, Device& device,
              const CollectiveOptions& options)
      : collective_(collective),
        group_(groups.group),
        device_(device),
        options_(options),
        stream_(device.create_stream({.name = "collective", .threads = options.threads})),
        clock_(groups.world, device, *stream_),
        buffers_(device, *stream_, numel_of(options.max_bytes), options.unalign, options.dtype) {
    if (options.bind_threads && options.threads == 1 && device.kind() == DeviceKind::kCpu) {
      bind_to_core(*stream_, groups.world.rank());
    }
    if (options.contended) load_ = std::make_unique<GemmLoad>(device, options.threads);
  }

  CollectiveRow row(std::int64_t bytes) {
    const int n = group_.size();
    numel_ = numel_of(bytes);
    CollectiveRow row{.collective = &collective_,
                      .ranks = n,
                      .bytes = numel_ * static_cast<std::int64_t>(size_of(options_.dtype)),
                      .count = collective_.parted ? numel_ / n : numel_,
                      .dtype = options_.dtype,
                      .root = collective_.rooted ? options_.root : -1};
    for (const bool in_place : {false, true}) {
      PlaceTimes& times = in_place ? row.in_place : row.out_of_place;
      if (options_.check && collective_.has_data) times.wrong = verify(in_place);
      time(issue(in_place), options_.warm_ups);
    }
    time_in_turns(row);
    for (const bool in_place : {false, true}) {
      finish(in_place ? row.in_place : row.out_of_place, in_place);
    }
    return row;
  }

 private:
  std::int64_t numel_of(std::int64_t bytes) const {
    return collective_.has_data ? whole_numel(collective_, options_, bytes, group_.size()) : 0;
  }

  std::function<void()> issue(bool in_place) {
    const CollectiveOperands operands =
        buffers_.operands(collective_, group_, numel_, in_place, options_.root);
    return [this, operands] { collective_.issue(group_, operands, *stream_); };
  }

  std::int64_t verify(bool in_place) {
    const CollectiveOperands operands =
        buffers_.operands(collective_, group_, numel_, in_place, options_.root);
    buffers_.fill(operands, group_.rank());
    clock_.meet();  // others may read this rank's input
    collective_.issue(group_, operands, *stream_);
    clock_.meet();
    const std::int64_t wrong =
        buffers_.count_wrong(collective_, operands, group_.rank(), group_.size());
    return static_cast<std::int64_t>(clock_.total(static_cast<double>(wrong)));
  }

  double time(const std::function<void()>& work, int calls) {
    return calls == 0 ? 0.0 : clock_.longest({clock_.pipelined(calls, work)}).front();
  }

  /// The operation and its memcpy, out of place and in place: a drift of the machine hits all.
  void time_in_turns(CollectiveRow& row) {
    std::vector<double> copies[2];
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const bool in_place : {false, true}) {
        PlaceTimes& times = in_place ? row.in_place : row.out_of_place;
        times.repeats.push_back(time(issue(in_place), options_.iterations));
        const double share = collective_.reads(group_.size(), in_place);
        const auto bytes = static_cast<std::int64_t>(static_cast<double>(row.bytes) * share);
        if (bytes == 0) continue;
        copies[in_place ? 1 : 0].push_back(
            time([this, bytes] { buffers_.copy(bytes, numel_, options_.threads); },
                 options_.iterations));
      }
    }
    row.out_of_place.copy_seconds = median(copies[0]);
    row.in_place.copy_seconds = median(copies[1]);
  }

  void finish(PlaceTimes& times, bool in_place) {
    times.calls = clock_.longest(clock_.one_by_one(options_.iterations, issue(in_place)));
    times.seconds = mean(options_.blocking ? times.calls : times.repeats);
    if (load_ != nullptr) times.contended = contended(issue(in_place), median(times.repeats));
  }

  ContendedTimes contended(const std::function<void()>& work, double seconds) {
    const int calls = static_cast<int>(
        std::clamp(kContendedSeconds / std::max(seconds, 1e-9), 1.0, double{kMostContendedCalls}));
    const double alone = time(work, calls);
    clock_.meet();
    load_->start();
    std::this_thread::sleep_for(std::chrono::duration<double>(kContendedSeconds));
    const double gemm_alone = load_->stop();
    load_->start();
    const double beside = time(work, calls);
    const double gemm_beside = load_->stop();
    const double gemm_slowdown = clock_.longest({gemm_beside / gemm_alone}).front();
    return {
        .seconds = beside, .collective_slowdown = beside / alone, .gemm_slowdown = gemm_slowdown};
  }

  const CollectiveCase& collective_;
  ProcessGroup& group_;
  Device& device_;
  const CollectiveOptions& options_;
  const std::unique_ptr<Stream> stream_;
  RankClock clock_;
  CollectiveBuffers buffers_;
  std::unique_ptr<GemmLoad> load_;
  std::int64_t numel_ = 0;
};

void check(const CollectiveCase& collective, const BenchGroups& groups,
           const CollectiveOptions& options) {
  require(takes(collective, options.dtype), ErrorCode::kConfig, collective.name, " cannot sum ",
          to_string(options.dtype), "; leave -d out, or choose one that it can, as float");
  require(!collective.rooted || options.root < groups.group.size(), ErrorCode::kConfig, "root ",
          options.root, " is outside of a group of ", groups.group.size(), " ranks");
}

}  // namespace

double PlaceTimes::fraction() const { return seconds > 0.0 ? copy_seconds / seconds : 0.0; }

double CollectiveRow::algbw(const PlaceTimes& place) const {
  return place.seconds > 0.0 ? static_cast<double>(bytes) / place.seconds : 0.0;
}

double CollectiveRow::busbw(const PlaceTimes& place) const {
  return algbw(place) * collective->busbw_factor(ranks);
}

std::vector<CollectiveRow> measure_collective(
    const CollectiveCase& collective, const BenchGroups& groups, Device& device,
    const CollectiveOptions& options, const std::function<void(const CollectiveRow&)>& on_row) {
  check(collective, groups, options);
  Measurement measurement(collective, groups, device, options);
  std::vector<CollectiveRow> rows;
  std::int64_t bytes = options.min_bytes;
  do {
    rows.push_back(measurement.row(bytes));
    if (on_row) on_row(rows.back());
    bytes = options.step_bytes > 0 ? bytes + options.step_bytes : bytes * options.step_factor;
  } while (bytes <= options.max_bytes && collective.has_data);
  return rows;
}

}  // namespace tessera::bench
