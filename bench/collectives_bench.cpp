// Collectives of one process's ranks, as nccl-tests shows them.
//
// The columns: size of the whole buffer, elements, dtype, time of one operation, algbw = size /
// time, busbw = algbw x the share that crosses between ranks ((n-1)/n; twice that for all_reduce),
// and wrong elements (checked before timing).
//
// The last columns compare with the machine's limit: every rank at once copies, with memcpy from
// and to memory of its own, as many bytes as the operation makes it read:
//   all_gather (in place)  size (n-1)/n        the parts of its peers
//   reduce_scatter         size                its part of every input
//   all_reduce             size + size (n-1)/n both, one after the other
// Unlike a backward pass, nobody writes inputs between calls: small ones stay in the caches of the
// cores that read them, and each chunk of an all_reduce in that of the core that sums it.
//
// `copy` is over when all ranks have copied, as a parallel loop of memcpy is. ratio = copy time /
// time: 1.00 is the speed of memcpy. A reduce_scatter writes less than that copy (size / n); of a
// copy that moves the same reads plus writes its rate is ratio x (1 + 1/n) / 2.
//
// `loose` are the same copies of ranks that never wait for each other, call after call, as ranks
// that exchange data must twice: for their peers' inputs, and until their own has been read. The
// last ratio is to that. In small operations waiting is most of the difference; in all of them it
// is that a rank whose core is disturbed for a moment holds up the others.
//
// A rank of one thread is bound to a core, as far as there are cores: left alone, the system puts
// two ranks that wait for each other on one core now and then, and the other one idles.
//
// Operation and copies are timed in turns, in changing order, and medians are shown, so that a
// drift of the machine, and what the one leaves in the caches, hits all alike.

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"

namespace tessera::bench {
namespace {

/// 2, 4 and 8, as far as every rank has a core: what is measured with more of them is how well the
/// system changes between threads.
std::vector<int> ranks_by_cores() {
  const int cores = omp_get_num_procs();
  std::vector<int> ranks{2};
  while (ranks.back() * 2 <= cores && ranks.back() < 8) ranks.push_back(ranks.back() * 2);
  return ranks;
}

struct Options {
  std::vector<int> ranks = ranks_by_cores();
  std::int64_t min_bytes = std::int64_t{64} << 10;
  std::int64_t max_bytes = std::int64_t{64} << 20;
  std::int64_t step_factor = 4;
  int threads = 1;
  int repeats = 9;
  int calls = 0;  ///< per timing; 0: as many as take some milliseconds
  int warm_ups = 12;
  int check = 1;
};

/// One rank: its end of the group, a stream and its buffers.
struct Rank {
  std::unique_ptr<ProcessGroup> group;
  std::unique_ptr<Stream> stream;
  Tensor whole, part;         // fp32: (count), (count / n)
  Tensor copy_from, copy_to;  // uint8: as much as any operation reads
};

/// An operation: what to issue on a rank, what it reads, how nccl-tests scales it, what is right.
struct Operation {
  CollectiveKind kind;
  std::function<void(Rank&)> issue;
  double bytes_read;    // per rank
  double busbw_factor;  // busbw / algbw
};

/// A small integer: any sum of a few is exact.
float value(int rank, std::int64_t i) { return static_cast<float>((i % 61 + rank * 7) % 32); }

std::int64_t count_wrong(const TensorView& actual,
                         const std::function<float(std::int64_t)>& right) {
  std::int64_t wrong = 0;
  const float* const data = actual.as<float>();
  for (std::int64_t i = 0; i < actual.numel(); ++i) wrong += data[i] != right(i) ? 1 : 0;
  return wrong;
}

void synchronize(std::vector<Rank>& ranks) {
  for (Rank& rank : ranks) rank.stream->synchronize();
}

/// Runs the operation once on known values and counts the elements that are wrong on any rank.
std::int64_t verify(std::vector<Rank>& ranks, const Operation& operation) {
  const int n = static_cast<int>(ranks.size());
  const std::int64_t part = ranks[0].part.numel();
  for (int r = 0; r < n; ++r) {
    float* const whole = ranks[static_cast<std::size_t>(r)].whole.as<float>();
    for (std::int64_t i = 0; i < part * n; ++i) whole[i] = value(r, i);
  }
  for (Rank& rank : ranks) operation.issue(rank);
  synchronize(ranks);
  const auto sum = [&](std::int64_t i) {
    float total = 0.0F;
    for (int r = 0; r < n; ++r) total += value(r, i);
    return total;
  };
  std::int64_t wrong = 0;
  for (int r = 0; r < n; ++r) {
    const Rank& rank = ranks[static_cast<std::size_t>(r)];
    if (operation.kind == CollectiveKind::kAllGather) {
      wrong += count_wrong(rank.whole,
                           [&](std::int64_t i) { return value(static_cast<int>(i / part), i); });
    } else if (operation.kind == CollectiveKind::kReduceScatter) {
      wrong += count_wrong(rank.part, [&](std::int64_t i) { return sum(r * part + i); });
    } else {
      wrong += count_wrong(rank.whole, sum);
    }
  }
  return wrong;
}

/// Seconds per call when every rank runs `calls` of them back to back, after `warm_ups` that are
/// not counted: what ran before has taken the caches, and the last of them comes back slowly. After
/// three, copies of 64 MiB were a third slower than the next ones, whatever these were. Calls are
/// issued before the clock starts: in a step, too, the thread that issues runs ahead, and where
/// ranks have all the cores it would take one from them here.
double time_calls(std::vector<Rank>& ranks, int warm_ups, int calls,
                  const std::function<void(Rank&)>& issue) {
  std::atomic<bool> open{false};
  for (int i = 0; i < warm_ups; ++i) {
    for (Rank& rank : ranks) issue(rank);
  }
  for (Rank& rank : ranks) {
    rank.stream->submit({.name = "gate"}, [&open] {
      while (!open.load()) std::this_thread::yield();
    });
  }
  for (int i = 0; i < calls; ++i) {
    for (Rank& rank : ranks) issue(rank);
  }
  const double elapsed = seconds_of([&] {
    open.store(true);
    synchronize(ranks);
  });
  return elapsed / calls;
}

void copy(const Rank& rank, std::int64_t bytes, int threads) {
  std::byte* const to = rank.copy_to.view().data;
  const std::byte* const from = rank.copy_from.view().data;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int t = 0; t < threads; ++t) {
    const std::int64_t begin = bytes * t / threads;
    const std::int64_t end = bytes * (t + 1) / threads;
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  }
}

/// The fastest that a number of threads can wait for each other where each has a core: it never
/// sleeps, as std::barrier does after a microsecond.
class Join {
 public:
  explicit Join(std::size_t threads) : threads_(threads) {}
  void arrive_and_wait() {
    const std::size_t round = arrived_.fetch_add(1) / threads_;
    while (arrived_.load() < (round + 1) * threads_) std::this_thread::yield();
  }

