#include "tessera/trainer/training_loop.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <span>
#include <utility>

#include "agreed_plan.h"
#include "best_evaluation.h"
#include "tessera/core/error.h"
#include "tessera/lab/dump_writer.h"
#include "tessera/sharding/account.h"
#include "tessera/trainer/parameter_hash.h"
#include "tessera/trainer/session.h"

namespace tessera {

namespace {

Traffic times(const Traffic& traffic, std::int64_t steps) {
  Traffic result = traffic;
  for (auto& calls : result.calls) calls *= steps;
  for (auto& bytes : result.sent_bytes) bytes *= steps;
  result.copied_bytes *= steps;
  result.to_host_bytes *= steps;
  result.to_device_bytes *= steps;
  result.to_disk_bytes *= steps;
  result.from_disk_bytes *= steps;
  return result;
}

/// A number; nan without the sign that some machines give it.
std::string in_words(double number) { return std::isnan(number) ? "nan" : concat(number); }

/// Its loss would be 0 over 0, and an update by no gradient would still decay the parameters.
void check_tokens(const StepRecord& record) {
  require(
      record.tokens > 0, ErrorCode::kInvalidArgument, "step ", record.step,
      " has no target that counts: nothing can be learned from it, and it has no loss; mend the "
      "data, whose targets there are all -1 or -100, or take more samples into a step "
      "(`micro_batch`, `accumulate`)");
}

void check_loss(const StepRecord& record) {
  if (record.skipped) return;  // the state is none the worse
  if (std::isfinite(record.loss) && std::isfinite(record.gradient_norm)) return;
  fail(ErrorCode::kInvalidArgument, "training diverged: step ", record.step, " has loss ",
       in_words(record.loss), " and gradient norm ", in_words(record.gradient_norm),
       " at learning rate ", record.learning_rate,
       "; lower the learning rate, warm it up for longer, or clip gradients (`learning_rate.peak`, "
       "`learning_rate.warmup_steps`, `optimizer.clip_norm`)");
}

MemoryPeak highest(const MemoryPeak& a, const MemoryPeak& b) {
  MemoryPeak result = a;
  result.total = std::max(a.total, b.total);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    result.by_category[category] = std::max(a.by_category[category], b.by_category[category]);
  }
  return result;
}

/// Fewer steps than this are all there is to go by.
constexpr std::int64_t kSteadySteps = 3;

}  // namespace

/// The sums over steps, of the same size for a million of them as for one.
struct TrainingLoop::Totals {
  std::int64_t steps = 0;
  std::int64_t skipped_steps = 0;
  double first_loss = 0.0, last_loss = 0.0;
  std::int64_t tokens = 0, first_tokens = 0;
  std::int64_t positions = 0, first_positions = 0;
  double seconds = 0.0, first_seconds = 0.0;
  TimelineSummary timeline, first_timeline;  ///< sums over steps; if they are traced
  std::int64_t evaluations = 0, saves = 0;

  void add(const StepRecord& record);
  bool is_steady() const { return steps >= kSteadySteps; }
  /// Without the first step, which warms up: threads, caches, fresh memory.
  double steady_rate(std::int64_t all, std::int64_t first) const;
  TimelineSummary steady_timeline() const;
};

void TrainingLoop::Totals::add(const StepRecord& record) {
  if (++steps == 1) {
    first_loss = record.loss;
    first_tokens = record.tokens;
    first_positions = record.positions;
    first_seconds = record.seconds;
    first_timeline = record.timeline.value_or(TimelineSummary());
  }
  last_loss = record.loss;
  skipped_steps += record.skipped ? 1 : 0;
  tokens += record.tokens;
  positions += record.positions;
  seconds += record.seconds;
  if (!record.timeline) return;
  timeline.step_seconds += record.timeline->step_seconds;
  timeline.compute_seconds += record.timeline->compute_seconds;
  timeline.communication_seconds += record.timeline->communication_seconds;
  timeline.exposed_seconds += record.timeline->exposed_seconds;
}

double TrainingLoop::Totals::steady_rate(std::int64_t all, std::int64_t first) const {
  const double over = is_steady() ? seconds - first_seconds : seconds;
  return over > 0.0 ? static_cast<double>(is_steady() ? all - first : all) / over : 0.0;
}

TimelineSummary TrainingLoop::Totals::steady_timeline() const {
  const auto n = static_cast<double>(is_steady() ? steps - 1 : steps);
  const auto mean = [&](double TimelineSummary::*part) {
    return (timeline.*part - (is_steady() ? first_timeline.*part : 0.0)) / n;
  };
  return {.step_seconds = mean(&TimelineSummary::step_seconds),
          .compute_seconds = mean(&TimelineSummary::compute_seconds),
          .communication_seconds = mean(&TimelineSummary::communication_seconds),
          .exposed_seconds = mean(&TimelineSummary::exposed_seconds)};
}

