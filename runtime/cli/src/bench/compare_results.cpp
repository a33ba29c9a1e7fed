#include "bench/compare_results.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/machine_context.h"
#include "bench/quantile.h"
#include "tessera/core/error.h"

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
  return known != all.end() ? *known : all.emplace_back(Timings{name, {}});
}

/// Repetitions have one entry each; aggregates of them are made here.
std::vector<Timings> read_google(const json& file) {
  std::vector<Timings> all;
  for (const json& entry : file.at("benchmarks")) {
    if (entry.value("run_type", "iteration") != "iteration") continue;
    if (entry.value("error_occurred", false)) continue;
    const std::string name = entry.value("run_name", entry.at("name").get<std::string>());
    timings_of(all, name).seconds.push_back(entry.at("real_time").get<double>() *
                                            unit_seconds(entry.value("time_unit", "ns")));
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
  const json& value = context.at(key);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

struct Quartiles {
  explicit Quartiles(const std::vector<double>& seconds)
      : low(quantile(seconds, 0.25)), middle(median(seconds)), high(quantile(seconds, 0.75)) {}
  double spread() const { return middle > 0.0 ? (high - low) / middle : 0.0; }
  double low, middle, high;
};

Comparison compare_one(const Timings& a, const Timings& b, std::optional<double> assumed_noise) {
  const Quartiles of_a(a.seconds), of_b(b.seconds);
  Comparison result{.name = a.name, .a = of_a.middle, .b = of_b.middle};
  const bool measured = std::min(a.seconds.size(), b.seconds.size()) >= kLeastRepetitions;
  if (measured) {
    result.noise = std::max(of_a.spread(), of_b.spread());
  } else {
    result.noise = assumed_noise;
  }
  if (!result.noise || result.a <= 0.0) return result;
  const double change = std::abs(result.ratio() - 1.0);
  const bool apart = !measured || of_a.high < of_b.low || of_b.high < of_a.low;
  result.verdict = change <= *result.noise || !apart ? Verdict::kNoise
                   : result.b > result.a             ? Verdict::kSlower
                                                     : Verdict::kFaster;
  return result;
}

}  // namespace

BenchResults read_results(const json& file, const std::string& path) {
  try {
    BenchResults results{.context = file.at("context"), .timings = {}};
    if (file.contains("benchmarks")) {
      results.timings = read_google(file);
    } else {
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
                                std::optional<double> assumed_noise) {
  std::vector<Comparison> comparisons;
  for (const Timings& of_a : a.timings) {
    for (const Timings& of_b : b.timings) {
      if (of_a.name == of_b.name) comparisons.push_back(compare_one(of_a, of_b, assumed_noise));
    }
  }
  return comparisons;
}

}  // namespace tessera::bench
