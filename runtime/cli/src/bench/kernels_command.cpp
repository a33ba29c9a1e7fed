#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <exception>
#include <iostream>
#include <memory>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/kernel_cases.h"
#include "bench/machine_context.h"
#include "commands.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/machine_load.h"
#include "tessera/core/thread_team.h"
#include "tessera/trainer/rank_device.h"

namespace tessera::cli {
namespace {

/// The clock is looked at so often: less than that, it would be a part of what it measures.
constexpr double kBatchSeconds = 1e-4;
constexpr double kMostCalls = 1000.0;

struct KernelsRequest {
  std::string device = "auto";
  int threads = 0;
  std::string filter = ".", json_path{};
  int repetitions = 1;
  double min_seconds = 0.5;
  bool list = false;
};

/// A device of which the kernels are timed; it is made when the first of them is.
class LabOnDemand {
 public:
  LabOnDemand(bool gpu, int threads) : gpu_(gpu), threads_(threads) {}
  bool gpu() const { return gpu_; }
  int cores() const { return gpu_ ? 1 : threads_; }  ///< a GPU's kernels are launched by one
  bench::KernelLab& get() {
    if (!lab_) {
      std::unique_ptr<Device> device;
      if (gpu_) {
        device = make_cuda_device();
      } else {
        device = make_cpu_device();
      }
      lab_ = std::make_unique<bench::KernelLab>(std::move(device), threads_);
    }
    return *lab_;
  }

 private:
  const bool gpu_;
  const int threads_;
  std::unique_ptr<bench::KernelLab> lab_;
};

/// Bandwidth or rate, that of the machine, and their quotient.
void count(benchmark::State& state, const bench::PreparedKernel& kernel, double rate_per_work,
           bench::KernelLab& lab) {
  const bool bound_by_gemm = kernel.flops > 0.0;
  const double rate = rate_per_work * (bound_by_gemm ? kernel.flops : kernel.bytes);
  const double limit =
      bound_by_gemm ? lab.gemm_limit(kernel.dtype) : lab.memory_limit(kernel.bytes, kernel.written);
  constexpr double kGiga = 1e9;
  state.counters[bound_by_gemm ? "GFLOP/s" : "GB/s"] = rate / kGiga;
  state.counters["limit"] = limit / kGiga;
  state.counters["of_limit"] = rate / limit;
}

/// `batch`, the calls that are timed together, is set once: Google Benchmark wants as many
/// iterations of each repetition, and rounds them up to a multiple of it. The kernel keeps `cores`
/// busy.
void time_kernel(benchmark::State& state, const bench::KernelCase& kernel_case,
                 bench::KernelLab& lab, int cores, int& batch) {
  const bench::PreparedKernel kernel = kernel_case.prepare(lab);
  lab.seconds(kernel.call, 1);  // libraries make code for a shape once
  if (batch == 0) {
    const double once = std::max(lab.seconds(kernel.call, 1), 1e-9);
    batch = static_cast<int>(std::clamp(kBatchSeconds / once, 1.0, kMostCalls));
  }
  const MachineReading begin = read_machine();
  double seconds = 0.0, calls = 0.0;
  while (state.KeepRunningBatch(batch)) {
    const double took = lab.seconds(kernel.call, batch);
    state.SetIterationTime(took);
    seconds += took;
    calls += batch;
  }
  const MachineLoad load = load_between(begin, read_machine(), cores);
  // Google Benchmark divides by the mean of repetitions: it must not be 0.
  constexpr double kLeastFree = 1e-3;
  state.counters[bench::kFreeCounter] = std::max(1.0 - load.others - load.stolen, kLeastFree);
  if (seconds > 0.0) count(state, kernel, calls / seconds, lab);
}

std::vector<std::shared_ptr<LabOnDemand>> labs_of(const KernelsRequest& request) {
  const int threads = request.threads > 0 ? request.threads : team_threads();
  const DeviceChoice device = parse_device(request.device);
  const bool gpu = device == DeviceChoice::kCuda ? resolved_device(device) == DeviceChoice::kCuda
                                                 : cuda_status().usable();
  std::vector<std::shared_ptr<LabOnDemand>> labs;
  if (device != DeviceChoice::kCuda) labs.push_back(std::make_shared<LabOnDemand>(false, threads));
  if (device != DeviceChoice::kCpu && gpu) {
    labs.push_back(std::make_shared<LabOnDemand>(true, threads));
  }
  return labs;
}

/// `failures` counts what could not be timed, which Google Benchmark only prints.
void register_kernels(const KernelsRequest& request,
                      const std::shared_ptr<std::atomic<int>>& failures) {
  const std::vector<bench::KernelCase> cases = bench::kernel_cases();
  for (const auto& lab : labs_of(request)) {
    for (const bench::KernelCase& kernel : cases) {
      const std::string name = (lab->gpu() ? "cuda/" : "cpu/") + kernel.name;
      const auto body = [lab, kernel, failures, batch = 0](benchmark::State& state) mutable {
        try {
          time_kernel(state, kernel, lab->get(), lab->cores(), batch);
        } catch (const std::exception& error) {
          ++*failures;
          state.SkipWithError(error.what());
        }
      };
      benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime();
    }
  }
}

void add_context(const KernelsRequest& request) {
  for (const auto& part : {bench::machine_context(), bench::build_context()}) {
    for (const auto& [key, value] : part) benchmark::AddCustomContext(key, value);
  }
  const int threads = request.threads > 0 ? request.threads : team_threads();
  benchmark::AddCustomContext("machine.threads_of_kernels", std::to_string(threads));
}

/// Leaves out the warning that Google Benchmark was built as DEBUG, as Debian builds it: calls are
/// timed by our own clock around many of them, and kernels are this program's own.
class WithoutBuildWarning : public std::streambuf {
 public:
  explicit WithoutBuildWarning(std::ostream& out) : out_(out), before_(out.rdbuf(this)) {}
  ~WithoutBuildWarning() override {
    out_.rdbuf(before_);
    out_ << line_;
  }
  WithoutBuildWarning(const WithoutBuildWarning&) = delete;
  WithoutBuildWarning& operator=(const WithoutBuildWarning&) = delete;

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    line_ += traits_type::to_char_type(c);
    if (line_.back() != '\n') return c;
    const bool is_warning = line_.find("Library was built as DEBUG") != std::string::npos;
    if (!is_warning) before_->sputn(line_.data(), static_cast<std::streamsize>(line_.size()));
    line_.clear();
    return c;
  }
  int sync() override { return before_->pubsync(); }

