#include "bench/collective_bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "bench/rank_clock.h"
#include "tessera/core/cpu_list.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/core/quantile.h"
#include "tessera/core/start_thread.h"
#include "tessera/core/tensor.h"
#include "tessera/core/thread_team.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::bench {
namespace {

/// GEMMs of fp32, one after the other, on a stream of their own, for as long as they are wanted:
/// the computation that a step runs beside its collectives.
class GemmLoad {
 public:
  GemmLoad(Device& device, int threads);
  ~GemmLoad();
  GemmLoad(const GemmLoad&) = delete;
  GemmLoad& operator=(const GemmLoad&) = delete;

  /// Runs them from now on; returns when the first has ended.
  void start();
  /// Ends them. The mean seconds of one since start(). Throws what a GEMM has thrown.
  double stop();

 private:
  void run();

  Device& device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
  Tensor a_, b_, c_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> failed_{false};
  double first_end_ = 0.0, last_end_ = 0.0;
  std::exception_ptr failure_;
};

/// Rows and columns. On a CPU a GEMM takes about half a millisecond of a core, on a GPU it fills
/// the processors.
std::int64_t side_on(const Device& device) {
  return device.kind() == DeviceKind::kCpu ? 256 : 2048;
}

GemmLoad::GemmLoad(Device& device, int threads)
    : device_(device),
      memory_(device),
      stream_(device.create_stream({.name = "compute", .threads = threads})) {
  const std::int64_t side = side_on(device);
  for (Tensor* tensor : {&a_, &b_, &c_}) {
    *tensor = Tensor::empty(memory_, Shape{side, side}, DType::kFloat32, MemoryCategory::kWorkspace,
                            "GEMMs beside collectives");
    stream_->submit({.name = "fill"}, [this, tensor] {
      kernels_for(device_).fill({.dst = tensor->view().flat(), .value = 0.5F}, *stream_);
    });
  }
  stream_->synchronize();
}

GemmLoad::~GemmLoad() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void GemmLoad::run() {
  try {
    Event earlier;
    while (!stop_) {
      stream_->submit({.name = "gemm"},
                      [this] { kernels_for(device_).gemm({.a = a_, .b = b_, .c = c_}, *stream_); });
      // The host is one GEMM ahead, so the stream is never without work.
      const Event latest = stream_->record();
      earlier.synchronize();
      if (earlier.state() != nullptr) {
        last_end_ = now();
        if (done_.load() == 0) first_end_ = last_end_;
        ++done_;
      }
      earlier = latest;
    }
    stream_->synchronize();
  } catch (...) {
    failure_ = std::current_exception();
    failed_ = true;
  }
}

void GemmLoad::start() {
  stop_ = false;
  done_ = 0;
  failed_ = false;
  thread_ = start_thread<std::thread>("GEMMs", [this] { run(); });
  while (done_.load() == 0 && !failed_) std::this_thread::yield();
}

double GemmLoad::stop() {
  // One interval at least, however short the collective was.
  while (done_.load() < 2 && !failed_) std::this_thread::yield();
  stop_ = true;
  thread_.join();
  if (failed_) std::rethrow_exception(failure_);
  return (last_end_ - first_end_) / static_cast<double>(done_.load() - 1);
}

/// One rank's buffers, as large as the largest size: what collectives read, write and are checked
/// on.
class CollectiveBuffers {
 public:
  /// `numel` elements each, which begin `unalign` elements behind an aligned address.
  CollectiveBuffers(Device& device, Stream& stream, std::int64_t numel, int unalign, DType dtype);
  ~CollectiveBuffers();
  CollectiveBuffers(const CollectiveBuffers&) = delete;
  CollectiveBuffers& operator=(const CollectiveBuffers&) = delete;

  /// Operands of a collective whose whole buffer has `numel` elements.
  CollectiveOperands operands(const CollectiveCase& collective, const ProcessGroup& group,
                              std::int64_t numel, bool in_place, int root) const;

  /// Fills the input with this rank's values, and the rest of the output with what is wrong.
  void fill(const CollectiveOperands& operands, int rank);
  /// Elements of the output that are not what they must be. Waits for the stream.
  std::int64_t count_wrong(const CollectiveCase& collective, const CollectiveOperands& operands,
                           int rank, int n);

  /// Copies `bytes` as a memcpy of `threads` does, or on a GPU within its memory, in pieces as
  /// long as `numel` elements.
  void copy(std::int64_t bytes, std::int64_t numel, int threads);

 private:
  void to_device(const TensorView& view);
  void from_device(const TensorView& view);

