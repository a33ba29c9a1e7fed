#include "training_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/sharding/groups.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/parameter_hash.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

Traffic times(const Traffic& traffic, std::int64_t steps) {
  Traffic result = traffic;
  for (auto& calls : result.calls) calls *= steps;
  for (auto& bytes : result.sent_bytes) bytes *= steps;
  result.copied_bytes *= steps;
  return result;
}

/// What the host of a rank tells the hosts of others goes over the world, whatever the ranks' own
/// group is.
ProcessGroup& seat_of(World& world, int rank) {
  return *world.groups()[static_cast<std::size_t>(rank - world.first_rank())];
}

/// The ranks whose processes another one has to tell something: the first of each.
std::unique_ptr<ProcessGroup> split_leaders(const TrainerOptions& options, int rank) {
  if (options.world == nullptr || options.world->processes() == 1) return nullptr;
  const bool leads = rank == options.world->first_rank();
  auto group = seat_of(*options.world, rank).split(leads ? 0 : 1, rank);
  return leads ? std::move(group) : nullptr;
}

/// Plain bytes as a collective takes them.
template <typename T>
TensorView bytes_of(T* values, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  return TensorView(reinterpret_cast<std::uint8_t*>(values), DType::kUInt8,
                    Shape{static_cast<std::int64_t>(count * sizeof(T))});
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

/// A number; nan without the sign that some machines give it.
std::string in_words(double number) { return std::isnan(number) ? "nan" : concat(number); }

/// Fewer steps than this are all there is to go by.
constexpr std::int64_t kSteadySteps = 3;

}  // namespace

void TrainingRun::Totals::add(const StepRecord& record) {
  if (++steps == 1) {
    first_loss = record.loss;
    first_tokens = record.tokens;
    first_seconds = record.seconds;
  }
  last_loss = record.loss;
  tokens += record.tokens;
  seconds += record.seconds;
}

void TrainingRun::Totals::add(const TimelineSummary& step) {
  if (steps == 0) first_timeline = step;
  timeline.step_seconds += step.step_seconds;
  timeline.compute_seconds += step.compute_seconds;
  timeline.communication_seconds += step.communication_seconds;
  timeline.exposed_seconds += step.exposed_seconds;
}

double TrainingRun::Totals::steady_rate() const {
  const bool is_steady = steps >= kSteadySteps;
  const double over = is_steady ? seconds - first_seconds : seconds;
  return over > 0.0 ? static_cast<double>(is_steady ? tokens - first_tokens : tokens) / over : 0.0;
}

TimelineSummary TrainingRun::Totals::steady_timeline() const {
  const bool is_steady = steps >= kSteadySteps;
  const auto n = static_cast<double>(is_steady ? steps - 1 : steps);
  const auto mean = [&](double TimelineSummary::*part) {
    return (timeline.*part - (is_steady ? first_timeline.*part : 0.0)) / n;
  };
  return {.step_seconds = mean(&TimelineSummary::step_seconds),
          .compute_seconds = mean(&TimelineSummary::compute_seconds),
          .communication_seconds = mean(&TimelineSummary::communication_seconds),
          .exposed_seconds = mean(&TimelineSummary::exposed_seconds)};
}

TrainingRun::TrainingRun(const TrainingPlan& plan, const Model& model, const BatchSource& source,
                         const Trainer::OnStep& on_step, const Trainer::OnNote& on_note)
    : plan_(plan),
      model_(model),
      source_(source),
      on_step_(on_step),
      on_note_(on_note),
      first_rank_(plan.options.world == nullptr ? 0 : plan.options.world->first_rank()),
      ranks_(static_cast<std::size_t>(plan.options.ranks)) {}

TrainingSummary TrainingRun::run() {
  const auto body = [&](int rank, ProcessGroup& world) {
    try {
      run_rank(rank, world);
    } catch (...) {
      gate_.cancel();
      throw;
    }
  };
  try {
    const auto made = make_groups(plan_.options);
    launch_ranks(made.empty() ? plan_.options.world->groups() : made, body);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    // What this run had taken is free again: the rest is what others hold.
    std::throw_with_nested(
        Error(error.code(),
              concat(error.what(), "; ",
                     memory_advice(plan_, model_, source_, available_bytes(plan_.options)))));
  }
  if (report_error_ != nullptr) {
    end_other_processes();
    std::rethrow_exception(report_error_);
  }
  return summarise();
}

void TrainingRun::run_rank(int rank, ProcessGroup& world) {
  const TrainerOptions& options = plan_.options;
  const auto device = make_rank_device(options, rank);
  Memory memory(*device, options.memory_limit_bytes);
  RankGroups groups = RankGroups::split_from(world, plan_.schedule);
  const auto leaders = split_leaders(options, rank);
  TrainingState state(plan_.layout, state_options(plan_.schedule), rank, memory);
  Executor executor(state, model_, {{&plan_.schedule, &source_}}, groups, memory,
                    executor_options(options));
  run_steps(rank, executor, memory, leaders.get());

  // Before the parameters are gathered, which is no part of training.
  ranks_[static_cast<std::size_t>(rank)] = {memory.peak(), groups.traffic()};
  if (report_error_ != nullptr) return;
  gather_results(rank);
  gather_parameters(rank, executor);
}

