#include "bench/collective_bench.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/quantile.h"

namespace tessera::bench {
namespace {

constexpr double kMicro = 1e6;
constexpr double kGiga = 1e-9;

constexpr std::array<std::pair<const char*, DType>, 7> kTypes{{{"float", DType::kFloat32},
                                                               {"half", DType::kFloat16},
                                                               {"bfloat16", DType::kBFloat16},
                                                               {"double", DType::kFloat64},
                                                               {"int32", DType::kInt32},
                                                               {"int64", DType::kInt64},
                                                               {"uint8", DType::kUInt8}}};

/// `values` through printf.
template <typename... Values>
std::string printed(const char* format, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

/// Times below a second keep about four digits, as nccl-tests print them.
std::string time_text(double seconds) {
  const double us = seconds * kMicro;
  const int digits = us >= 10000.0 ? 0 : us >= 100.0 ? 1 : 2;
  return printed("%.*f", digits, us);
}

struct CallStatistics {
  double min = 0.0, p50 = 0.0, p99 = 0.0;  ///< seconds
  double cv = 0.0;                         ///< standard deviation over mean
};

CallStatistics statistics_of(const std::vector<double>& calls) {
  CallStatistics s{quantile(calls, 0.0), quantile(calls, 0.5), quantile(calls, 0.99)};
  double sum = 0.0, squares = 0.0;
  for (const double call : calls) sum += call;
  const double mean = calls.empty() ? 0.0 : sum / static_cast<double>(calls.size());
  for (const double call : calls) squares += (call - mean) * (call - mean);
  if (mean > 0.0) s.cv = std::sqrt(squares / static_cast<double>(calls.size())) / mean;
  return s;
}

std::string wrong_text(const CollectiveRow& row, const PlaceTimes& place, bool checked) {
  if (!checked || !row.collective->has_data) return "N/A";
  return std::to_string(place.wrong);
}

std::string place_text(const CollectiveRow& row, const PlaceTimes& place, bool checked,
                       bool statistics) {
  std::string text = printed("  %8s  %6.2f  %6.2f  %6s", time_text(place.seconds).c_str(),
                             row.algbw(place) * kGiga, row.busbw(place) * kGiga,
                             wrong_text(row, place, checked).c_str());
  if (!statistics) return text;
  const CallStatistics s = statistics_of(place.calls);
  return text + printed("  %8s  %8s  %8s  %5.1f  %6.2f", time_text(s.min).c_str(),
                        time_text(s.p50).c_str(), time_text(s.p99).c_str(), 100.0 * s.cv,
                        place.fraction());
}

std::string place_heading(bool statistics, bool units) {
  std::string text = units ? printed("  %8s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "")
                           : printed("  %8s  %6s  %6s  %6s", "time", "algbw", "busbw", "#wrong");
  if (!statistics) return text;
  return text +
         (units ? printed("  %8s  %8s  %8s  %5s  %6s", "(us)", "(us)", "(us)", "", "memcpy")
                : printed("  %8s  %8s  %8s  %5s  %6s", "i_min", "i_p50", "i_p99", "i_cv%", "of"));
}

std::string contended_text(const char* where, const ContendedTimes& times) {
  return concat("#   beside GEMMs, ", where, ": ", time_text(times.seconds), " us, ",
                printed("%.2f", times.collective_slowdown), " times as long; the GEMMs ",
                printed("%.2f", times.gemm_slowdown), " times\n");
}

nlohmann::ordered_json place_json(const CollectiveRow& row, const PlaceTimes& place, bool checked) {
  const CallStatistics s = statistics_of(place.calls);
  const bool verified = checked && row.collective->has_data;
  nlohmann::ordered_json json{
      {"time", place.seconds * kMicro},
      {"alg_bw", row.algbw(place) * kGiga},
      {"bus_bw", row.busbw(place) * kGiga},
      {"nwrong", verified ? nlohmann::ordered_json(place.wrong) : nlohmann::ordered_json()},
      {"min", s.min * kMicro},
      {"p50", s.p50 * kMicro},
      {"p99", s.p99 * kMicro},
      {"cv", s.cv},
      {"of_memcpy", place.copy_seconds > 0.0 ? nlohmann::ordered_json(place.fraction())
                                             : nlohmann::ordered_json()}};
  json["repetitions"] = nlohmann::ordered_json::array();
  for (const double seconds : place.repeats) json["repetitions"].push_back(seconds * kMicro);
  if (place.contended) {
    json["contended"] = {{"time", place.contended->seconds * kMicro},
                         {"slowdown", place.contended->collective_slowdown},
                         {"gemm_slowdown", place.contended->gemm_slowdown}};
  }
  return json;
}

std::string redop_of(const CollectiveCase& collective) { return collective.sums ? "sum" : "none"; }

}  // namespace

void CollectiveTable::heading(const CollectiveCase& collective, const std::string& group) {
  const int width = statistics_ ? 73 : 34;
  out_ << "#\n# Collective: " << collective.name << ", group: " << group << "\n#\n"
       << printed("# %10s  %12s  %8s  %6s  %6s", "", "", "", "", "")
       << printed("  %-*s  %s\n", width - 2, "out-of-place", "in-place")
       << printed("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root")
       << place_heading(statistics_, false) << place_heading(statistics_, false) << "\n"
       << printed("# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "")
       << place_heading(statistics_, true) << place_heading(statistics_, true) << "\n";
  out_.flush();
}

void CollectiveTable::row(const CollectiveRow& row) {
  const std::string type = row.collective->has_data ? nccl_type(row.dtype) : "none";
  out_ << printed("%12lld  %12lld  %8s  %6s  %6d", static_cast<long long>(row.bytes),
                  static_cast<long long>(row.count), type.c_str(),
                  redop_of(*row.collective).c_str(), row.root)
       << place_text(row, row.out_of_place, options_.check, statistics_)
       << place_text(row, row.in_place, options_.check, statistics_) << "\n";
  if (row.out_of_place.contended) {
    out_ << contended_text("out of place", *row.out_of_place.contended);
  }
  if (row.in_place.contended) out_ << contended_text("in place", *row.in_place.contended);
  out_.flush();
}

void CollectiveTable::ending(const std::vector<CollectiveRow>& rows) {
  double fractions = 0.0;
  int counted = 0;
  for (const CollectiveRow& row : rows) {
    for (const PlaceTimes* place : {&row.out_of_place, &row.in_place}) {
      if (place->copy_seconds == 0.0) continue;
      fractions += place->fraction();
      ++counted;
    }
  }
  const std::int64_t wrong = wrong_elements(rows);
  out_ << "#\n# Out of bounds values : " << wrong << (wrong == 0 ? " OK" : " FAILED") << "\n"
       << "# Avg bus bandwidth    : " << average_busbw(rows) << "\n";
  if (counted > 0) out_ << "# Avg share of memcpy  : " << fractions / counted << "\n";
  out_ << "#\n";
}

std::int64_t wrong_elements(const std::vector<CollectiveRow>& rows) {
  std::int64_t wrong = 0;
  for (const CollectiveRow& row : rows) wrong += row.out_of_place.wrong + row.in_place.wrong;
  return wrong;
}

void require_right(const std::vector<CollectiveRow>& rows) {
  const std::int64_t wrong = wrong_elements(rows);
  require(wrong == 0, ErrorCode::kInternal, wrong,
          " elements are wrong (column #wrong); do not train on this machine with these ranks");
}

double average_busbw(const std::vector<CollectiveRow>& rows) {
  double sum = 0.0;
  int counted = 0;
  for (const CollectiveRow& row : rows) {
    if (!row.collective->has_data) continue;
    sum += row.busbw(row.out_of_place) + row.busbw(row.in_place);
    counted += 2;
  }
  return counted == 0 ? 0.0 : sum / counted * kGiga;
}

nlohmann::ordered_json to_json(const CollectiveRow& row, const std::string& group,
                               const CollectiveOptions& options) {
  return {{"collective", row.collective->name},
          {"group", group},
          {"ranks", row.ranks},
          {"size", row.bytes},
          {"count", row.count},
          {"type", row.collective->has_data ? nccl_type(row.dtype) : "none"},
          {"redop", redop_of(*row.collective)},
          {"root", row.root},
          {"out_of_place", place_json(row, row.out_of_place, options.check)},
          {"in_place", place_json(row, row.in_place, options.check)}};
}

std::string nccl_type(DType dtype) {
  for (const auto& [name, known] : kTypes) {
    if (known == dtype) return name;
  }
  return std::string(to_string(dtype));
}

DType parse_nccl_type(const std::string& name) {
  for (const auto& [known, dtype] : kTypes) {
    if (name == known || name == to_string(dtype)) return dtype;
  }
  fail(ErrorCode::kConfig, "there is no type '", name,
       "'; there are: float, half, bfloat16, double, int32, int64, uint8");
}

}  // namespace tessera::bench
