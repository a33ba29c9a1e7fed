#include "tessera/kernels/gemm_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "tessera/core/error.h"

// Tables as JSON: the machine, and a row for each problem, on a line of its own.

namespace tessera {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kEpilogues{
    "none", "bias", "gelu", "gelu_bias", "gelu_aux", "gelu_aux_bias", "gelu_backward"};
constexpr const char* kKind = "gemm-table";
constexpr double kMicro = 1e-6;

std::string_view name_of(Fp8Format format) { return format == Fp8Format::kE4M3 ? "e4m3" : "e5m2"; }

Fp8Format parse_format(const std::string& name) {
  require(name == "e4m3" || name == "e5m2", ErrorCode::kConfig, "there is no format '", name,
          "' of fp8");
  return name == "e4m3" ? Fp8Format::kE4M3 : Fp8Format::kE5M2;
}

/// Calls visit(name, member) for each number and flag of a problem.
template <typename Problem, typename Visit>
void visit_members(Problem& p, const Visit& visit) {
  visit("m", p.m);
  visit("n", p.n);
  visit("k", p.k);
  visit("a_stride", p.a_stride);
  visit("b_stride", p.b_stride);
  visit("c_stride", p.c_stride);
  visit("residual_stride", p.residual_stride);
  visit("aux_stride", p.aux_stride);
  visit("transpose_a", p.transpose_a);
  visit("transpose_b", p.transpose_b);
  visit("accumulate", p.accumulate);
  visit("a_alignment", p.a_alignment);
  visit("b_alignment", p.b_alignment);
  visit("c_alignment", p.c_alignment);
  visit("residual_alignment", p.residual_alignment);
  visit("vector_alignment", p.vector_alignment);
  visit("aux_alignment", p.aux_alignment);
}

/// In nanoseconds at most: digits beyond them are noise.
double in_microseconds(double seconds) { return std::round(seconds / kMicro * 1e3) / 1e3; }

std::string in_words(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm) {
    std::array<char, 18> digits{};
    std::snprintf(digits.data(), digits.size(), "%s%016llx", text.empty() ? "" : " ",
                  static_cast<unsigned long long>(word));
    text += digits.data();
  }
  return text;
}

GemmAlgorithm parse_algorithm(const std::string& text) {
  GemmAlgorithm algorithm{};
  std::istringstream words(text);
  for (std::uint64_t& word : algorithm) words >> std::hex >> word;
  std::string more;
  require(!words.fail() && !(words >> more), ErrorCode::kConfig, "the algorithm '", text,
          "' is not eight words of hexadecimal digits");
  return algorithm;
}

ordered_json row_of(const GemmProblem& problem, const GemmChoice& choice) {
  ordered_json row;
  visit_members(problem, [&](const char* name, const auto& value) { row[name] = value; });
  row["dtype"] = to_string(problem.dtype);
  row["c_dtype"] = to_string(problem.c_dtype);
  if (problem.dtype == DType::kUInt8) {
    row["a_format"] = name_of(problem.a_format);
    row["b_format"] = name_of(problem.b_format);
    row["fast_accumulation"] = problem.fast_accumulation;
  }
  row["epilogue"] = to_string(problem.epilogue);
  row["way"] = choice.fused ? "fused" : "separate";
  row["algorithm"] = choice.fused ? ordered_json(in_words(choice.algorithm)) : ordered_json();
  row["microseconds"] = in_microseconds(choice.seconds);
  row["runner_up_microseconds"] = in_microseconds(choice.runner_up_seconds);
  row["heuristic_microseconds"] = in_microseconds(choice.heuristic_seconds);
  return row;
}

std::pair<GemmProblem, GemmChoice> parse_row(const json& row) {
  GemmProblem problem;
  visit_members(problem, [&](const char* name, auto& value) { row.at(name).get_to(value); });
  problem.dtype = parse_dtype(row.at("dtype").get<std::string>());
  problem.c_dtype = parse_dtype(row.at("c_dtype").get<std::string>());
  if (problem.dtype == DType::kUInt8) {
    problem.a_format = parse_format(row.at("a_format").get<std::string>());
    problem.b_format = parse_format(row.at("b_format").get<std::string>());
    row.at("fast_accumulation").get_to(problem.fast_accumulation);
  }
  const auto epilogue = row.at("epilogue").get<std::string>();
  const auto* const known = std::ranges::find(kEpilogues, epilogue);
  require(known != kEpilogues.end(), ErrorCode::kConfig, "there is no epilogue '", epilogue,
          "' (any more); remove the file, and time this machine again with tessera calibrate");
  problem.epilogue = static_cast<GemmEpilogue>(known - kEpilogues.begin());
  const auto way = row.at("way").get<std::string>();
  require(way == "fused" || way == "separate", ErrorCode::kConfig, "the way '", way,
          "' is neither fused nor separate");
  const bool alone = problem.residual_stride == 0 && (problem.epilogue == GemmEpilogue::kNone ||
                                                      problem.epilogue == GemmEpilogue::kBias);
  require(way == "fused" || !alone, ErrorCode::kConfig, "no kernel is separate from a GEMM with ",
          "the epilogue '", epilogue, "'");
  GemmChoice choice{.fused = way == "fused",
                    .seconds = row.at("microseconds").get<double>() * kMicro,
                    .runner_up_seconds = row.at("runner_up_microseconds").get<double>() * kMicro,
                    .heuristic_seconds = row.at("heuristic_microseconds").get<double>() * kMicro};
  if (choice.fused) choice.algorithm = parse_algorithm(row.at("algorithm").get<std::string>());
  return {problem, choice};
}

