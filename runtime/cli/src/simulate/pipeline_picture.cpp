#include "simulate/pipeline_picture.h"

#include <algorithm>
#include <limits>

#include "output/terminal.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

namespace tessera::cli {
namespace {

char sign_of(const Action& action) {
  if (action.operation == &operations::kOptimizerStep) return '+';
  if (!action.operation->is_pass) return '.';
  const int digit = action.micro_step % 10;
  return static_cast<char>(
      (action.operation->parts.backward || action.operation->parts.gradients ? 'a' : '0') + digit);
}

bool works(Lane lane) { return lane == Lane::kCompute || lane == Lane::kOptimizer; }

}  // namespace

std::vector<std::string> pipeline_picture(const StepPlan& step,
                                          const std::vector<std::vector<ActionSpan>>& spans) {
  double begin = std::numeric_limits<double>::infinity(), end = 0.0;
  for (const std::vector<ActionSpan>& own : spans) {
    for (const ActionSpan& span : own) {
      begin = std::min(begin, span.begin);
      end = std::max(end, span.end);
    }
  }
  std::vector<std::string> lines;
  const std::size_t label = std::to_string(spans.size() - 1).size() + 2;
  const std::size_t columns = static_cast<std::size_t>(kColumns) - label;
  const double width = (end - begin) / static_cast<double>(columns);
  for (std::size_t rank = 0; rank < spans.size(); ++rank) {
    std::string line(columns, '.');
    for (const ActionSpan& span : spans[rank]) {
      const Action& action = step.ranks[rank].actions[static_cast<std::size_t>(span.action)];
      if (!works(span.lane) || sign_of(action) == '.') continue;
      // The columns whose middle is in the span.
      const auto column_after = [&](double time) {
        return static_cast<std::size_t>(std::max(0.0, (time - begin) / width + 0.5));
      };
      const std::size_t last = std::min(columns, column_after(span.end));
      for (std::size_t c = column_after(span.begin); c < last; ++c) line[c] = sign_of(action);
    }
    std::string name = std::to_string(rank);
    name.resize(label, ' ');
    lines.push_back(name + line);
  }
  return lines;
}

}  // namespace tessera::cli
