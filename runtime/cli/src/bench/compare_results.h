#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::bench {

/// How often one thing took how long, of one file.
struct Timings {
  std::string name;
  std::vector<double> seconds;  ///< one for each repetition, or a single time
  /// The share of the cores that other programs had meanwhile (MachineLoad); empty: unknown.
  std::vector<double> others{};
};

/// A file of results: of Google Benchmark (--benchmark_out) or of `tessera bench collectives -J`.
struct BenchResults {
  const char* what = "";  ///< "kernels", "collectives"
  nlohmann::json context;
  std::vector<Timings> timings;  ///< in the file's order, each name once
};

/// Throws Error{kConfig} if `json` is neither. `path` names it.
BenchResults read_results(const nlohmann::json& json, const std::string& path);

/// The differences between the machines of two results, "machine.cores: 2 and 4", a line each; a
/// result that does not say what machine it is of differs in that.
std::vector<std::string> machine_differences(const BenchResults& a, const BenchResults& b);

/// Repetitions from which noise can be told.
inline constexpr std::size_t kLeastRepetitions = 3;

enum class Verdict {
  kNoise,
  kFaster,
  kSlower,
  kUnknown,  ///< too few repetitions
  kBusy,     ///< other programs had more of the cores beside one of the two results
};

struct CompareLimits {
  double least_change = 0.0;              ///< of 1: a smaller one is none
  std::optional<double> assumed_noise{};  ///< of 1: where there are too few repetitions
};

/// One name in both files. Repetitions beside which others had much of the cores are left out where
/// enough are without. The noise is the largest of both files' spreads (the quartiles' distance
/// over the median, relative_spread) and of what chance alone exceeds once in a thousand
/// comparisons of equal medians: Student's t of Welch's test. A median has moved if it is further
/// from the other than the noise and the limit, and the quartiles of both files do not overlap.
struct Comparison {
  std::string name;
  double a = 0.0, b = 0.0;        ///< medians in seconds
  std::optional<double> noise{};  ///< of 1; none: fewer repetitions than kLeastRepetitions
  double others = 0.0;  ///< of the cores, what others had beside the more disturbed of both
  Verdict verdict = Verdict::kUnknown;

  double ratio() const { return a > 0.0 ? b / a : 0.0; }
};

/// Compares the names that are in both, in the order of `a`.
std::vector<Comparison> compare(const BenchResults& a, const BenchResults& b,
                                const CompareLimits& limits);

}  // namespace tessera::bench
