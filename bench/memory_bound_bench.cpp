// Memory-bound CPU kernels beside loops that move the same bytes.
//
//   memory_bound_bench [--elements N] [--threads T] [--repetitions R] [--filter REGEX]
//                      [--clock wall|cpu]
//
// Each kernel runs in turns with a plain loop over the same memory that reads and writes the same
// streams and computes next to nothing (the floor). Printed are the medians of both, their spread
// (the quartiles' distance over the median), the kernel's traffic in GB/s (bytes that it must read
// and write; fetching lines that will be overwritten is not counted), and floor / kernel: 1 is the
// speed of memory. The loops are compiled for the processor of the machine that builds them. First
// comes the triad of STREAM (a = b + s c), with streaming and with ordinary stores; AdamW's GB/s
// are also given as a share of the faster one's. Choose N so that the tensors exceed the last
// cache. --clock cpu counts the seconds that the process ran instead of those that passed: for a
// machine that is not yours alone, with one thread.

// Before anything that may include Highway.
#include "memory_cases.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include "support.h"
#include "tessera/core/error.h"
#include "tessera/core/thread_team.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/kernel_table.h"

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

Rates measure(const Case& c, const Options& options) {
  const Clock clock = options.clock == "cpu" ? Clock::kRunning : Clock::kPassed;
  std::vector<double> kernel, floor;
  c.kernel();
  c.floor();
  for (int r = 0; r < options.repetitions; ++r) {
    kernel.push_back(seconds_of(c.kernel, clock));
    floor.push_back(seconds_of(c.floor, clock));
  }
  const double k = median(kernel), f = median(floor);
  std::printf(
      "%-28s %9.2f ms +-%4.1f%%  floor %9.2f ms +-%4.1f%%  %7.1f GB/s  floor/kernel %5.2f\n",
      c.name.c_str(), k * 1e3, 100 * relative_spread(kernel), f * 1e3, 100 * relative_spread(floor),
      static_cast<double>(c.bytes) / k * 1e-9, f / k);
  std::fflush(stdout);
  return {static_cast<double>(c.bytes) / k * 1e-9, static_cast<double>(c.bytes) / f * 1e-9};
}

Case ordered_sum_case(const Tensors& tensors, Stream& stream, std::size_t count) {
  const std::int64_t n = tensors.elements;
  auto kernel = [&tensors, &stream, count] {
    std::vector<TensorView> sources;
    for (std::size_t s = 0; s < count; ++s) sources.push_back(tensors.floats(s));
    cpu_kernels().ordered_sum({.sources = sources, .dst = tensors.floats(4)}, stream);
  };
  auto floor = [&tensors, n, count] {
    const float* const a = tensors.data(0);
    const float* const b = tensors.data(1);
    const float* const c = tensors.data(2);
    const float* const d = tensors.data(3);
    float* const out = tensors.data(4);
    if (count == 2) return sweep(n, [=](std::int64_t i) { out[i] = a[i] + b[i]; });
    sweep(n, [=](std::int64_t i) { out[i] = a[i] + b[i] + c[i] + d[i]; });
  };
  return {concat("ordered_sum of ", count), n * 4 * static_cast<std::int64_t>(count + 1), kernel,
          floor};
}

Case cast_case(const Tensors& tensors, Stream& stream, bool to_half) {
  const std::int64_t n = tensors.elements;
  const CastArgs args{.src = to_half ? tensors.floats(0) : tensors.halves(0),
                      .dst = to_half ? tensors.halves(4) : tensors.floats(4)};
  auto kernel = [args, &stream] { cpu_kernels().cast(args, stream); };
  auto floor = [args, n, to_half] {
    auto* const words = reinterpret_cast<std::uint32_t*>(to_half ? args.src.data : args.dst.data);
    auto* const halves = reinterpret_cast<std::uint16_t*>(to_half ? args.dst.data : args.src.data);
    if (!to_half)
      return sweep(n, [=](std::int64_t i) { words[i] = std::uint32_t{halves[i]} << 16; });
    sweep(n, [=](std::int64_t i) { halves[i] = static_cast<std::uint16_t>(words[i] >> 16); });
  };
  return {to_half ? "cast fp32 to bf16" : "cast bf16 to fp32", n * 6, kernel, floor};
}