namespace {

bool is_due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

/// The traffic of a checkpoint's copies to the host beside its step.
Traffic copies_of_snapshot(const TrainingPlan& plan, std::size_t stage) {
  const Traffic with = account_traffic(plan.snapshot.ranks[stage]);
  const Traffic without = account_traffic(plan.step.ranks[stage]);
  return {.to_host_bytes = with.to_host_bytes - without.to_host_bytes,
          .from_disk_bytes = with.from_disk_bytes - without.from_disk_bytes};
}

template <typename Totals>
void summarise(const TrainingPlan& plan, const Totals& totals, const std::vector<RankUse>& use,
               TrainingSummary& summary) {
  summary.steps = totals.steps;
  summary.skipped_steps = totals.skipped_steps;
  summary.first_loss = totals.first_loss;
  summary.last_loss = totals.last_loss;
  summary.seconds = totals.seconds;
  summary.tokens_per_second = totals.steady_rate(totals.tokens, totals.first_tokens);
  summary.positions_per_second = totals.steady_rate(totals.positions, totals.first_positions);
  summary.predicted_memory = plan.memory;
  summary.predicted_host_memory = plan.host_memory;
  summary.predicted_disk_bytes = plan.disk_bytes;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const RankCosts& costs = plan.stages[s];
    TrainingSummary::Stage stage{.predicted_memory = costs.memory,
                                 .measured_memory = {},
                                 .predicted_traffic = times(costs.traffic, totals.steps),
                                 .counted_traffic = {}};
    stage.predicted_traffic += times(costs.evaluation_traffic, totals.evaluations);
    stage.predicted_traffic += times(copies_of_snapshot(plan, s), totals.saves);
    summary.stages.push_back(stage);
  }
  const auto largest = static_cast<std::size_t>(plan.largest_stage);
  summary.predicted_traffic = summary.stages[largest].predicted_traffic;
  for (std::size_t r = 0; r < use.size(); ++r) {
    const RankUse& rank = use[r];
    const auto s = static_cast<std::size_t>(plan.pipeline_rank_of(static_cast<int>(r)));
    TrainingSummary::Stage& stage = summary.stages[s];
    stage.measured_memory = highest(stage.measured_memory, rank.memory);
    stage.counted_traffic = rank.traffic;
    if (s != largest) continue;
    summary.measured_memory = highest(summary.measured_memory, rank.memory);
    summary.measured_host_memory = highest(summary.measured_host_memory, rank.host_memory);
    summary.measured_disk_bytes = std::max(summary.measured_disk_bytes, rank.disk_bytes);
    summary.counted_traffic.push_back(rank.traffic);
  }
  if (summary.stages.size() == 1) summary.stages.clear();
  if (*plan.options.time_actions) summary.timeline = totals.steady_timeline();
}

/// The trained parameters and their hash, as far as they are wanted.
void take_parameters(Session& session, TrainingSummary& summary, const OnParameter& on_parameter) {
  const Model& model = session.plan().inputs.model;
  const TrainerOptions& options = session.plan().options;
  if (!options.hash_parameters && !options.gather_parameters && !on_parameter) return;
  const bool tells = speaks(options);
  std::optional<ParameterHash> hash;
  if (options.hash_parameters) {
    hash.emplace(options.host_work.get());
    begin_work(options.host_work.get(), HostTask::kHash,
               parameter_count(model) * static_cast<std::int64_t>(sizeof(float)));
  }
  session.parameters([&](FullParameter parameter) {
    if (tells && options.gather_parameters) summary.parameters.push_back(parameter);
    if (tells && on_parameter) on_parameter(parameter);
    if (hash) hash->add(std::move(parameter.values));
  });
  if (hash) summary.parameters_sha256 = hash->finish();
}

}  // namespace

/// Makes calls in other processes fail if `body` does.
template <typename Body>
auto TrainingLoop::guarded(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    session_.abort(concat(kEndedInOrder, error.what()));
    throw;
  } catch (...) {
    session_.abort(concat(kEndedInOrder, "a callback threw"));
    throw;
  }
}

TrainingLoop::TrainingLoop(Session& session, LoopListeners listeners, LoopSteps steps)
    : session_(session),
      plan_(session.plan()),
      listeners_(std::move(listeners)),
      steps_(steps),
      totals_(std::make_unique<Totals>()) {
  const TrainerOptions& options = plan_.options;
  last_ = options.stop_after > 0 ? session.steps() + options.stop_after : options.steps;
}

