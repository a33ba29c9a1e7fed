#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/compare_results.h"
#include "commands.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "tessera/core/error.h"

namespace tessera::cli {
namespace {

using bench::BenchResults;
using bench::Comparison;
using bench::Verdict;

struct CompareRequest {
  std::string a, b;
  bool any_machine = false;
  bool fail_on_regression = false;
  double limit_percent = 5.0;
  std::optional<double> assumed_noise_percent{};
};

BenchResults read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), ErrorCode::kNotFound, path, ": cannot be read; give a file of results");
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  require(!json.is_discarded(), ErrorCode::kConfig, path,
          ": is no JSON; give what bench kernels --json or bench collectives -J wrote");
  return bench::read_results(json, path);
}

void check_machines(const CompareRequest& request, const BenchResults& a, const BenchResults& b) {
  require(std::string_view(a.what) == b.what, ErrorCode::kConfig, request.a, " holds ", a.what,
          ", ", request.b, " ", b.what, "; give two results of the same benchmark");
  std::string all;
  for (const std::string& line : bench::machine_differences(a, b)) all += "\n  " + line;
  if (all.empty()) return;
  require(request.any_machine, ErrorCode::kConfig, request.a, " and ", request.b,
          " are of different machines or settings:", all,
          "\nMeasure both on one, or compare all the same with --any-machine");
  std::cout << "The machines or settings differ:" << all << "\n\n";
}

std::string time_text(double seconds) {
  if (seconds >= 1.0) return fixed(seconds, 3) + " s";
  if (seconds >= 1e-3) return fixed(seconds * 1e3, 3) + " ms";
  return fixed(seconds * 1e6, 2) + " us";
}

const char* text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFaster:
      return "faster";
    case Verdict::kSlower:
      return "SLOWER";
    case Verdict::kUnknown:
      return "?";
    case Verdict::kBusy:
      return "busy";
    case Verdict::kNoise:
      return "";
  }
  return "";
}

struct Counts {
  long long faster = 0, slower = 0, within = 0, unknown = 0, busy = 0;
};

Counts counts_of(const std::vector<Comparison>& comparisons) {
  Counts counts;
  for (const Comparison& comparison : comparisons) {
    counts.faster += comparison.verdict == Verdict::kFaster;
    counts.slower += comparison.verdict == Verdict::kSlower;
    counts.within += comparison.verdict == Verdict::kNoise;
    counts.unknown += comparison.verdict == Verdict::kUnknown;
    counts.busy += comparison.verdict == Verdict::kBusy;
  }
  return counts;
}

void print_table(const std::vector<Comparison>& comparisons) {
  TextTable table({"benchmark", "A", "B", "B / A", "noise", "others", ""});
  for (const Comparison& c : comparisons) {
    table.add({c.name, time_text(c.a), time_text(c.b), fixed(c.ratio(), 3),
               c.noise ? fixed(100.0 * *c.noise, 1) + " %" : "?",
               c.others > 0.0 ? fixed(100.0 * c.others, 0) + " %" : "", text_of(c.verdict)});
  }
  table.print(std::cout);
}

void print_ending(const Counts& counts, double limit_percent, std::size_t left_out) {
  std::string text =
      concat(counts.slower, " slower and ", counts.faster, " faster beyond the noise and ",
             limit_percent, " %, ", counts.within, " within them.");
  if (counts.busy > 0) {
    text += concat(" Nothing is said of ", counts.busy,
                   " (busy): other programs had more of the cores beside one of both; measure "
                   "again while nothing else runs.");
  }
  if (counts.unknown > 0) {
    text += concat(" Of ", counts.unknown, " the noise is not known: measure with at least ",
                   bench::kLeastRepetitions, " repetitions, or give --assume-noise.");
  }
  if (left_out > 0)
    text += concat(" ", counted(static_cast<long long>(left_out), "name"), " in one file only.");
  std::cout << "\n";
  print_line(stdout, text);
}

int run_compare(const CompareRequest& request) {
  const BenchResults a = read_file(request.a), b = read_file(request.b);
  check_machines(request, a, b);
  bench::CompareLimits limits{.least_change = request.limit_percent / 100.0};
  if (request.assumed_noise_percent) limits.assumed_noise = *request.assumed_noise_percent / 100.0;
  const std::vector<Comparison> comparisons = bench::compare(a, b, limits);
  require(!comparisons.empty(), ErrorCode::kConfig, request.a, " and ", request.b,
          " have no benchmark in common; compare two results of the same command");
  print_table(comparisons);
  const Counts counts = counts_of(comparisons);
  print_ending(counts, request.limit_percent,
               a.timings.size() + b.timings.size() - 2 * comparisons.size());
  return request.fail_on_regression && counts.slower > 0 ? kExitRunTime : kExitGood;
}

}  // namespace

std::function<int()> add_bench_compare(CLI::App& command) {
  const auto request = std::make_shared<CompareRequest>();
  command.add_option("A", request->a, "the earlier result")->required()->type_name("FILE");
  command.add_option("B", request->b, "the later one")->required()->type_name("FILE");
  command.add_flag("--any-machine", request->any_machine,
                   "compare results of different machines or settings all the same");
  command.add_flag("--fail-on-regression", request->fail_on_regression,
                   "exit with 1 if something is slower beyond the noise and the limit");
  command.add_option("--limit", request->limit_percent, "a smaller change is none, in percent")
      ->capture_default_str()
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->type_name("X");
  command
      .add_option("--assume-noise", request->assumed_noise_percent,
                  "noise where there are too few repetitions to measure it, in percent")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->type_name("X");
  command.footer(
      "Both files are of bench kernels --json (--benchmark_out) or of bench collectives -J. The "
      "noise of a benchmark is the distance between the quartiles of its repetitions over their "
      "median, the larger of both files, or what chance exceeds once in a thousand comparisons "
      "(Welch's t-test), whichever is more. It has moved if the medians differ by more than the "
      "noise and the limit, and the quartiles do not overlap. others: the share of the cores that "
      "other programs had meanwhile; repetitions beside which that is more than a tenth are left "
      "out if enough remain, and where it is more in one file than in the other nothing is said.");
  return [request] { return run_compare(*request); };
}

}  // namespace tessera::cli