 private:
  const std::size_t threads_;
  std::atomic<std::size_t> arrived_{0};
};

void measure(std::vector<Rank>& ranks, const Operation& operation, const Options& options) {
  const std::string wrong = options.check != 0 ? std::to_string(verify(ranks, operation)) : "N/A";
  for (Rank& rank : ranks)
    std::memset(rank.whole.view().data, 0, static_cast<std::size_t>(rank.whole.bytes()));
  const auto copied = static_cast<std::int64_t>(operation.bytes_read);
  const auto issue_loose = [&](Rank& rank) {
    rank.stream->submit({.name = "copy"},
                        [&rank, copied, &options] { copy(rank, copied, options.threads); });
  };
  Join all(ranks.size());
  const auto issue_copy = [&](Rank& rank) {
    rank.stream->submit({.name = "copy"}, [&rank, &all, copied, &options] {
      copy(rank, copied, options.threads);
      all.arrive_and_wait();
    });
  };
  struct Timed {
    std::function<void(Rank&)> issue;
    std::vector<double> times;
  };
  std::array<Timed, 3> timed{{{operation.issue, {}}, {issue_copy, {}}, {issue_loose, {}}}};
  // About 4 ms per timing, and eight calls: far above the clock's and the wake-ups' noise.
  const auto time = [&](int calls, const std::function<void(Rank&)>& issue) {
    return time_calls(ranks, options.warm_ups, calls, issue);
  };
  int calls = options.calls;
  if (calls == 0) {
    const double once = time(1, operation.issue) + time(1, issue_loose);
    calls = std::clamp(static_cast<int>(4e-3 / once * 2), 8, 200);
  }
  std::array<std::size_t, 3> order{0, 1, 2};
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (const std::size_t i : order) timed[i].times.push_back(time(calls, timed[i].issue));
    std::next_permutation(order.begin(), order.end());
  }
  const double seconds = median(timed[0].times);
  const double copy_seconds = median(timed[1].times);
  const double loose_seconds = median(timed[2].times);
  const auto size = static_cast<double>(ranks[0].whole.bytes());
  std::printf("%-14s %5zu %10lld %10lld %5s %10.1f %7.2f %7.2f %7s %10.1f %6.2f %10.1f %6.2f\n",
              std::string(to_string(operation.kind)).c_str(), ranks.size(),
              static_cast<long long>(size), static_cast<long long>(ranks[0].whole.numel()), "fp32",
              seconds * 1e6, size / seconds * 1e-9, size / seconds * 1e-9 * operation.busbw_factor,
              wrong.c_str(), copy_seconds * 1e6, copy_seconds / seconds, loose_seconds * 1e6,
              loose_seconds / seconds);
  std::fflush(stdout);
}