 private:
  std::ostream& out_;
  std::streambuf* before_;
  std::string line_{};
};

/// Ours first and then Google Benchmark's as they were given: the last one counts.
std::vector<std::string> benchmark_flags(const KernelsRequest& request,
                                         const std::vector<std::string>& theirs) {
  std::vector<std::string> words{"tessera bench kernels", "--benchmark_filter=" + request.filter,
                                 concat("--benchmark_repetitions=", request.repetitions),
                                 concat("--benchmark_min_time=", request.min_seconds)};
  // Repetitions of a kernel lie apart, so that their spread has the drift of the machine in it.
  words.emplace_back("--benchmark_enable_random_interleaving=true");
  if (!request.json_path.empty()) words.push_back("--benchmark_out=" + request.json_path);
  if (request.list) words.emplace_back("--benchmark_list_tests=true");
  words.insert(words.end(), theirs.begin(), theirs.end());
  return words;
}

int run_kernels(const KernelsRequest& request, const std::vector<std::string>& theirs) {
  for (const std::string& word : theirs) {
    require(word.starts_with("--benchmark_"), ErrorCode::kConfig, "unexpected argument '", word,
            "'; see tessera bench kernels --help");
  }
  std::vector<std::string> words = benchmark_flags(request, theirs);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  auto count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  require(count == 1, ErrorCode::kConfig, "Google Benchmark does not know ",
          count > 1 ? pointers[1] : "", "; see its user guide");
  const auto failures = std::make_shared<std::atomic<int>>(0);
  register_kernels(request, failures);
  add_context(request);
  std::size_t matched = 0;
  {
    const WithoutBuildWarning errors(std::cerr);
    matched = benchmark::RunSpecifiedBenchmarks();
  }
  benchmark::Shutdown();
  require(matched > 0, ErrorCode::kConfig, "no kernel has a name that matches; --list has them");
  return failures->load() == 0 ? kExitGood : kExitRunTime;
}

}  // namespace

std::function<int()> add_bench_kernels(CLI::App& command) {
  const auto request = std::make_shared<KernelsRequest>();
  command.allow_extras();
  command.option_defaults()->always_capture_default();
  command.add_option("--filter", request->filter, "time kernels whose name matches")
      ->type_name("REGEX");
  add_number(command, "--repetitions", request->repetitions, 1,
             "of each; above 1, mean, median and spread, too", 1 << 20);
  command.add_option("--min-seconds", request->min_seconds, "that a repetition should last")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->type_name("X");
  command.add_option("--json", request->json_path, "also write the results there")
      ->type_name("FILE");
  command.add_flag("--list", request->list, "print the names instead");
  add_number(command, "--threads", request->threads, 0,
             "of kernels on the CPU; 0: OMP_NUM_THREADS, else the cores", 1 << 16);
  command.add_option("--device", request->device, "cpu, cuda, or auto: both, if there is a GPU")
      ->type_name("NAME");
  command.footer(
      "Google Benchmark's own flags are taken, too: --benchmark_filter=REGEX, "
      "--benchmark_out=FILE, --benchmark_format=json, ... The column limit is what this machine "
      "reaches: GB/s of STREAM's triad, a memcpy or an update in place, whichever is fastest over "
      "as many bytes, for kernels that mostly write no more than stores alone allow; GFLOP/s of a "
      "large GEMM. The column free is the share of the cores that other programs left.");
  return [request, &command] { return run_kernels(*request, command.remaining()); };
}

}  // namespace tessera::cli
