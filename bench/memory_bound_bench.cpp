// Memory-bound CPU kernels beside loops that move the same bytes.
//
//   memory_bound_bench [--elements N] [--threads T] [--repetitions R] [--filter REGEX]
//                      [--clock wall|cpu]
//
// Each kernel, of the table that `tessera bench kernels` times, runs in turns with a plain loop
// that reads and writes as many streams as long and computes next to nothing (the floor). Printed
// are the medians of both, their spread (the quartiles' distance over the median), the kernel's
// traffic in GB/s (bytes that it must read and write; fetching lines that will be overwritten is
// not counted), and floor / kernel: 1 is the speed of memory. The loops are compiled for the
// processor of the machine that builds them. First comes the triad of STREAM (a = b + s c), with
// streaming and with ordinary stores; AdamW's GB/s are also given as a share of the faster one's.
// Choose N so that the tensors exceed the last cache. --clock cpu counts the seconds that the
// process ran instead of those that passed: for a machine that is not yours alone, with one thread.

// Before anything that may include Highway.
#include "memory_cases.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "bench/kernel_cases.h"
#include "support.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/thread_team.h"

namespace tessera::bench {
namespace {

struct Options {
  std::int64_t elements = std::int64_t{1} << 25;
  int threads = 2;
  int repetitions = 15;
  std::string filter = ".";
  std::string clock = "wall";
};

struct Rates {
  double kernel, floor;  ///< GB/s
};

/// A kernel of the table that `tessera bench kernels` times, and a loop that moves as many bytes.
struct Case {
  std::string name, kernel;
  std::function<void()> floor;
};

Rates measure(const std::string& name, double bytes, const std::function<void()>& kernel,
              const std::function<void()>& floor, const Options& options) {
  const Clock clock = options.clock == "cpu" ? Clock::kRunning : Clock::kPassed;
  std::vector<double> of_kernel, of_floor;
  kernel();
  floor();
  for (int r = 0; r < options.repetitions; ++r) {
    of_kernel.push_back(seconds_of(kernel, clock));
    of_floor.push_back(seconds_of(floor, clock));
  }
  const double k = median(of_kernel), f = median(of_floor);
  std::printf(
      "%-28s %9.2f ms +-%4.1f%%  floor %9.2f ms +-%4.1f%%  %7.1f GB/s  floor/kernel %5.2f\n",
      name.c_str(), k * 1e3, 100 * relative_spread(of_kernel), f * 1e3,
      100 * relative_spread(of_floor), bytes / k * 1e-9, f / k);
  std::fflush(stdout);
  return {bytes / k * 1e-9, bytes / f * 1e-9};
}

/// Loops that update AdamW's state in place, and those that read or write only.
std::vector<Case> state_cases(const Tensors& tensors, std::int64_t n) {
  float* const p = tensors.data(0);
  float* const m = tensors.data(1);
  float* const v = tensors.data(2);
  const float* const g = tensors.data(3);
  std::uint32_t* const words = tensors.words(0);
  std::uint16_t* const halves = tensors.halves(4);
  const auto update = [=](std::int64_t i) {
    p[i] += g[i];
    m[i] += g[i];
    v[i] += g[i];
  };
  const auto adamw = [=] { sweep(n, update); };
  const auto adamw_out = [=] {
    sweep(n, [=](std::int64_t i) {
      update(i);
      halves[i] = static_cast<std::uint16_t>(words[i] >> 16);
    });
  };
  const auto read = [=] {
    std::uint32_t all = 0;
#pragma omp parallel for simd reduction(| : all) schedule(static)
    for (std::int64_t i = 0; i < n; ++i) all |= words[i];
    *reinterpret_cast<volatile std::uint16_t*>(halves) = static_cast<std::uint16_t>(all);
  };
  const auto set = [=] { sweep(n, [=](std::int64_t i) { p[i] = 1.0F; }); };
  return {{"adamw", "optimizer_step/adamw/parameter:fp32", adamw},
          {"adamw, bf16 parameter out", "optimizer_step/adamw/parameter:bf16", adamw_out},
          {"exact_squares", "exact_squares/fp32", read},
          {"fill", "fill/fp32", set},
          {"fill_normal", "fill_normal/fp32", set}};
}

/// Loops from tensors into one; `rows` of logits and `hidden` elements are as many as the lab has.
std::vector<Case> layer_cases(const Tensors& tensors, std::int64_t n, std::int64_t rows,
                              std::int64_t hidden) {
  const float* const a = tensors.data(0);
  const float* const b = tensors.data(1);
  const float* const c = tensors.data(2);
  const float* const d = tensors.data(3);
  float* const out = tensors.data(4);
  const auto two = [=] { sweep(n, [=](std::int64_t i) { out[i] = a[i] + b[i]; }); };
  const auto four = [=] { sweep(n, [=](std::int64_t i) { out[i] = a[i] + b[i] + c[i] + d[i]; }); };
  const auto add = [=] { sweep(n, [=](std::int64_t i) { out[i] += a[i]; }); };
  const auto narrow = [n, from = tensors.words(0), to = tensors.halves(4)] {
    sweep(n, [=](std::int64_t i) { to[i] = static_cast<std::uint16_t>(from[i] >> 16); });
  };
  const auto widen = [n, from = tensors.halves(0), to = tensors.words(4)] {
    sweep(n, [=](std::int64_t i) { to[i] = std::uint32_t{from[i]} << 16; });
  };
  const auto scale = [out](std::int64_t numel) {
    return [=] { sweep(numel, [=](std::int64_t i) { out[i] *= 0.999F; }); };
  };
  // A copy of half of the bytes that a kernel reads and writes moves as many.
  const auto copy = [from = tensors.data(0), out](std::int64_t read, std::int64_t written) {
    const std::int64_t moved = (read + written) / 2;
    return [=] {
      split(moved, [=](std::int64_t begin, std::int64_t end) {
        std::memcpy(reinterpret_cast<char*>(out) + begin,
                    reinterpret_cast<const char*>(from) + begin,
                    static_cast<std::size_t>(end - begin));
      });
    };
  };
  return {{"ordered_sum of 2", "ordered_sum/fp32/sources:2", two},
          {"ordered_sum of 4", "ordered_sum/fp32/sources:4", four},
          {"cast fp32 to bf16", "cast/fp32->bf16", narrow},
          {"cast bf16 to fp32", "cast/bf16->fp32", widen},
          {"fp8_encode of fp32", "fp8_encode/fp32", copy(4 * hidden, hidden)},
          {"fp8_encode of bf16", "fp8_encode/bf16", copy(2 * hidden, hidden)},
          {"fp8_decode to fp32", "fp8_decode/fp32", copy(hidden, 4 * hidden)},
          {"fp8_decode to bf16", "fp8_decode/bf16", copy(hidden, 2 * hidden)},
          {"add", "add/fp32", add},
          {"dropout", "dropout/fp32", scale(hidden)},
          {"cross_entropy", "cross_entropy/fp32", scale(rows * kVocabularyStride)}};
}

void add_options(Program& program, Options& o) {
  program.option("--elements", &o.elements, "fp32 numbers per tensor, as 32M; there are five",
                 {.positive = true, .size = true});
  program.option("--threads", &o.threads, "OpenMP threads", positive());
  // The long names are Google Benchmark's.
  program.option("--repetitions,--benchmark_repetitions", &o.repetitions,
                 "timings of each kernel and of its floor", positive());
  program.option("--filter,--only,--benchmark_filter", &o.filter, "run kernels whose name matches",
                 {.type = "REGEX"});
  program.option(
      "--clock", &o.clock,
      "wall: seconds that passed; cpu: seconds that the process ran, for one thread on a "
      "machine that is not yours alone",
      one_of({"wall", "cpu"}));
}

void run(const Options& options) {
  const std::regex filter(options.filter);  // throws before anything is measured
  const TeamLimit threads(options.threads);
  omp_set_num_threads(options.threads);  // of the loops
  const std::int64_t n = std::max(options.elements / kNormBlock, std::int64_t{1}) * kNormBlock;
  KernelSizes sizes{.shard = n};
  sizes.length = std::max<std::int64_t>(n / (4 * sizes.channels), 1);
  sizes.loss_rows = std::max<std::int64_t>(n / kVocabularyStride, 1);
  KernelLab lab(make_cpu_device(), options.threads, sizes);
  const Tensors tensors(lab, std::max(n, kVocabularyStride));
  NoStream stream;
  std::printf("%lld elements, %d threads, %d repetitions\n", static_cast<long long>(n),
              options.threads, options.repetitions);
  const Triad triad = make_triad(tensors);
  const Rates triads =
      measure("triad, streaming stores", triad.bytes, triad.streaming, triad.ordinary, options);
  std::vector<Case> cases = state_cases(tensors, n);
  std::ranges::move(layer_cases(tensors, n, sizes.loss_rows, 4 * sizes.channels * sizes.tokens()),
                    std::back_inserter(cases));
  for (const Case& c : cases) {
    if (!std::regex_search(c.name, filter)) continue;
    const PreparedKernel kernel = kernel_case(c.kernel).prepare(lab);
    const Rates rates = measure(
        c.name, kernel.bytes, [&] { kernel.call(stream); }, c.floor, options);
    if (c.name.starts_with("adamw")) {
      const double limit = std::max(triads.kernel, triads.floor);
      std::printf("%-28s %9.0f %% of the triad's %.1f GB/s\n", "", 100 * rates.kernel / limit,
                  limit);
    }
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program("memory_bound_bench",
                  "The memory-bound CPU kernels beside loops that move the same bytes and compute "
                  "next to nothing.");
  add_options(program, options);
  return program.run(argc, argv, [&] { run(options); });
}