void TrainingRun::run_steps(int rank, Executor& executor, const Memory& memory,
                            ProcessGroup* leaders) {
  const TrainerOptions& options = plan_.options;
  const auto host = make_cpu_device();
  const auto stream = leaders == nullptr ? nullptr : host->create_stream({});
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const Clock::time_point begin = Clock::now();
    const double learning_rate = options.learning_rate.at(step);
    const StepResult result = executor.run_step(step, learning_rate);
    if (leads(rank)) {
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      std::optional<double> exposed;
      if (*options.trace) {
        const TimelineSummary timeline = summarize(executor.spans());
        exposed = timeline.exposed_seconds;
        totals_.add(timeline);
      }
      Verdict verdict;
      if (rank == 0) {
        const double rate = static_cast<double>(result.items) / seconds;
        const StepRecord record{.step = step + 1,
                                .loss = result.loss,
                                .gradient_norm = result.gradient_norm,
                                .learning_rate = learning_rate,
                                .tokens = result.items,
                                .seconds = seconds,
                                .tokens_per_second = rate,
                                .peak_bytes = memory.peak().total,
                                .exposed_seconds = exposed};
        verdict = {.record = record, .go_on = report(record, executor)};
      }
      if (leaders != nullptr) {
        leaders->broadcast(bytes_of(&verdict, 1), 0, *stream);
        stream->synchronize();
      }
      totals_.add(verdict.record);
      gate_.publish(step, verdict.go_on);
    }
    if (!gate_.wait(step)) return;
  }
}

void TrainingRun::gather_results(int rank) {
  if (plan_.options.world == nullptr) return;
  // Written by the leader alone, whose neighbours' results may not be there yet: each brings its
  // own.
  RankResult own = ranks_[static_cast<std::size_t>(rank)];
  std::vector<RankResult> all(ranks_.size());
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({});
  seat_of(*plan_.options.world, rank)
      .all_gather(bytes_of(&own, 1), bytes_of(all.data(), all.size()), *stream);
  stream->synchronize();
  if (leads(rank)) ranks_ = std::move(all);
}

void TrainingRun::gather_parameters(int rank, Executor& executor) {
  const TrainerOptions& options = plan_.options;
  if (!options.hash_parameters && !options.gather_parameters) return;
  ParameterHash hash;
  executor.gather_parameters([&](FullParameter parameter) {
    if (!leads(rank)) return;
    if (options.hash_parameters) hash.add(parameter.values);
    if (rank == 0 && options.gather_parameters) summary_.parameters.push_back(std::move(parameter));
  });
  if (leads(rank) && options.hash_parameters) summary_.parameters_sha256 = hash.finish();
}

bool TrainingRun::report(const StepRecord& record, Executor& executor) {
  try {
    if (record.step == 1 && on_note_) {
      for (const std::string& note : plan_.notes) on_note_(note);
      for (const std::string& note : executor.notes()) on_note_(note);
    }
    check_tokens(record);
    const bool go_on = !on_step_ || on_step_(record);
    check_loss(record);
    return go_on;
  } catch (...) {
    report_error_ = std::current_exception();
    return false;
  }
}

void TrainingRun::end_other_processes() {
  if (plan_.options.world == nullptr) return;
  const auto abort = [this](std::string_view reason) {
    for (const auto& seat : plan_.options.world->groups()) seat->abort(reason);
  };
  try {
    std::rethrow_exception(report_error_);
  } catch (const std::exception& error) {
    abort(error.what());
  } catch (...) {
    abort("process 0 gave up");
  }
}

/// Its loss would be 0 over 0, and an update by no gradient would still decay the parameters.
void TrainingRun::check_tokens(const StepRecord& record) {
  require(
      record.tokens > 0, ErrorCode::kInvalidArgument, "step ", record.step,
      " has no target that counts: nothing can be learned from it, and it has no loss; mend the "
      "data, whose targets there are all -1 or -100, or take more samples into a step "
      "(--micro-batch, --accumulate)");
}

void TrainingRun::check_loss(const StepRecord& record) const {
  if (std::isfinite(record.loss) && std::isfinite(record.gradient_norm)) return;
  if (plan_.options.allow_non_finite) return;
  fail(ErrorCode::kInvalidArgument, "training diverged: step ", record.step, " has loss ",
       in_words(record.loss), " and gradient norm ", in_words(record.gradient_norm),
       " at learning rate ", record.learning_rate,
       "; lower the learning rate, warm it up for longer, or clip gradients (--learning-rate, "
       "--warmup-steps, --clip-norm)");
}

TrainingSummary TrainingRun::summarise() {
  summary_.steps = totals_.steps;
  summary_.first_loss = totals_.first_loss;
  summary_.last_loss = totals_.last_loss;
  summary_.seconds = totals_.seconds;
  summary_.tokens_per_second = totals_.steady_rate();
  summary_.predicted_memory = plan_.memory;
  summary_.predicted_traffic = times(plan_.traffic, summary_.steps);
  for (const RankResult& rank : ranks_) {
    summary_.measured_memory = highest(summary_.measured_memory, rank.memory);
    summary_.counted_traffic.push_back(rank.traffic);
  }
  if (*plan_.options.trace) summary_.timeline = totals_.steady_timeline();
  return std::move(summary_);
}

}  // namespace tessera