TrainingLoop::~TrainingLoop() = default;

void TrainingLoop::tell_notes(std::size_t known) {
  guarded([&] {
    const std::vector<std::string> notes = session_.notes();
    for (const std::string& note : std::span(notes).subspan(known)) {
      if (tells() && listeners_.on_note) listeners_.on_note(note);
    }
  });
}

bool TrainingLoop::tells() const { return speaks(plan_.options); }

// Where a run is interrupted it is evaluated, too, and the run that goes on from there is not: both
// must compare the same evaluations.
bool TrainingLoop::evaluates_after(std::int64_t step) const {
  const TrainerOptions& options = plan_.options;
  return plan_.evaluation && (is_due(step, options.evaluate_every) || step == options.steps);
}

bool TrainingLoop::saves_after(std::int64_t step) const {
  const CheckpointOptions& saves = plan_.options.checkpoints;
  return !saves.folder.empty() && is_due(step, saves.every);
}

/// Returns whether it is the best so far. All processes have the same loss.
bool TrainingLoop::evaluate() {
  evaluation_ = session_.evaluate();
  ++totals_->evaluations;
  const bool compares = compares_evaluations(plan_.options) && evaluates_after(evaluation_->step);
  const bool is_best = compares && compare_with_best(session_, *evaluation_);
  if (tells() && listeners_.on_evaluation) listeners_.on_evaluation(*evaluation_);
  return is_best;
}

template <typename Call>
void TrainingLoop::end_of_save(const Call& call) {
  try {
    if (const std::optional<SaveRecord> record = call()) {
      ++summary_.saves;
      if (tells() && listeners_.on_save) listeners_.on_save(*record);
      if (tells() && listeners_.on_note && !record->note.empty()) listeners_.on_note(record->note);
    }
  } catch (const Error& error) {
    const SaveFailures failures = plan_.options.checkpoints.failures;
    if (error.code() != ErrorCode::kIo || failures == SaveFailures::kFail) throw;
    ++summary_.failed_saves;
    if (tells() && listeners_.on_note) listeners_.on_note(error.what());
  }
}

void TrainingLoop::save(bool wait) {
  end_of_save([&] { return session_.finish_save(); });
  saved_step_ = session_.steps();
  end_of_save([&]() -> std::optional<SaveRecord> {
    session_.begin_save(plan_.options.checkpoints.folder);
    ++totals_->saves;
    return wait ? session_.finish_save() : std::nullopt;
  });
}

/// No step may have begun when one is followed by an evaluation or a checkpoint.
std::optional<StepRecord> TrainingLoop::step() {
  const std::int64_t step = session_.steps() + 1;
  if (step > last_) return std::nullopt;
  const bool pauses = step == last_ || evaluates_after(step) || saves_after(step);
  return pauses || steps_ == LoopSteps::kSeparate ? session_.step() : session_.step_ahead();
}

std::optional<StepRecord> TrainingLoop::next() {
  return guarded([&]() -> std::optional<StepRecord> {
    if (summary_.stopped_early) return std::nullopt;
    const std::optional<StepRecord> record = step();
    if (!record) return std::nullopt;
    const TrainerOptions& options = plan_.options;
    totals_->add(*record);
    if (tells()) {  // the other processes end when this one does, and say the same
      check_tokens(*record);
      if (listeners_.on_step && !listeners_.on_step(*record)) session_.stop();
      if (!options.allow_non_finite) check_loss(*record);
    }
    const bool is_best = evaluates_after(record->step) && evaluate();
    end_of_save([&] { return session_.poll_save(); });
    const CheckpointOptions& saves = options.checkpoints;
    if (saves_after(record->step) || (is_best && saves.save_best)) save(!saves.asynchronous);
    summary_.stopped_early = has_lost_patience(options, session_.best_evaluation());
    return record;
  });
}

TrainingSummary TrainingLoop::finish() {
  guarded([&] {
    if (plan_.evaluation && (!evaluation_ || evaluation_->step != session_.steps())) evaluate();
    const bool saves = !plan_.options.checkpoints.folder.empty();
    if (saves && saved_step_ != session_.steps()) save(true);
    end_of_save([&] { return session_.finish_save(); });
    summarise(plan_, *totals_, session_.use(), summary_);
    summary_.last_step = session_.steps();
    summary_.traced_steps = session_.traced_steps();
    take_parameters(session_, summary_, listeners_.on_parameter);
  });
  summary_.evaluation = evaluation_;
  return std::move(summary_);
}

}  // namespace tessera
