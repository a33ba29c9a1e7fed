#include "tessera/sharding/executor.h"

#include <algorithm>
#include <map>

#include "execution/executor_impl.h"
#include "execution/registration.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/thread_team.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/sample_division.h"

namespace tessera {
namespace {

bool updates_early(const Program& program) {
  return program.schedule->purpose == Purpose::kTrain && !program.schedule->updates_wait_for_norm;
}

/// The words of CrossEntropyArgs::hits, if any program evaluates.
std::int64_t hit_words_of(const std::vector<Program>& programs) {
  const auto evaluates =
      std::ranges::find(programs, Purpose::kEvaluate,
                        [](const Program& program) { return program.schedule->purpose; });
  if (evaluates == programs.end()) return 0;
  return hit_words(evaluates->schedule->layers.back().counted_classes);
}

std::vector<const Schedule*> schedules_of(const std::vector<Program>& programs) {
  std::vector<const Schedule*> schedules;
  for (const Program& program : programs) schedules.push_back(program.schedule);
  return schedules;
}

}  // namespace

std::vector<double> hyperparameter_values(const OptimizerOptions& options) {
  std::vector<std::pair<std::string_view, double>> given;
  for (const auto& [name, value] : options.hyperparameters) given.emplace_back(name, value);
  return hyperparameter_values(find_optimizer(options.name), given);
}

std::vector<OptimizerTensor> optimizer_tensors(const OptimizerOptions& options) {
  std::vector<OptimizerTensor> tensors;
  for (const OptimizerState& state :
       optimizer_states(find_optimizer(options.name), hyperparameter_values(options))) {
    tensors.push_back({std::string(state.name), state.dtype, state.block});
  }
  return tensors;
}

bool scale_parameter(const OptimizerOptions& options) {
  const auto& rows = find_optimizer(options.name).hyperparameters;
  const auto found = std::ranges::find(rows, "scale_parameter", &Hyperparameter::name);
  return found != rows.end() &&
         hyperparameter_values(options)[static_cast<std::size_t>(found - rows.begin())] != 0.0;
}

Executor::Impl::Impl(TrainingState& state, const Model& model, const std::vector<Program>& programs,
                     RankGroups& groups, Memory& memory, ExecutorOptions options)
    : state_(state),
      model_(model),
      layout_(state.layout()),
      groups_(groups),
      options_(std::move(options)),
      device_(memory.device()),
      kernels_(kernels_for(memory.device())),
      optimizer_(find_optimizer(options_.optimizer.name)),
      hyperparameters_(hyperparameter_values(options_.optimizer)),
      lanes_(memory.device(), groups, options_, schedules_of(programs)),
      exchange_(layout_, options_.optimizer.clip_norm,
                options_.loss_scaling ? &options_.loss_scaling->rule : nullptr, groups.control(),
                memory, options_.steps_in_flight, state.is_offloaded(), hit_words_of(programs),
                std::ranges::any_of(programs, updates_early)) {
  require(std::ranges::none_of(programs, updates_early) ||
              (options_.optimizer.clip_norm <= 0.0 && !options_.loss_scaling),
          ErrorCode::kInvalidArgument,
          "updates of this schedule do not wait for the gradient norm, ", "which ",
          options_.loss_scaling ? "loss scaling" : "clipping",
          " needs: plan the step with updates_wait_for_norm, or run it with clip_norm 0 and ",
          "without loss scaling");
  require(optimizer_tensors(options_.optimizer) == state.options().optimizer_tensors,
          ErrorCode::kInvalidArgument, "the training state was made for another optimizer than ",
          options_.optimizer.name, " with these hyperparameters");
  optimizer_steps_ = std::make_unique<OptimizerRunner>(state_, options_, device_);
  run_apart([&](Stream& stream) {
    state_.initialize(options_.seed, stream);
    pool_ = std::make_unique<BufferPool>(schedules_of(programs), memory, stream);
  });
  for (const Program& program : programs) {
    programs_.push_back(std::make_unique<Loaded>(*this, program, memory));
    const std::string note = register_buffers(*program.schedule, programs_.back()->buffers, groups);
    if (registration_note_.empty()) registration_note_ = note;
  }
  begin_histories();
  if (options_.loss_scaling) set_loss_scaler(options_.loss_scaling->initial_state());
  prepare(memory);
  // Each step writes the loss scale before it is read.
  run_apart([&](Stream& stream) { groups.connect_pairs(exchange_.loss_scale(), stream); });
}

const Executor::Impl::Loaded* Executor::Impl::find_alike(const Program& program) const {
  const auto found = std::ranges::find_if(programs_, [&](const auto& other) {
    return &other->source == program.source &&
           other->schedule.purpose == program.schedule->purpose &&
           other->schedule.micro_steps == program.schedule->micro_steps;
  });
  return found == programs_.end() ? nullptr : found->get();
}

Executor::Impl::Loaded::Loaded(Impl& impl, const Program& program, Memory& memory)
    : Loaded(impl, program, memory, impl.find_alike(program)) {}

Executor::Impl::Loaded::Loaded(Impl& impl, const Program& program, Memory& memory,
                               const Loaded* alike)
    : schedule(*program.schedule),
      source(*program.source),
      has_snapshot(schedule.find(BufferKind::kSnapshot) >= 0),
      number(impl.programs_.size()),
      buffers(schedule, impl.state_, *impl.pool_),
      batches(alike != nullptr ? alike->batches
                               : std::make_shared<MicroBatches>(
                                     schedule, source, impl.state_.rank(), memory,
                                     impl.options_.micro_batch, impl.options_.steps_in_flight)),
      keys(schedule.purpose != Purpose::kTrain ? nullptr
           : alike != nullptr
               ? alike->keys
               : std::make_shared<StepKeys>(schedule, impl.layout_, *batches, impl.options_.seed,
                                            memory, impl.options_.steps_in_flight)),
      predicts(program.predicts),
      layers(schedule, impl.layout_, impl.model_, source, *batches, keys.get(), buffers, memory,
             impl.options_, predicts),
      context(schedule, buffers, impl.kernels_, impl.groups_, impl.exchange_, layers, impl.copies_,
              *impl.optimizer_steps_),
      graph(schedule.purpose == Purpose::kTrain && !has_snapshot
                ? StepGraph::make(impl.device_, schedule, impl.lanes_, impl.groups_, impl.options_)
                : nullptr),
      waited_for(schedule.actions.size()),
      events(schedule.actions.size()) {
  for (const Action& action : schedule.actions) {
    for (const int wait : action.waits) waited_for[static_cast<std::size_t>(wait)] = true;
    if (impl.options_.steps_in_flight == 1) continue;
    for (const int wait : action.previous_waits) waited_for[static_cast<std::size_t>(wait)] = true;
  }
  for (const Action& action : schedule.actions) names.push_back(describe(schedule, action));
}

/// Has a GPU's libraries prepared once: the first step neither plans nor takes the driver's memory.
void Executor::Impl::prepare(Memory& memory) {
  if (options_.device != DeviceKind::kCuda) return;
  scratch_ = Tensor::empty(memory, Shape{kCudaScratchBytes}, DType::kUInt8,
                           MemoryCategory::kWorkspace, "scratch of GEMMs");
  auto* const compute = dynamic_cast<CudaStream*>(&lanes_.of(Lane::kCompute));
  if (compute == nullptr) return;  // simulated
  compute->lend_scratch(scratch_.view().data, static_cast<std::size_t>(kCudaScratchBytes));
  for (const auto& program : programs_) {
    if (program->has_snapshot) continue;  // the passes of a program before it
    program->layers.prepare(exchange_.loss_scale(), exchange_.loss_sum(), exchange_.hits(),
                            *compute);
    program->batches->expect_classes(program->layers.classes());
  }
}

/// Runs kernels of no step. The thread that calls a CPU's kernel runs it.
void Executor::Impl::run_apart(const std::function<void(Stream& compute)>& work) {
  const TeamLimit threads(options_.threads);
  work(lanes_.of(Lane::kCompute));
}

/// The samples are cut into steps of the schedule; the last one reads on beyond them, and the
/// source says which of those do not count.
StepResult Executor::Impl::evaluate(std::size_t number, std::int64_t samples,
                                    const std::function<void(std::int64_t)>& after_batch) {
  const Schedule& schedule = programs_.at(number)->schedule;
  require(schedule.purpose == Purpose::kEvaluate, ErrorCode::kInvalidArgument,
          "this schedule trains; evaluation needs one that was planned for it");
  require(!programs_.at(number)->predicts, ErrorCode::kInvalidArgument,
          "this program predicts and has no losses to evaluate");
  const std::int64_t steps =
      divide_samples(schedule.mesh, schedule.micro_steps, options_.micro_batch).steps_for(samples);
  std::array<std::int64_t, kExactSumWords> losses{};
  StepResult result;
  for (std::int64_t step = 0; step < steps; ++step) {
    begin_step(
        step, [](std::int64_t) { return 0.0; }, number);
    result.items += finish_step().items;
    const std::span<const std::int64_t> words = exchange_.loss_words(0);
    for (std::size_t w = 0; w < losses.size(); ++w) losses[w] += words[w];
    const std::span<const std::int64_t> hits = exchange_.hits(0);
    result.correct += hits[0];
    result.classified += hits[1];
    result.classes.resize((hits.size() - kHitWords) / kClassHitWords);
    for (std::size_t c = 0; c < result.classes.size(); ++c) {
      const auto of_class = hits.subspan(kHitWords + kClassHitWords * c, kClassHitWords);
      result.classes[c].add({of_class[0], of_class[1], of_class[2]});
    }
    if (after_batch) after_batch(step);
  }
  const auto sum = std::bit_cast<double>(exact_sum_bits(losses.data()));
  result.loss = result.items > 0 ? sum / static_cast<double>(result.items) : 0.0;
  return result;
}

void Executor::Impl::predict(std::size_t number, std::int64_t step, const OnPrediction& receive) {
  const Loaded& program = *programs_.at(number);
  require(program.predicts, ErrorCode::kInvalidArgument,
          "this program takes losses; what the last layer returns is kept by one that predicts");
  begin_step(
      step, [](std::int64_t) { return 0.0; }, number);
  finish_step();
  const bool has_last =
      program.schedule.is_here(static_cast<int>(program.schedule.layers.size()) - 1);
  for (int m = 0; has_last && m < program.schedule.micro_steps; ++m) {
    const LayerRunner::Prediction& prediction = program.layers.prediction(m);
    receive(program.batches->first_sample_of(step, m), prediction.shape, prediction.values);
  }
}

/// In a catch: peers must not wait for what will never be issued, and what was issued must not
/// outlive its data. Rethrows, unless it is a consequence of what has happened on a lane meanwhile.
void Executor::Impl::abandon(std::string_view reason) {
  const std::exception_ptr failure = std::current_exception();
  const std::string told = lanes_.place_of_rank() + std::string(reason);
  groups_.abort(told);
  if (options_.recorder != nullptr) options_.recorder->fail(told);
  try {
    lanes_.synchronize();
  } catch (...) {
    if (is_consequence(failure) && !is_consequence(std::current_exception())) throw;
  }
  rethrow_explained(failure);
}

/// A message that has come too late, or not at all, has a cause on another rank.
void Executor::Impl::rethrow_explained(const std::exception_ptr& failure) const {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    const bool elsewhere =
        error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kTimeout;
    if (!elsewhere || options_.recorder == nullptr) throw;
    const std::string explanation = options_.recorder->explanation();
    if (explanation.empty()) throw;
    throw Error(error.code(), concat(error.what(), "; ", explanation));
  }
}