  Device& device_;
  Stream& stream_;
  Memory memory_;
  const int unalign_;
  Tensor first_, second_;  // with `unalign` more elements
  std::byte* host_ = nullptr;
  std::size_t host_bytes_ = 0;
};

/// Bytes of no element that a check expects.
constexpr int kWrongByte = 0xEE;

/// A whole number as an element; fp32, bf16 and fp16 round it as the library rounds an exact sum.
template <typename T>
T as_element(double value) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// Calls body(T()) for the C++ type of the dtype.
template <typename Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float());
    case DType::kBFloat16:
      return body(bfloat16());
    case DType::kFloat16:
      return body(float16());
    case DType::kFloat64:
      return body(double());
    case DType::kInt32:
      return body(std::int32_t());
    case DType::kInt64:
      return body(std::int64_t());
    case DType::kUInt8:
      return body(std::uint8_t());
  }
  fail(ErrorCode::kInternal, "a dtype without a C++ type");
}

CollectiveBuffers::CollectiveBuffers(Device& device, Stream& stream, std::int64_t numel,
                                     int unalign, DType dtype)
    : device_(device), stream_(stream), memory_(device), unalign_(unalign) {
  for (Tensor* tensor : {&first_, &second_}) {
    *tensor = Tensor::empty(memory_, Shape{numel + unalign}, dtype, MemoryCategory::kWorkspace,
                            "buffers of the benchmark");
  }
  host_bytes_ = static_cast<std::size_t>(std::max<std::int64_t>(first_.bytes(), 1));
  host_ = static_cast<std::byte*>(device_.allocate_host(host_bytes_));
  std::memset(host_, kWrongByte, host_bytes_);
  to_device(first_);  // pages are touched before anything is timed
  to_device(second_);
}

CollectiveBuffers::~CollectiveBuffers() { device_.deallocate_host(host_, host_bytes_); }

void CollectiveBuffers::to_device(const TensorView& view) {
  if (view.bytes() == 0) return;
  stream_.copy(view.data, host_, static_cast<std::size_t>(view.bytes()));
  stream_.synchronize();
}

void CollectiveBuffers::from_device(const TensorView& view) {
  if (view.bytes() > 0) {
    stream_.copy(host_, view.data, static_cast<std::size_t>(view.bytes()));
  }
  stream_.synchronize();
}

CollectiveOperands CollectiveBuffers::operands(const CollectiveCase& collective,
                                               const ProcessGroup& group, std::int64_t numel,
                                               bool in_place, int root) const {
  const TensorView from = first_.view().narrow(0, unalign_, numel);
  const TensorView whole = second_.view().narrow(0, unalign_, numel);
  const std::int64_t part = numel / group.size();
  const auto part_of = [&](const TensorView& view, std::int64_t index) {
    return view.narrow(0, index * part, part);
  };
  CollectiveOperands o{.root = root};
  o.input = collective.input_is_part ? part_of(in_place ? whole : from, in_place ? group.rank() : 0)
            : in_place               ? whole
                                     : from;
  o.output = collective.output_is_part ? part_of(whole, in_place ? group.rank() : 0) : whole;
  o.staging = from.narrow(0, 0, o.input.numel());
  return o;
}

void CollectiveBuffers::fill(const CollectiveOperands& operands, int rank) {
  std::memset(host_, kWrongByte, host_bytes_);
  to_device(operands.output);
  with_type(operands.input.dtype, [&]<typename T>(T) {
    for (std::int64_t i = 0; i < operands.input.numel(); ++i) {
      const T element = as_element<T>(input_value(rank, i));
      std::memcpy(host_ + static_cast<std::size_t>(i) * sizeof(T), &element, sizeof(T));
    }
  });
  to_device(operands.input);
}

std::int64_t CollectiveBuffers::count_wrong(const CollectiveCase& collective,
                                            const CollectiveOperands& operands, int rank, int n) {
  from_device(operands.output);
  const std::int64_t numel = operands.output.numel();
  const std::int64_t part =
      std::max<std::int64_t>(1, collective.output_is_part ? numel : numel / n);
  return with_type(operands.output.dtype, [&]<typename T>(T) {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < numel; ++i) {
      const T right = as_element<T>(collective.expected(rank, n, operands.root, part, i));
      wrong += std::memcmp(host_ + static_cast<std::size_t>(i) * sizeof(T), &right, sizeof(T)) != 0;
    }
    return wrong;
  });
}

void CollectiveBuffers::copy(std::int64_t bytes, std::int64_t numel, int threads) {
  const TensorView from = first_.view().narrow(0, unalign_, numel);
  const TensorView to = second_.view().narrow(0, unalign_, numel);
  while (bytes > 0) {
    const std::int64_t piece = std::min(bytes, from.bytes());
    if (device_.kind() != DeviceKind::kCpu) {
      stream_.copy(to.data, from.data, static_cast<std::size_t>(piece));
    } else {
      stream_.submit({.name = "memcpy"}, [to = to.data, from = from.data, piece, threads] {
        const TeamLimit limit(threads);
        on_team(threads, [&](int t) {
          const std::int64_t begin = piece * t / threads;
          const std::int64_t end = piece * (t + 1) / threads;
          std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
        });
      });
    }
    bytes -= piece;
  }
}

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