/// Binds the thread that runs a stream's tasks to one of the cores that this process may use.
void bind_to_core(Stream& stream, int index) {
  stream.submit({.name = "bind"}, [index] {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof(allowed), &allowed);
    int left = index % CPU_COUNT(&allowed);
    int core = 0;
    while (!CPU_ISSET(core, &allowed) || left-- > 0) ++core;
    CPU_ZERO(&allowed);
    CPU_SET(core, &allowed);
    sched_setaffinity(0, sizeof(allowed), &allowed);
  });
}

std::vector<Rank> make_ranks(Device& device, Memory& memory, int n, std::int64_t bytes,
                             int threads) {
  std::vector<Rank> ranks;
  const std::int64_t part = std::max<std::int64_t>(1, bytes / 4 / n);
  const auto tensor = [&](std::int64_t numel, DType dtype) {
    Tensor result = Tensor::empty(memory, Shape{numel}, dtype, MemoryCategory::kWorkspace, "bench");
    std::memset(result.view().data, 0, static_cast<std::size_t>(result.bytes()));
    return result;
  };
  for (auto& group : make_thread_group(n)) {
    Rank rank;
    rank.stream = device.create_stream({.name = "rank", .threads = threads});
    if (threads == 1) bind_to_core(*rank.stream, static_cast<int>(ranks.size()));
    rank.group = std::move(group);
    rank.whole = tensor(part * n, DType::kFloat32);
    rank.part = tensor(part, DType::kFloat32);
    rank.copy_from = tensor(part * n * 4 * 2, DType::kUInt8);
    rank.copy_to = tensor(part * n * 4 * 2, DType::kUInt8);
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

void run(const Options& options) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  std::printf("%-14s %5s %10s %10s %5s %10s %7s %7s %7s %10s %6s %10s %6s\n", "# operation",
              "ranks", "size", "count", "type", "time", "algbw", "busbw", "#wrong", "copy", "ratio",
              "loose", "ratio");
  std::printf("%-14s %5s %10s %10s %5s %10s %7s %7s %7s %10s %6s %10s %6s\n", "#", "", "(B)",
              "(elems)", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "", "(us)", "");
  for (int n : options.ranks) {
    const double crossing = static_cast<double>(n - 1) / n;
    const std::int64_t least = std::int64_t{4} * n;  // an element for each rank
    for (std::int64_t bytes = std::max(options.min_bytes, least);
         bytes <= std::max(options.max_bytes, least); bytes *= options.step_factor) {
      std::vector<Rank> ranks = make_ranks(*device, memory, n, bytes, options.threads);
      const auto size = static_cast<double>(ranks[0].whole.bytes());
      const Operation operations[] = {
          {CollectiveKind::kAllGather,
           [](Rank& r) {
             const std::int64_t part = r.part.numel();
             r.group->all_gather(r.whole.view().narrow(0, r.group->rank() * part, part), r.whole,
                                 *r.stream);
           },
           size * crossing, crossing},
          {CollectiveKind::kReduceScatter,
           [](Rank& r) { r.group->reduce_scatter(r.whole, r.part, false, *r.stream); }, size,
           crossing},
          {CollectiveKind::kAllReduce, [](Rank& r) { r.group->all_reduce(r.whole, *r.stream); },
           size + size * crossing, 2 * crossing},
      };
      for (const Operation& operation : operations) measure(ranks, operation, options);
    }
  }
}

void add_options(Program& program, Options& o) {
  program
      .add_option("--ranks", o.ranks,
                  "ranks in the process; one number or more (default: 2, 4 and 8, as far as there "
                  "are cores)")
      ->check(positive());
  // The short and the joined names are nccl-tests'.
  program.add_option("-b,--min-bytes,--minbytes", o.min_bytes, "smallest whole buffer: 8, 64K, 1M")
      ->transform(with_suffix())
      ->check(positive());
  program.add_option("-e,--max-bytes,--maxbytes", o.max_bytes, "largest whole buffer")
      ->transform(with_suffix())
      ->check(positive());
  program.add_option("-f,--step-factor,--stepfactor", o.step_factor, "from one size to the next")
      ->check(CLI::Range(2, 1 << 20));
  program.add_option("-n,--iters", o.calls, "calls per timing; 0: as many as take 4 ms")
      ->check(CLI::NonNegativeNumber);
  program.add_option("-w,--warmup-iters,--warmup_iters", o.warm_ups, "calls before each timing")
      ->check(CLI::NonNegativeNumber);
  program.add_option("-c,--check", o.check, "1: count wrong elements; 0: do not")
      ->check(CLI::NonNegativeNumber);
  program.add_option("--threads", o.threads, "threads per rank")->check(positive());
  program.add_option("--repeats", o.repeats, "timings per number, of which the median is shown")
      ->check(positive());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program("collectives_bench",
                  "Collectives of the ranks of one process, in the columns of nccl-tests, beside "
                  "copies by memcpy.");
  add_options(program, options);
  return program.run(argc, argv, [&] { run(options); });
}
