#include "tessera/sharding/step_plan.h"

#include <algorithm>
#include <utility>

#include "gradient_sums.h"
#include "schedule/schedule_words.h"
#include "tessera/core/error.h"
#include "tessera/sharding/contents.h"
#include "tessera/sharding/planner.h"

namespace tessera {
namespace {

constexpr std::string_view kRankLine = "pipeline-rank ";

/// Where a line begins that begins with kRankLine, from `from` on; npos: none does.
std::size_t find_rank_line(std::string_view text, std::size_t from) {
  while (from < text.size()) {
    if (text.substr(from).starts_with(kRankLine)) return from;
    const std::size_t end = text.find('\n', from);
    if (end == text.npos) return end;
    from = end + 1;
  }
  return text.npos;
}

std::size_t lines_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

/// Before the first schedule there are empty lines and comments at most.
void require_nothing_in(std::string_view text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const std::size_t word = line.find_first_not_of(" \t\r");
    require(word == line.npos || line[word] == '#', ErrorCode::kConfig, "line ",
            lines_of(text.substr(0, begin)) + 1, ": '", line, "' where '", kRankLine, "0' belongs");
    begin = end + 1;
  }
}

}  // namespace

StepPlan plan_step(const ModelLayout& layout, const PlanOptions& options, std::string_view last) {
  StepPlan step;
  PlanOptions of_rank = options;
  for (int rank = 0; rank < options.mesh.size(Axis::kPipeline); ++rank) {
    of_rank.pipeline.rank = rank;
    step.ranks.push_back(plan(layout, of_rank, last));
  }
  return step;
}

StepPlan with_snapshot(const StepPlan& step, bool rounded_at_random) {
  StepPlan out;
  for (const Schedule& schedule : step.ranks) {
    out.ranks.push_back(with_snapshot(schedule, rounded_at_random));
  }
  return out;
}

std::string to_string(const StepPlan& step) {
  if (step.ranks.size() == 1) return to_string(step.ranks.front());
  std::string text;
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
    text += concat(rank > 0 ? "\n" : "", kRankLine, rank, '\n', to_string(step.ranks[rank]));
  }
  return text;
}

StepPlan parse_step_plan(std::string_view text) {
  StepPlan step;
  std::size_t begin = find_rank_line(text, 0);
  if (begin == text.npos) {
    step.ranks.push_back(parse_schedule(text));
    return step;
  }
  require_nothing_in(text.substr(0, begin));
  while (begin != text.npos) {
    const std::size_t body = std::min(text.find('\n', begin), text.size());
    const std::size_t end = find_rank_line(text, body);
    const std::string_view name = text.substr(begin, body - begin);
    const std::size_t lines = lines_of(text.substr(0, begin));
    require(name == concat(kRankLine, step.ranks.size()), ErrorCode::kConfig, "line ", lines + 1,
            ": '", name, "' where '", kRankLine, step.ranks.size(), "' belongs");
    try {
      step.ranks.push_back(parse_schedule(text.substr(body, end - body), lines));
    } catch (const Error& error) {
      fail(ErrorCode::kConfig, "pipeline rank ", step.ranks.size(), ": ", error.what());
    }
    begin = end;
  }
  return step;
}

void require_valid(const StepPlan& step) {
  const std::vector<Violation> violations = validate(step);
  if (violations.empty()) return;
  std::string text = concat("the step breaks ", violations.size(), " rules:");
  for (const Violation& v : violations) text += concat("\n  ", to_string(v.rule), ": ", v.message);
  fail(ErrorCode::kInternal, text);
}

/// Gradients of mirrors go from later stages to earlier ones.
std::vector<GradientSum> gradient_sums(const StepPlan& step) {
  GradientSums::Messages messages;
  std::vector<std::vector<GradientSum>> by_rank(step.ranks.size());
  for (std::size_t rank = step.ranks.size(); rank-- > 0;) {
    std::vector<Violation> violations;
    GradientSums sums(step.ranks[rank], &messages);
    ContentWalk(step.ranks[rank], violations, &sums).run();
    require(violations.empty(), ErrorCode::kInvalidArgument,
            "the sums of a broken schedule mean nothing: ",
            violations.empty() ? std::string() : violations.front().message);
    by_rank[rank] = sums.result();
  }
  std::vector<GradientSum> all;
  for (std::vector<GradientSum>& sums : by_rank) std::ranges::move(sums, std::back_inserter(all));
  return all;
}

}  // namespace tessera