std::vector<std::string> Executor::Impl::notes() {
  std::vector<std::string> notes;
  if (!registration_note_.empty()) notes.push_back(registration_note_);
  auto* const stream = dynamic_cast<CudaStream*>(&lanes_.of(Lane::kCompute));
  if (stream != nullptr && !cuda_attention(*stream).unforeseen.empty()) {
    notes.push_back(concat("attention runs on our own kernels, not on cuDNN: ",
                           cuda_attention(*stream).unforeseen));
  }
  return notes;
}

Executor::Executor(TrainingState& state, const Model& model, std::vector<Program> programs,
                   RankGroups& groups, Memory& memory, ExecutorOptions options) try
    : impl_(std::make_unique<Impl>(state, model, programs, groups, memory, std::move(options))) {
} catch (const std::exception& error) {
  groups.abort(error.what());  // peers may be waiting in a step already; rethrows
}

Executor::~Executor() = default;

StepResult Executor::run_step(std::int64_t step, double learning_rate, std::size_t program) {
  begin_step(step, learning_rate, program);
  return impl_->finish_step();
}

void Executor::begin_step(std::int64_t step, double learning_rate, std::size_t program) {
  impl_->begin_step(
      step, [learning_rate](std::int64_t) { return learning_rate; }, program);
}

