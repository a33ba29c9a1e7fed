#include "tessera/sharding/pipeline_csv.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
/// Actions of PyTorch's other form, "compute_comms".
constexpr std::string_view kPlanned[] = {"UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F",
                                         "RECV_F",  "SEND_B",  "RECV_B"};

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\"";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// Cuts off what is before `separator`, or all.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

void add_cell(std::string_view cell, std::vector<StagePass>& passes) {
  if (cell.empty()) return;
  for (const std::string_view planned : kPlanned) {
    require(cell.find(planned) == std::string_view::npos, ErrorCode::kConfig, "'", cell,
            "' is of PyTorch's form compute_comms; the form compute_only belongs here: what is "
            "gathered, reduced and sent is planned");
  }
  if (!cell.starts_with('(')) {
    passes.push_back(parse_stage_pass(cell));
    return;
  }
  const std::size_t end = cell.find(')');
  require(end != std::string_view::npos && cell.substr(end + 1) == kOverlap, ErrorCode::kConfig,
          "'", cell, "' is no pass, and not two of the form (0F1;3B0)", kOverlap);
  std::string_view both = cell.substr(1, end - 1);
  while (!both.empty()) passes.push_back(parse_stage_pass(stripped(take_until(both, ';'))));
}

}  // namespace

std::vector<std::vector<StagePass>> parse_pipeline_csv(std::string_view text,
                                                       std::string_view file) {
  std::vector<std::vector<StagePass>> ranks;
  for (int row = 1; !text.empty(); ++row) {
    std::string_view line = take_until(text, '\n');
    if (stripped(line).empty() && stripped(text).empty()) break;
    std::vector<StagePass>& passes = ranks.emplace_back();
    for (int column = 1; !line.empty(); ++column) {
      try {
        add_cell(stripped(take_until(line, ',')), passes);
      } catch (const Error& error) {
        fail(error.code(), file, ": row ", row, ", column ", column, ": ", error.what());
      }
    }
  }
  require(!ranks.empty(), ErrorCode::kConfig, file,
          " has no rows; each is the passes of one pipeline rank, like 0F0,0F1,0B0,0B1");
  return ranks;
}

std::string pipeline_csv(const std::vector<std::vector<StagePass>>& passes,
                         const PipelineShape& shape) {
  std::vector<std::vector<std::string>> rows(passes.size());
  std::vector<std::size_t> next(passes.size(), 0);
  std::map<std::tuple<int, int, bool>, std::size_t> ends;  // of forwards, and of backwards
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < passes.size(); ++r) {
      for (; next[r] < passes[r].size(); ++next[r], moved = true) {
        const StagePass& pass = passes[r][next[r]];
        const bool back = pass.is_backward();
        const int giver = pass.stage + (back ? 1 : -1);
        if (pass.kind != PassKind::kBackwardWeight && giver >= 0 && giver < shape.stages) {
          const auto there = ends.find({giver, pass.micro_step, back});
          if (there == ends.end()) break;
          rows[r].resize(std::max(rows[r].size(), there->second));
        }
        rows[r].push_back(to_string(pass));
        if (pass.kind != PassKind::kBackwardWeight) {
          ends[{pass.stage, pass.micro_step, back}] = rows[r].size();
        }
      }
    }
  }
  std::size_t columns = 0;
  for (std::size_t r = 0; r < passes.size(); ++r) {
    require(next[r] == passes[r].size(), ErrorCode::kConfig, "pipeline rank ", r, " waits before ",
            next[r] == passes[r].size() ? std::string() : to_string(passes[r][next[r]]),
            ", which nothing leads to");
    columns = std::max(columns, rows[r].size());
  }
  std::string text;
  for (std::vector<std::string>& row : rows) {
    row.resize(columns);
    for (std::size_t c = 0; c < columns; ++c) text += (c == 0 ? "" : ",") + row[c];
    text += '\n';
  }
  return text;
}

std::string pipeline_csv(const Schedule& schedule) {
  const PipelineShape shape = pipeline_shape(schedule);
  return pipeline_csv(pipeline_passes(schedule.pipeline, shape), shape);
}

}  // namespace tessera