GemmTable parse(const json& text) {
  require(text.is_object() && text.value("kind", "") == kKind, ErrorCode::kConfig,
          "it is no table of GEMMs (\"kind\": \"", kKind, "\")");
  GemmTable table;
  const json& machine = text.at("machine");
  machine.at("gpu").get_to(table.machine.gpu);
  machine.at("major").get_to(table.machine.major);
  machine.at("minor").get_to(table.machine.minor);
  machine.at("cublaslt").get_to(table.machine.cublaslt);
  for (const json& row : text.at("gemms")) {
    const auto [problem, choice] = parse_row(row);
    require(table.choices.emplace(problem, choice).second, ErrorCode::kConfig,
            "a problem has two rows: ", describe(problem));
  }
  return table;
}

}  // namespace

std::string_view to_string(GemmEpilogue epilogue) {
  return kEpilogues.at(static_cast<std::size_t>(epilogue));
}

static std::string operands_of(const GemmProblem& p) {
  if (p.dtype != DType::kUInt8) return std::string(to_string(p.dtype));
  return concat(name_of(p.a_format), " and ", name_of(p.b_format),
                p.fast_accumulation ? " (fast accumulation)" : "");
}

std::string describe(const GemmProblem& p) {
  std::string text =
      concat("C (", p.m, ", ", p.n, ") of ", to_string(p.c_dtype), " with rows of ", p.c_stride,
             p.accumulate ? " += " : " = ", "A", p.transpose_a ? "^T" : "", " B",
             p.transpose_b ? "^T" : "", p.residual_stride > 0 ? " + residual" : "", ", K = ", p.k,
             ", operands of ", operands_of(p), " with rows of ", p.a_stride, " and ", p.b_stride,
             ", epilogue ", to_string(p.epilogue), ", addresses aligned to ", p.a_alignment, ", ",
             p.b_alignment, ", ", p.c_alignment);
  if (p.residual_alignment > 0) text += concat(", residual to ", p.residual_alignment);
  if (p.vector_alignment > 0) text += concat(", vector to ", p.vector_alignment);
  if (p.aux_alignment > 0) text += concat(", aux to ", p.aux_alignment);
  return text;
}

std::string describe(const GemmMachine& machine) {
  return concat(machine.gpu, " (compute capability ", machine.major, ".", machine.minor,
                ") with cuBLASLt ", machine.cublaslt);
}

std::string to_text(const GemmTable& table) {
  const ordered_json machine{{"gpu", table.machine.gpu},
                             {"major", table.machine.major},
                             {"minor", table.machine.minor},
                             {"cublaslt", table.machine.cublaslt}};
  std::string text =
      concat("{\"kind\": \"", kKind, "\",\n \"machine\": ", machine.dump(), ",\n \"gemms\": [");
  const char* before = "\n  ";
  for (const auto& [problem, choice] : table.choices) {
    text += before + row_of(problem, choice).dump();
    before = ",\n  ";
  }
  return text + "\n ]}\n";
}

GemmTable parse_gemm_table(const std::string& text, const std::string& source) {
  constexpr const char* kRemedy = "; write it again with tessera calibrate";
  try {
    return parse(json::parse(text));
  } catch (const json::exception& error) {
    fail(ErrorCode::kConfig, source, ": ", error.what(), kRemedy);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, source, ": ", error.what(), kRemedy);
  }
}

GemmTable read_gemm_table(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  require(file.is_open() && !file.bad() && !text.empty(), ErrorCode::kNotFound, path,
          ": there is no table of GEMMs that can be read; tessera calibrate writes one");
  return parse_gemm_table(text, path);
}

void require_made_on(const GemmTable& table, const GemmMachine& machine) {
  require(table.machine == machine, ErrorCode::kConfig, "the table of GEMMs was made on ",
          describe(table.machine), ", and this is ", describe(machine),
          "; leave `gemm_table` out, or time this machine with tessera calibrate");
}

}  // namespace tessera