void Executor::begin_step(std::int64_t step, const RateOfStep& rate, std::size_t program) {
  impl_->begin_step(step, rate, program);
}

LossScalerState Executor::loss_scaler() const { return impl_->loss_scaler(); }
void Executor::set_loss_scaler(const LossScalerState& state) { impl_->set_loss_scaler(state); }

StepResult Executor::finish_step() { return impl_->finish_step(); }

StepResult Executor::evaluate(std::size_t program, std::int64_t samples,
                              const std::function<void(std::int64_t)>& after_batch) {
  return impl_->evaluate(program, samples, after_batch);
}

void Executor::predict(std::size_t program, std::int64_t step, const OnPrediction& receive) {
  impl_->predict(program, step, receive);
}

void Executor::take_snapshot(std::size_t program, std::int64_t step) {
  impl_->take_snapshot(program, step);
}
void Executor::prepare_snapshot(std::size_t program) { impl_->prepare_snapshot(program); }
TensorView Executor::snapshot(std::size_t program, const std::string& state_tensor) const {
  return impl_->snapshot(program, state_tensor);
}
void Executor::run_apart(const std::function<void(Stream&)>& work) {
  impl_->run_apart_from_steps(work);
}

void Executor::set_parameters(const ParameterValues& values) { impl_->set_parameters(values); }

std::vector<Fp8History> Executor::fp8_histories() { return impl_->fp8_histories(); }

void Executor::set_fp8_histories(const std::vector<Fp8History>& histories) {
  impl_->set_fp8_histories(histories);
}

void Executor::gather_parameters(const std::function<void(FullParameter parameter)>& receive) {
  impl_->gather_parameters(receive);
}

std::vector<FullParameter> Executor::gather_parameters() {
  std::vector<FullParameter> all;
  gather_parameters([&all](FullParameter parameter) { all.push_back(std::move(parameter)); });
  return all;
}

Traffic Executor::traffic() const { return impl_->traffic(); }

const std::vector<ActionSpan>& Executor::spans() const { return impl_->spans(); }

std::vector<std::string> Executor::notes() { return impl_->notes(); }

}  // namespace tessera
