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
};

/// A file of results: of Google Benchmark (--benchmark_out) or of `tessera bench collectives -J`.
struct BenchResults {
  nlohmann::json context;
  std::vector<Timings> timings;  ///< in the file's order, each name once
};

/// Throws Error{kConfig} if `json` is neither. `path` names it.
BenchResults read_results(const nlohmann::json& json, const std::string& path);

/// What the machines of two results differ in, "machine.cores: 2 and 4", by a line each; a result
/// that does not say what machine it is of differs in that.
std::vector<std::string> machine_differences(const BenchResults& a, const BenchResults& b);

/// Repetitions from which noise can be told.
inline constexpr std::size_t kLeastRepetitions = 3;

enum class Verdict { kNoise, kFaster, kSlower, kUnknown };

/// One name in both files. The noise is the larger of both files' distances between the quartiles,
/// over the median; a median has moved if it is further from the other than the noise, and the
/// quartiles of both files do not overlap.
struct Comparison {
  std::string name;
  double a = 0.0, b = 0.0;        ///< medians in seconds
  std::optional<double> noise{};  ///< of 1; none: fewer repetitions than kLeastRepetitions
  Verdict verdict = Verdict::kUnknown;

  double ratio() const { return a > 0.0 ? b / a : 0.0; }
};

/// Of the names in both, in the order of `a`. `assumed_noise` is used where there are too few
/// repetitions; without it the verdict is kUnknown.
std::vector<Comparison> compare(const BenchResults& a, const BenchResults& b,
                                std::optional<double> assumed_noise);

}  // namespace tessera::bench
