#include "bench/compare_results.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/machine_context.h"
#include "tessera/core/error.h"
#include "tessera/core/quantile.h"
#include "tessera/lab/measurement_noise.h"
#include "tessera/trainer/setting.h"

namespace tessera::bench {
namespace {

using nlohmann::json;

double unit_seconds(const std::string& unit) {
  if (unit == "ns") return 1e-9;
  if (unit == "us") return 1e-6;
  if (unit == "ms") return 1e-3;
  return 1.0;
}

Timings& timings_of(std::vector<Timings>& all, const std::string& name) {
  const auto known = std::find_if(all.begin(), all.end(),
                                  [&](const Timings& timings) { return timings.name == name; });
  return known != all.end() ? *known : all.emplace_back(Timings{name, {}, {}});
}

/// The entries in the order of registration: repetitions of all run in random order.
std::vector<json> in_order(const json& entries) {
  auto all = entries.get<std::vector<json>>();
  std::stable_sort(all.begin(), all.end(), [](const json& a, const json& b) {
    return a.value("family_index", 0) < b.value("family_index", 0);
  });
  return all;
}

/// Repetitions have one entry each; aggregates of them are made here.
std::vector<Timings> read_google(const json& file) {
  std::vector<Timings> all;
  for (const json& entry : in_order(file.at("benchmarks"))) {
    if (entry.value("run_type", "iteration") != "iteration") continue;
    if (entry.value("error_occurred", false)) continue;
    const std::string name = entry.value("run_name", entry.at("name").get<std::string>());
    Timings& timings = timings_of(all, name);
    timings.seconds.push_back(entry.at("real_time").get<double>() *
                              unit_seconds(entry.value("time_unit", "ns")));
    if (entry.contains(kFreeCounter)) {
      timings.others.push_back(1.0 - entry.at(kFreeCounter).get<double>());
    }
  }
  require(!all.empty() || file.at("benchmarks").empty(), ErrorCode::kConfig,
          "it has aggregates only; write it without --benchmark_report_aggregates_only");
  return all;
}

std::vector<Timings> read_collectives(const json& file) {
  std::vector<Timings> all;
  for (const json& row : file.at("results")) {
    for (const char* const place : {"out_of_place", "in_place"}) {
      const std::string name = concat(
          row.at("collective").get<std::string>(), "/", row.at("group").get<std::string>(), "/",
          row.at("type").get<std::string>(), "/", row.at("size").get<std::int64_t>(), "/", place);
      for (const json& microseconds : row.at(place).at("repetitions")) {
        timings_of(all, name).seconds.push_back(microseconds.get<double>() * 1e-6);
      }
    }
  }
  return all;
}

std::string context_text(const json& context, const std::string& key) {
  if (!context.contains(key)) return "not said";
  return plain_text(context.at(key));
}

/// The quantile of Student's t that chance exceeds once in a thousand times.
double student_t(double freedom) {
  constexpr double kQuantiles[] = {318.31, 22.327, 10.215, 7.173, 5.893, 5.208, 4.785,
                                   4.501,  4.297,  4.144,  4.025, 3.930, 3.852, 3.787,
                                   3.733,  3.686,  3.646,  3.610, 3.579, 3.552};
  const auto whole = static_cast<std::size_t>(std::max(freedom + 1e-6, 1.0));
  if (whole <= std::size(kQuantiles)) return kQuantiles[whole - 1];
  return 3.090 + 8.15 / freedom + 19.7 / (freedom * freedom);  // Cornish and Fisher's expansion
}

/// How far a median is off by chance, squared: that of a mean, of which it is a little less sure.
double squared_error(const std::vector<double>& seconds) {
  constexpr double kOfMedian = 1.571;  // pi / 2
  const auto count = static_cast<double>(seconds.size());
  double mean = 0.0, squares = 0.0;
  for (const double one : seconds) mean += one / count;
  for (const double one : seconds) squares += (one - mean) * (one - mean);
  return kOfMedian * squares / (count - 1.0) / count;
}

/// By how many seconds medians of the same thing differ, if chance has its day.
double chance(const std::vector<double>& a, const std::vector<double>& b) {
  const double of_a = squared_error(a), of_b = squared_error(b);
  if (of_a + of_b <= 0.0) return 0.0;
  const double freedom = (of_a + of_b) * (of_a + of_b) /
                         (of_a * of_a / (static_cast<double>(a.size()) - 1.0) +
                          of_b * of_b / (static_cast<double>(b.size()) - 1.0));
  return student_t(freedom) * std::sqrt(of_a + of_b);
}

bool is_busy(double others) { return !disturbances(MachineLoad{.others = others}).empty(); }

/// The times of the repetitions beside which nothing much ran.
std::vector<double> undisturbed(const Timings& timings) {
  std::vector<double> seconds;
  for (std::size_t i = 0; i < timings.seconds.size(); ++i) {
    if (i >= timings.others.size() || !is_busy(timings.others[i])) {
      seconds.push_back(timings.seconds[i]);
    }
  }
  return seconds;
}

Verdict verdict_of(const Comparison& c, const std::vector<double>& a, const std::vector<double>& b,
                   bool measured, double least_change) {
  const double change = std::abs(c.ratio() - 1.0);
  const bool apart =
      !measured || quantile(a, 0.75) < quantile(b, 0.25) || quantile(b, 0.75) < quantile(a, 0.25);
  if (change <= std::max(*c.noise, least_change) || !apart) return Verdict::kNoise;
  return c.b > c.a ? Verdict::kSlower : Verdict::kFaster;
}

Comparison compare_one(const Timings& of_a, const Timings& of_b, const CompareLimits& limits) {
  std::vector<double> a = undisturbed(of_a), b = undisturbed(of_b);
  const bool enough = std::min(a.size(), b.size()) >= kLeastRepetitions;
  if (!enough) a = of_a.seconds, b = of_b.seconds;
  Comparison result{.name = of_a.name, .a = median(a), .b = median(b)};
  const bool measured = std::min(a.size(), b.size()) >= kLeastRepetitions;
  if (measured) {
    result.noise = std::max(
        {relative_spread(a), relative_spread(b), result.a > 0.0 ? chance(a, b) / result.a : 0.0});
  } else {
    result.noise = limits.assumed_noise;
  }
  const double beside_a = enough ? 0.0 : median(of_a.others);
  const double beside_b = enough ? 0.0 : median(of_b.others);
  result.others = std::max(beside_a, beside_b);
  if (!result.noise || result.a <= 0.0) return result;
  result.verdict = is_busy(std::abs(beside_a - beside_b))
                       ? Verdict::kBusy
                       : verdict_of(result, a, b, measured, limits.least_change);
  return result;
}

}  // namespace

BenchResults read_results(const json& file, const std::string& path) {
  try {
    BenchResults results{.context = file.at("context"), .timings = {}};
    if (file.contains("benchmarks")) {
      results.what = "kernels";
      results.timings = read_google(file);
    } else {
      results.what = "collectives";
      results.timings = read_collectives(file);
    }
    return results;
  } catch (const json::exception& error) {
    fail(ErrorCode::kConfig, path, ": is no result of 'tessera bench' (", error.what(),
         "); give what bench kernels --json or bench collectives -J wrote");
  } catch (const Error& error) {
    fail(error.code(), path, ": ", error.what());
  }
}

std::vector<std::string> machine_differences(const BenchResults& a, const BenchResults& b) {
  std::set<std::string> keys;
  for (const BenchResults* results : {&a, &b}) {
    for (const auto& [key, value] : results->context.items()) {
      if (key.rfind(kMachineKey, 0) == 0) keys.insert(key);
    }
  }
  if (keys.empty()) return {"neither says what machine it is of"};
  std::vector<std::string> lines;
  for (const std::string& key : keys) {
    const std::string of_a = context_text(a.context, key), of_b = context_text(b.context, key);
    if (of_a != of_b) lines.push_back(concat(key, ": ", of_a, " and ", of_b));
  }
  return lines;
}

std::vector<Comparison> compare(const BenchResults& a, const BenchResults& b,
                                const CompareLimits& limits) {
  std::vector<Comparison> comparisons;
  for (const Timings& of_a : a.timings) {
    for (const Timings& of_b : b.timings) {
      if (of_a.name == of_b.name) comparisons.push_back(compare_one(of_a, of_b, limits));
    }
  }
  return comparisons;
}

}  // namespace tessera::bench