/// Kernels that read and write one tensor in place.
std::vector<Case> in_place_cases(const Tensors& tensors, Stream& stream) {
  const std::int64_t n = tensors.elements;
  float* const x = tensors.data(0);
  const auto scale = [=] { sweep(n, [=](std::int64_t i) { x[i] *= 0.999F; }); };
  const auto dropout = [&tensors, &stream] {
    std::array<std::int64_t, kRandomKeyWords> key{1, 2};
    cpu_kernels().dropout({.x = tensors.floats(0),
                           .y = tensors.floats(0),
                           .probability = 0.1F,
                           .key = TensorView(key.data(), DType::kInt64, Shape{kRandomKeyWords})},
                          stream);
  };
  const std::int64_t vocab = std::min<std::int64_t>(50304, n);
  const std::int64_t rows = n / vocab;
  const auto cross_entropy = [&tensors, &stream, rows, vocab] {
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(rows),
                                          5 % static_cast<std::int32_t>(vocab));
    std::vector<float> losses(zeros.size());
    cpu_kernels().cross_entropy(
        {.logits = tensors.floats(0).narrow(0, 0, rows * vocab).reshape(Shape{rows, vocab}),
         .targets = TensorView(const_cast<std::int32_t*>(zeros.data()), DType::kInt32, Shape{rows}),
         .losses = TensorView(losses.data(), DType::kFloat32, Shape{rows}),
         .vocab_size = vocab},
        stream);
  };
  return {{"dropout", n * 8, dropout, scale},
          {concat("cross_entropy, V ", vocab), rows * vocab * 8, cross_entropy, scale}};
}

/// Kernels that only read, or only write.
std::vector<Case> one_way_cases(const Tensors& tensors, Stream& stream) {
  const std::int64_t n = tensors.elements / kNormBlock * kNormBlock;
  const auto exact_squares = [&tensors, &stream, n] {
    std::array<std::int64_t, kExactSumWords> words{};
    cpu_kernels().exact_squares(
        {.x = tensors.floats(1).narrow(0, 0, n),
         .words = TensorView(words.data(), DType::kInt64, Shape{kExactSumWords})},
        stream);
  };
  const auto read = [&tensors, n] {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(tensors.data(1));
    std::uint32_t all = 0;
#pragma omp parallel for simd reduction(| : all) schedule(static)
    for (std::int64_t i = 0; i < n; ++i) all |= words[i];
    *reinterpret_cast<volatile std::uint32_t*>(tensors.data(4)) = all;
  };
  const auto set = [&tensors, n] {
    float* const x = tensors.data(4);
    sweep(n, [=](std::int64_t i) { x[i] = 1.0F; });
  };
  const auto fill = [&tensors, &stream] {
    cpu_kernels().fill({.dst = tensors.floats(4), .value = 2.0F}, stream);
  };
  const auto fill_normal = [&tensors, &stream] {
    cpu_kernels().fill_normal({.dst = tensors.floats(4), .key = {1, 2}}, stream);
  };
  return {{"exact_squares", n * 4, exact_squares, read},
          {"fill", n * 4, fill, set},
          {"fill_normal", n * 4, fill_normal, set}};
}

std::vector<Case> all_cases(const Tensors& tensors, Stream& stream) {
  const std::int64_t n = tensors.elements;
  std::vector<Case> cases{
      adamw_case(tensors, stream, false),   adamw_case(tensors, stream, true),
      ordered_sum_case(tensors, stream, 2), ordered_sum_case(tensors, stream, 4),
      cast_case(tensors, stream, true),     cast_case(tensors, stream, false)};
  float* const a = tensors.data(0);
  const float* const b = tensors.data(1);
  cases.push_back({"add", n * 12,
                   [&tensors, &stream] {
                     cpu_kernels().add({.src = tensors.floats(1), .dst = tensors.floats(0)},
                                       stream);
                   },
                   [=] { sweep(n, [=](std::int64_t i) { a[i] += b[i]; }); }});
  for (auto& c : one_way_cases(tensors, stream)) cases.push_back(std::move(c));
  for (auto& c : in_place_cases(tensors, stream)) cases.push_back(std::move(c));
  return cases;
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
  const Tensors tensors(options.elements);
  NoStream stream;
  std::printf("%lld elements, %d threads, %d repetitions\n",
              static_cast<long long>(options.elements), options.threads, options.repetitions);
  const Rates triads = measure(triad_case(tensors), options);
  const double triad = std::max(triads.kernel, triads.floor);
  for (const Case& c : all_cases(tensors, stream)) {
    if (!std::regex_search(c.name, filter)) continue;
    const Rates rates = measure(c, options);
    if (c.name.starts_with("adamw")) {
      std::printf("%-28s %9.0f %% of the triad's %.1f GB/s\n", "", 100 * rates.kernel / triad,
                  triad);
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
