#include "session_impl.h"

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/state_file.h"
#include "tessera/collectives/process_group.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"
#include "tessera/core/host_work.h"
#include "tessera/core/tensor.h"
#include "tessera/core/utc_text.h"
#include "tessera/trainer/gather.h"

namespace tessera {
namespace {

/// The predictions of all ranks for the samples of Session::forward, put together in their order.
class ForwardOutputs {
 public:
  ForwardOutputs(std::int64_t samples, std::int64_t micro_batch)
      : samples_(samples), micro_batch_(micro_batch) {}

  /// Adds a micro-batch from sample `first` on; by any rank's thread. Throws
  /// Error{kInvalidArgument} if the last layer has not returned as many numbers for each sample.
  void add(std::int64_t first, const Shape& shape, std::span<const float> values);
  /// Adds what the other processes have. Collective, of the leaders.
  void exchange(ProcessGroup& leaders);

  /// The last layer's output, for all samples.
  Shape shape() const;
  std::vector<float> take_values() { return std::move(values_); }

 private:
  std::int64_t of_sample() const { return shape_.numel() / micro_batch_; }

  const std::int64_t samples_, micro_batch_;
  std::mutex mutex_;
  Shape shape_;  ///< of a micro-batch
  std::vector<float> values_;
  std::vector<char> is_here_;  ///< by sample
};

void ForwardOutputs::add(std::int64_t first, const Shape& shape, std::span<const float> values) {
  const std::lock_guard lock(mutex_);
  require(shape.numel() % micro_batch_ == 0, ErrorCode::kInvalidArgument,
          "forward: the last layer returned ", shape, " for ", micro_batch_,
          " samples, which is not as much for each");
  if (is_here_.empty()) {
    shape_ = shape;
    values_.resize(static_cast<std::size_t>(samples_ * of_sample()));
    is_here_.resize(static_cast<std::size_t>(samples_));
  }
  const std::int64_t count = std::min(micro_batch_, samples_ - first);
  if (count <= 0) return;
  std::copy_n(values.begin(), count * of_sample(), values_.begin() + first * of_sample());
  std::fill_n(is_here_.begin() + first, count, char{1});
}

void ForwardOutputs::exchange(ProcessGroup& leaders) {
  const std::string own(reinterpret_cast<const char*>(values_.data()),
                        values_.size() * sizeof(float));
  const std::vector<std::string> values = gather(leaders, own);
  const std::vector<std::string> here =
      gather(leaders, std::string(is_here_.begin(), is_here_.end()));
  const std::size_t bytes = static_cast<std::size_t>(of_sample()) * sizeof(float);
  for (std::size_t process = 0; process < values.size(); ++process) {
    for (std::size_t sample = 0; sample < here[process].size(); ++sample) {
      if (here[process][sample] == 0) continue;
      std::memcpy(reinterpret_cast<char*>(values_.data()) + sample * bytes,
                  values[process].data() + sample * bytes, bytes);
    }
  }
}

Shape ForwardOutputs::shape() const {
  if (shape_.rank() == 0 || shape_[0] % micro_batch_ != 0) return {samples_, of_sample()};
  return shape_.with(0, shape_[0] / micro_batch_ * samples_);
}

struct Introduction {
  double wall_seconds = 0.0;
  std::int64_t pid = 0;
  std::uint64_t host = 0;  ///< a hash of its name
};

/// "20261123-184501-4711": UTC, and a process id.
std::string name_of(const Introduction& first) {
  const auto seconds = static_cast<std::time_t>(first.wall_seconds);
  return concat(utc_text(seconds, "%Y%m%d-%H%M%S"), "-", first.pid);
}

Introduction introduction() {
  using Seconds = std::chrono::duration<double>;
  return {.wall_seconds = Seconds(std::chrono::system_clock::now().time_since_epoch()).count(),
          .pid = getpid(),
          .host = std::hash<std::string>{}(host_name())};
}

/// The origin of a run that begins now. `leaders`: one rank of each process, this one's too; null
/// if there is one process. Processes of one machine have one clock. Others leave the first
/// exchange at nearly the same moment: within the time that a message takes.
RunOrigin meet(ProcessGroup* leaders) {
  if (leaders == nullptr) {
    const Introduction only = introduction();
    return {.name = name_of(only), .began = only.wall_seconds};
  }
  gather(*leaders, char{0});
  const Introduction own = introduction();
  const Introduction first = gather(*leaders, own).front();
  return {.name = name_of(first),
          .clock_ahead = own.host == first.host ? 0.0 : own.wall_seconds - first.wall_seconds,
          .began = first.wall_seconds};
}

constexpr std::size_t kTraining = 0, kEvaluation = 1;  // indices of programs

DumpOptions dump_options(const TrainerOptions& options) {
  const World* const world = options.world.get();
  return {.strategy = options.strategy,
          .first_rank = world == nullptr ? 0 : world->first_rank(),
          .ranks = world == nullptr ? options.ranks : world->local_ranks(),
          .sees_ends = options.device != DeviceChoice::kCuda,
          .folder = options.dump_folder,
          .requests = options.dump_requests};
}

}  // namespace

Session::Impl::Impl(std::unique_ptr<const TrainingPlan> own, const TrainingPlan& plan)
    : own_(std::move(own)), plan_(plan), source_(plan.inputs.source), given_(source_) {
  if (plan_.resume != nullptr) later_.emplace(source_);
  const BatchSource& source = later_ ? static_cast<const BatchSource&>(*later_) : source_;
  if (plan_.evaluation) {
    evaluated_.emplace(*plan_.inputs.evaluation, plan_.options.evaluation_samples);
  }
  std::vector<std::vector<Program>> programs =
      programs_of(plan_, source, evaluated_ ? &*evaluated_ : nullptr, &given_);
  if (plan_.forward) forward_ = programs.front().size() - 1;
  snapshot_ = programs.front().size();
  for (std::size_t p = 0; p < programs.size(); ++p) {
    programs[p].push_back({&plan_.snapshot.ranks[p], &source});
  }
  guarded([&] {
    std::vector<std::vector<const Schedule*>> schedules;
    for (const std::vector<Program>& of_rank : programs) {
      schedules.emplace_back();
      for (const Program& program : of_rank) schedules.back().push_back(program.schedule);
    }
    dumps_ = std::make_unique<DumpWriter>(dump_options(plan_.options), schedules);
    crew_ = std::make_unique<RankCrew>(plan_, std::move(programs), *dumps_);
    introduce();
    if (plan_.resume != nullptr) {
      resume();
    } else if (plan_.options.initial_parameters) {
      load_initial();
    }
    if (!plan_.options.trace.file.empty()) {
      trace_ = std::make_unique<StepTrace>(plan_, steps_, crew_->programs(), *dumps_);
    }
    if (!plan_.options.checkpoints.folder.empty()) saver().prepare();
  });
  if (HostWork* const work = plan_.options.host_work.get()) work->begin_steps();
}

/// Adds what has been traced to the file, of all processes.
void Session::Impl::write_trace() {
  run([&](RankSeat& seat) {
    if (leads(seat)) trace_->write(seat.leaders.get());
  });
}

/// The processes agree on a name of the run, and compare their clocks.
void Session::Impl::introduce() {
  std::optional<RunOrigin> origin;
  run([&](RankSeat& seat) {
    if (leads(seat)) origin = meet(seat.leaders.get());
  });
  dumps_->begin(*std::move(origin));
}

/// From the checkpoint of the plan; where what is in its files is damaged, from the newest before
/// it that can be read. All processes take the same one.
void Session::Impl::resume() {
  std::shared_ptr<const ResumePoint> point = plan_.resume;
  std::vector<DamagedCheckpoint> unreadable;
  for (;;) {
    std::string damage = load(*point, !unreadable.empty());
    if (damage.empty()) break;
    if (point->is_named) {
      const std::string other = checkpoint_before(*point);
      fail(ErrorCode::kConfig, damage,
           other.empty()
               ? ""
               : concat("; the newest one of an earlier step: `checkpoints.resume` ", other));
    }
    unreadable.push_back({point->path, std::move(damage)});
    try {
      ResumeChoice next = find_resume_point(plan_, unreadable);
      point = std::move(next.point);
      notes_ = std::move(next.notes);
    } catch (const std::exception& error) {
      crew_->abort(concat(kEndedInOrder, error.what()));
      throw;
    }
    agree_on_resume_point(plan_.options, point.get());
  }
  const Manifest& manifest = point->manifest;
  steps_ = manifest.step;
  skipped_ = manifest.loss_scaler.value_or(LossScalerState()).skipped;
  offset_ = manifest.samples - steps_ * sample_division(plan_.options).samples_per_step();
  best_ = manifest.best;
  later_->begin_at(offset_);
}

/// Returns what is damaged of it, as any rank of any process has found; "" if all have loaded it.
/// `again`: after another one.
std::string Session::Impl::load(const ResumePoint& point, bool again) {
  std::optional<LossScalerState> scaler = point.manifest.loss_scaler;
  const std::optional<LossScaling> scaling = loss_scaling(plan_.options.loss_scale);
  if (scaler && scaling && !scaling->rule.dynamic) scaler->scale = scaling->initial_scale;
  std::vector<std::string> damages(static_cast<std::size_t>(dumps_->ranks()));
  run([&](RankSeat& seat) {
    std::string& damage = damages.at(static_cast<std::size_t>(seat.rank - crew_->first_rank()));
    seat.executor.run_apart([&](Stream& stream) {
      if (again) seat.state.initialize(plan_.options.seed, stream);
      try {
        load_state(point.manifest, point.path, seat.state, stream);
      } catch (const Error& error) {
        const bool is_gone = error.code() == ErrorCode::kNotFound;
        if (error.code() != ErrorCode::kConfig && !is_gone) throw;
        damage = error.what();
      }
    });
    if (scaler) seat.executor.set_loss_scaler(*scaler);
    seat.executor.set_fp8_histories(point.manifest.fp8_histories);
  });
  std::erase(damages, "");
  std::string damage = damages.empty() ? "" : damages.front();
  run([&](RankSeat& seat) {
    if (seat.leaders == nullptr) return;
    std::vector<std::string> all = gather(*seat.leaders, damage);
    std::erase(all, "");
    if (!all.empty()) damage = all.front();
  });
  return damage;
}

void Session::Impl::load_initial() {
  run([&](RankSeat& seat) {
    seat.executor.run_apart(
        [&](Stream& stream) { plan_.options.initial_parameters(seat.state, stream); });
  });
}

CheckpointSaver& Session::Impl::saver() {
  if (saver_ == nullptr) {
    saver_ = std::make_unique<CheckpointSaver>(plan_, describe_run(plan_), *crew_, snapshot_,
                                               storage_of(plan_.options.checkpoints));
  }
  return *saver_;
}

void Session::Impl::begin_save(const std::string& folder) {
  require_none_begun();
  require(!saver().in_flight(), ErrorCode::kInvalidArgument,
          "a checkpoint is being written; finish_save() comes first");
  const std::int64_t samples = steps_ * sample_division(plan_.options).samples_per_step();
  std::vector<Fp8History> histories = fp8_histories();
  save_note_ = note_of_infinities(histories);
  saver().begin(folder, steps_, offset_ + samples, loss_scaler(), best_, std::move(histories));
}

std::optional<SaveRecord> Session::Impl::finish_save() {
  if (saver_ == nullptr || !saver_->in_flight()) return std::nullopt;
  require_none_begun();
  std::optional<SaveRecord> record = saver_->finish();
  if (record && !save_note_.empty()) {
    record->note += concat(record->note.empty() ? "" : "; ", save_note_);
  }
  return record;
}

/// The loss scaler's state for a checkpoint: nothing if no step was or can be skipped.
std::optional<LossScalerState> Session::Impl::loss_scaler() {
  std::optional<LossScalerState> state;
  if (skipped_ == 0 && !loss_scaling(plan_.options.loss_scale)) return state;
  run([&](RankSeat& seat) {
    if (leads(seat)) state = seat.executor.loss_scaler();
  });
  return state;
}

/// Whether some process wants no further step than the `next` first ones.
bool Session::Impl::agrees_to_stop(std::int64_t next) {
  bool stop = stopping_;
  if (plan_.options.world != nullptr && plan_.options.world->processes() > 1) {
    run([&](RankSeat& seat) {
      if (seat.leaders == nullptr) return;
      FlightRecorder& recorder = dumps_->recorder(seat.rank);
      recorder.begin_phase(HostPhase::kMeets, kTraining, next);
      for (const char asks : gather(*seat.leaders, static_cast<char>(stopping_ ? 1 : 0))) {
        stop = stop || asks != 0;
      }
      recorder.begin_phase(HostPhase::kOutside, kTraining, next);
    });
  }
  stopping_ = stop;
  return stop;
}

StepRecord Session::Impl::record_of(const StepResult& result, const RankSeat& seat,
                                    double seconds) const {
  const TrainerOptions& options = plan_.options;
  const std::int64_t positions = source_.target_shape(options.micro_batch).numel() *
                                 sample_division(options).micro_batches_per_step();
  StepRecord record{.step = steps_ + 1,
                    .loss = result.loss,
                    .gradient_norm = result.gradient_norm,
                    .learning_rate = result.learning_rate,
                    .tokens = result.items,
                    .positions = positions,
                    .seconds = seconds,
                    .tokens_per_second = static_cast<double>(result.items) / seconds,
                    .positions_per_second = static_cast<double>(positions) / seconds,
                    .peak_bytes = seat.memory.peak().total};
  if (const auto& scale = result.loss_scale) {
    record.loss_scale = static_cast<double>(scale->scale);
    record.skipped = scale->skipped;
    record.skipped_steps = skipped_ + (scale->skipped ? 1 : 0);
  }
  if (*plan_.options.time_actions) {
    record.timeline = summarize(seat.executor.spans());
    record.exposed_seconds = record.timeline->exposed_seconds;
  }
  return record;
}

std::optional<StepRecord> Session::Impl::step(const RateOfStep& rate, bool ahead) {
  using Clock = std::chrono::steady_clock;
  const bool begun = std::exchange(begun_, false);
  const auto goes_on = [this](std::int64_t steps) {
    return steps < plan_.options.steps && !agrees_to_stop(steps);
  };
  if (!begun && !goes_on(steps_)) return std::nullopt;
  const bool copies = wants_copy();
  ahead = ahead && !copies && *plan_.options.overlap_steps && goes_on(steps_ + 1);
  const std::size_t program = copies ? snapshot_ : kTraining;
  const bool is_traced = trace_ != nullptr && trace_->wants_step(steps_);
  StepRecord record;
  std::string exhausted;
  const auto job = [&](RankSeat& seat) {
    const Clock::time_point begin = begun ? last_ended_ : Clock::now();
    if (!begun) seat.executor.begin_step(steps_, rate, program);
    if (ahead) seat.executor.begin_step(steps_ + 1, planned_rate());
    const StepResult result = seat.executor.finish_step();
    if (is_traced) trace_->add(seat.rank, program, steps_, seat.executor.spans());
    if (!leads(seat)) return;
    last_ended_ = Clock::now();
    const double seconds = std::chrono::duration<double>(last_ended_ - begin).count();
    record = record_of(result, seat, seconds);
    if (result.loss_scale) exhausted = result.loss_scale->non_finite;
  };
  traced(program, [&] {
    run(job);
    if (is_traced) write_trace();
  });
  ++steps_;
  begun_ = ahead;
  skipped_ = record.skipped ? skipped_ + 1 : skipped_;
  if (copies) saver_->write();
  require(exhausted.empty(), ErrorCode::kInvalidArgument, "training diverged: in step ",
          record.step, " ", exhausted, " is not finite at a loss scale of ",
          record.loss_scale.value_or(0.0),
          ", which cannot be lowered any more; lower the learning rate, warm it up for longer, "
          "clip gradients, or use `precision` bf16, which needs no loss scaling");
  return record;
}

EvaluationRecord Session::Impl::evaluate() {
  require(evaluated_.has_value(), ErrorCode::kInvalidArgument,
          "the session has no data to evaluate with: give it some as its last argument");
  EvaluationRecord record{.step = steps_};
  const bool is_traced = trace_ != nullptr && trace_->of_evaluation();
  const auto job = [&](RankSeat& seat) {
    const auto trace_batch = [&](std::int64_t batch) {
      if (is_traced && trace_->wants(batch)) {
        trace_->add(seat.rank, kEvaluation, batch, seat.executor.spans());
      }
    };
    const StepResult result =
        seat.executor.evaluate(kEvaluation, plan_.options.evaluation_samples, trace_batch);
    if (!leads(seat)) return;
    record.loss = result.items > 0 ? result.loss : std::numeric_limits<double>::quiet_NaN();
    record.tokens = result.items;
    if (result.classified == result.items) record.correct = result.correct;
    record.classes = result.classes;
    record.positions = plan_.options.evaluation_samples * evaluated_->target_shape(1).numel();
    record.perplexity = std::exp(record.loss);
  };
  traced(kEvaluation, [&] {
    run_alone(job);
    if (is_traced) write_trace();
  });
  require(record.tokens > 0, ErrorCode::kInvalidArgument,
          "the data to evaluate with has no target that counts: all are -1 or -100");
  return record;
}

Session::Outputs Session::Impl::forward(const TensorView& inputs, const TensorView& targets) {
  require(plan_.forward.has_value(), ErrorCode::kInvalidArgument,
          "the run was planned without forward passes of one's own: set TrainerOptions::forward");
  const std::int64_t of_sample = given_.sample_numel();
  require(inputs.dtype == source_.input_dtype() && inputs.is_contiguous() && inputs.numel() > 0 &&
              inputs.numel() % of_sample == 0,
          ErrorCode::kInvalidArgument, "forward: inputs ", inputs.shape, " of ",
          to_string(inputs.dtype), " are not whole samples, each ", source_.input_shape(1), " of ",
          to_string(source_.input_dtype()));
  const std::int64_t of_targets = source_.target_shape(1).numel();
  require(!targets || (targets.dtype == source_.target_dtype() && targets.is_contiguous() &&
                       targets.numel() == inputs.numel() / of_sample * of_targets),
          ErrorCode::kInvalidArgument, "forward: targets ", targets.shape, " of ",
          to_string(targets.dtype), " are not those of ", inputs.numel() / of_sample,
          " samples, each ", source_.target_shape(1), " of ", to_string(source_.target_dtype()));
  given_.give(inputs, targets);
  const std::int64_t samples = given_.samples(), micro_batch = plan_.options.micro_batch;
  const std::int64_t per_pass = evaluation_division(plan_.options).samples_per_step();
  ForwardOutputs outputs(samples, micro_batch);
  const auto add = [&](std::int64_t first, const Shape& shape, std::span<const float> values) {
    outputs.add(first, shape, values);
  };
  run_alone([&](RankSeat& seat) {
    for (std::int64_t pass = 0; pass * per_pass < samples; ++pass) {
      seat.executor.predict(forward_, pass, add);
    }
  });
  run([&](RankSeat& seat) {
    if (seat.leaders != nullptr) outputs.exchange(*seat.leaders);
  });
  return {outputs.shape(), outputs.take_values()};
}

std::vector<RankUse> Session::Impl::use() {
  std::vector<RankUse> all(static_cast<std::size_t>(plan_.options.ranks));
  const World* const world = plan_.options.world.get();
  run_alone([&](RankSeat& seat) {
    const RankUse own{seat.memory.peak(), seat.memory.peak(Tier::kHost), seat.state.disk_bytes(),
                      seat.executor.traffic()};
    if (world == nullptr) {
      all[static_cast<std::size_t>(seat.rank)] = own;
      return;
    }
    const auto place = static_cast<std::size_t>(seat.rank - world->first_rank());
    auto gathered = gather(*world->groups()[place], own);
    if (leads(seat)) all = std::move(gathered);
  });
  return all;
}

}  // namespace tessera
