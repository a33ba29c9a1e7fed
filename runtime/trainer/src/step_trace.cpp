#include "step_trace.h"

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/lab/dump_requests.h"
#include "tessera/trainer/gather.h"

namespace tessera {
namespace {

/// The steps that the run has, counted from 1.
StepRange steps_of_run(const TrainerOptions& options, std::int64_t done) {
  if (options.trace.of_evaluation) return {1, evaluation_steps(options)};
  const std::int64_t last =
      options.stop_after > 0 ? std::min(options.steps, done + options.stop_after) : options.steps;
  return {done + 1, last};
}

/// Each rank's memory along a step: of the programs of each pipeline rank, one after the other.
std::vector<StepMemory> memory_of(const TrainingPlan& plan,
                                  const std::vector<std::vector<Program>>& programs) {
  const std::vector<ExecutorOptions> options(programs.size(), executor_options(plan.options));
  std::vector<StepMemory> memory;
  for (Simulation& rank : simulate(programs, plan.layout, plan.inputs.model,
                                   plan_options(plan.options).state(), options)) {
    std::ranges::move(rank.step_memory, std::back_inserter(memory));
  }
  return memory;
}

}  // namespace

StepRange steps_to_trace(const TrainerOptions& run_options, std::int64_t done) {
  constexpr std::int64_t kFirst = 3, kLast = 5;  // the first ones warm up
  const StepRange run = steps_of_run(run_options, done);
  const TraceOptions& options = run_options.trace;
  if (!options.steps) {
    return {std::max(run.first, std::min(run.first + kFirst - 1, run.last)),
            std::max(run.first, std::min(run.first + kLast - 1, run.last))};
  }
  const char* const what = options.of_evaluation ? "batches" : "steps";
  require(options.steps->first <= run.last && options.steps->last >= run.first, ErrorCode::kConfig,
          "trace_steps is ", to_string(*options.steps), ", and the run has the ", what, " ",
          run.first, " to ", run.last, "; give `trace.steps` some of those");
  return *options.steps;
}

void TraceFile::add(const std::string& head, const std::string& lines) {
  const bool is_first = !file_;
  if (is_first) file_.emplace(path_, "`trace.file`");
  std::string text = is_first ? head : std::string(kTraceComma);
  text += lines;
  if (!file_->is_regular()) return file_->write(text);
  text += kTraceTail;
  if (is_first) {
    file_->write(text);
  } else {
    file_->write_over(kTraceTail, text);
  }
}

TraceFile::~TraceFile() {
  if (!file_ || file_->is_regular()) return;
  try {
    file_->write(kTraceTail);
  } catch (...) {  // NOLINT: the reader has gone
  }
}

StepTrace::StepTrace(const TrainingPlan& plan, std::int64_t done,
                     const std::vector<std::vector<Program>>& programs, const DumpWriter& dumps)
    : plan_(plan),
      first_rank_(dumps.first_rank()),
      range_(steps_to_trace(plan.options, done)),
      trace_(dumps, memory_of(plan, programs)),
      file_(plan.options.trace.file) {}

void StepTrace::append(const std::string& lines) {
  if (!lines.empty()) file_.add(trace_head(trace_.frame()), lines);
}

void StepTrace::write(ProcessGroup* leaders) {
  std::string lines = trace_.take();
  if (leaders != nullptr) {
    std::string all;
    for (const std::string& part : gather(*leaders, std::move(lines))) {
      if (part.empty()) continue;
      if (!all.empty()) all += kTraceComma;
      all += part;
    }
    lines = std::move(all);
  }
  if (!writes()) return;
  append(lines);
  steps_ += of_evaluation()
                ? std::min(range_.last, evaluation_steps(plan_.options)) - range_.first + 1
                : 1;
}

void StepTrace::abandon(std::size_t program, std::int64_t step) noexcept {
  try {
    if (wants_step(step)) trace_.add_unfinished(program, step);
    if (!writes()) return;
    const std::string lines = trace_.take();
    append(lines);
    if (plan_.options.dump_requests == nullptr) return;
    plan_.options.dump_requests->note(
        steps_ > 0 || !lines.empty()
            ? concat("what was traced before the failure is in ", file_.path())
            : concat("no trace was written: the run failed before ",
                     of_evaluation() ? "batch " : "step ", range_.first,
                     ", the first of `trace.file`"));
  } catch (...) {  // NOLINT: the failure of the run is the one to tell
  }
}

}  // namespace tessera
