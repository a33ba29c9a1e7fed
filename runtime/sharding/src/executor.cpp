#include "tessera/sharding/executor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <span>

#include "lanes.h"
#include "layer_runner.h"
#include "micro_batches.h"
#include "optimizer_runner.h"
#include "registration.h"
#include "step_buffers.h"
#include "step_exchange.h"
#include "step_graph.h"
#include "step_keys.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/thread_team.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/philox.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/sample_division.h"
#include "tessera/sharding/step_context.h"

namespace tessera {
namespace {

bool updates_early(const Program& program) {
  return program.schedule->purpose == Purpose::kTrain && !program.schedule->updates_wait_for_norm;
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

class Executor::Impl {
 public:
  Impl(TrainingState& state, const Model& model, const std::vector<Program>& programs,
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
                  memory, options_.steps_in_flight, state.is_offloaded(),
                  std::ranges::any_of(programs,
                                      [](const Program& program) {
                                        return program.schedule->purpose == Purpose::kEvaluate;
                                      }),
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
      const std::string note =
          register_buffers(*program.schedule, programs_.back()->buffers, groups);
      if (registration_note_.empty()) registration_note_ = note;
    }
    if (options_.loss_scaling) set_loss_scaler(options_.loss_scaling->initial_state());
    prepare(memory);
    // Each step writes the loss scale before it is read.
    run_apart([&](Stream& stream) { groups.connect_pairs(exchange_.loss_scale(), stream); });
  }
  /// What is still enqueued copies to and from memory that goes first.
  ~Impl() {
    try {
      lanes_.synchronize();
    } catch (...) {  // NOLINT: whoever asked for the work has been told
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void begin_step(std::int64_t step, const RateOfStep& rate, std::size_t program);
  StepResult finish_step();
  LossScalerState loss_scaler() const {
    require_no_step();
    return scaler_;
  }
  void set_loss_scaler(const LossScalerState& state);
  StepResult evaluate(std::size_t program, std::int64_t samples,
                      const std::function<void(std::int64_t)>& after_batch);
  void predict(std::size_t program, std::int64_t step, const OnPrediction& receive);
  void take_snapshot(std::size_t program, std::int64_t step);
  void prepare_snapshot(std::size_t program);
  TensorView snapshot(std::size_t program, const std::string& state_tensor) const {
    const SnapshotBuffers* const host = programs_.at(program)->host.get();
    require(host != nullptr, ErrorCode::kInvalidArgument, "no snapshot has been taken");
    return host->at(state_tensor);
  }
  void run_apart_from_steps(const std::function<void(Stream&)>& work) {
    require_no_step();
    run_apart(work);
  }
  void set_parameters(const ParameterValues& values) {
    require_no_step();
    run_apart([&](Stream& stream) { state_.set_parameters(values, stream); });
  }
  void gather_parameters(const std::function<void(FullParameter)>& receive);
  Traffic traffic() const {
    Traffic all = groups_.traffic();
    all += copies_;
    return all;
  }
  const std::vector<ActionSpan>& spans() const { return spans_; }
  std::vector<std::string> notes();

 private:
  /// A schedule, and what it takes to run it.
  struct Loaded {
    Loaded(Impl& impl, const Program& program, Memory& memory);

    const Schedule& schedule;
    const BatchSource& source;
    const bool has_snapshot;
    const std::size_t number;
    StepBuffers buffers;
    std::unique_ptr<SnapshotBuffers> host;  ///< of the snapshot, once there has been one
    std::shared_ptr<MicroBatches> batches;
    std::shared_ptr<StepKeys> keys;  ///< of a schedule that trains
    const bool predicts;
    LayerRunner layers;
    StepContext context;
    std::unique_ptr<StepGraph> graph;
    Traffic copies_of_step;  ///< as the last one that was issued has counted them
    std::vector<bool> waited_for;
    std::vector<Event> events;
    std::vector<std::string> names;  ///< of the actions, in words

   private:
    Loaded(Impl& impl, const Program& program, Memory& memory, const Loaded* alike);
  };

  /// A step that has begun.
  struct Begun {
    std::size_t program;
    std::size_t turn;  ///< of what the host gives it and gets from it
    std::chrono::steady_clock::time_point at;
    Event results;
    std::int64_t step;
    std::int64_t skipped;       ///< that the host knew of
    std::vector<double> rates;  ///< learning rates, if so many steps were skipped, one more, ...
  };

  void require_no_step() const {
    require(begun_.empty(), ErrorCode::kInvalidArgument,
            "a step has begun: finish_step() comes first");
  }
  void enter(HostPhase phase, std::size_t program, std::int64_t step) {
    if (options_.recorder != nullptr) options_.recorder->begin_phase(phase, program, step);
  }
  void run_apart(const std::function<void(Stream& compute)>& work);
  [[noreturn]] void abandon(std::string_view reason);
  [[noreturn]] void rethrow_explained(const std::exception_ptr& failure) const;
  void issue(Loaded& program, std::int64_t step, int index);
  StepExchange::Given given_of(std::int64_t step, std::int64_t items,
                               std::span<const double> rates) const;
  void judge(const Begun& step, StepResult& result);
  std::string find_non_finite(std::size_t turn);
  void prepare(Memory& memory);
  std::span<const float> gather_flat(const FlatId& id, DeviceArray<float>& whole);
  std::vector<std::byte> gather_quantized(const FlatId& id);
  void gather_own_flat(const FlatId& id, std::int64_t numel, DeviceArray<float>& whole,
                       Stream& stream);
  void gather_own_bytes(const FlatId& id, DeviceArray<std::uint8_t>& whole, Stream& stream);
  void share_flat(const FlatId& id, const TensorView& whole, Stream& stream);
  /// Whether this pipeline rank keeps a unit.
  bool has_unit(int unit) const {
    const Schedule& schedule = programs_.front()->schedule;
    return schedule.is_here(schedule.units[static_cast<std::size_t>(unit)]);
  }
  std::vector<float> decoded(const FlatTensor& tensor, std::span<const std::byte> flat);
  /// One before it, of the same batches; null if there is none.
  const Loaded* find_alike(const Program& program) const;

  TrainingState& state_;
  const Model& model_;
  const ModelLayout& layout_;
  RankGroups& groups_;
  ExecutorOptions options_;
  Device& device_;
  const KernelTable& kernels_;
  const Optimizer& optimizer_;
  const std::vector<double> hyperparameters_;
  std::unique_ptr<OptimizerRunner> optimizer_steps_;
  Lanes lanes_;
  StepExchange exchange_;
  std::unique_ptr<BufferPool> pool_;
  std::vector<std::unique_ptr<Loaded>> programs_;
  Tensor scratch_;  ///< of the compute lane, on a CUDA device
  std::string registration_note_;
  Traffic copies_;
  std::deque<Begun> begun_;   ///< the oldest first
  Event results_;             ///< of the step that is being issued, once they have been
  LossScalerState scaler_{};  ///< after the last step that is finished
  std::chrono::milliseconds longest_step_{0};
  std::vector<ActionSpan> spans_;
};

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

/// What a GPU's libraries need once: the first step neither plans nor takes memory from the driver.
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

/// What the optimizer reads is chosen on the device, by how many of the steps before are skipped,
/// of which those in flight have not told the host yet: each of these adds a possibility.
StepExchange::Given Executor::Impl::given_of(std::int64_t step, std::int64_t items,
                                             std::span<const double> rates) const {
  StepExchange::Given given{
      .items = items,
      .skipped = scaler_.skipped,
      .rounding = {options_.seed, stream_of("rounding", static_cast<std::uint64_t>(step))}};
  std::int64_t count = step + 1 - scaler_.skipped;
  for (const double rate : rates) {
    given.optimizer.push_back(
        optimizer_scalars(optimizer_, hyperparameters_, rate, std::max<std::int64_t>(1, count--)));
  }
  return given;
}

void Executor::Impl::begin_step(std::int64_t step, const RateOfStep& rate, std::size_t number) {
  Loaded& program = *programs_.at(number);
  const bool first = begun_.empty();
  const std::size_t turn = first ? 0 : 1 - begun_.back().turn;
  require(static_cast<int>(begun_.size()) < options_.steps_in_flight &&
              (first || begun_.back().program == number),
          ErrorCode::kInvalidArgument, begun_.size(), " steps have begun, and this executor has ",
          options_.steps_in_flight, " in flight at most, of one program: finish_step() first");
  const auto now = std::chrono::steady_clock::now();
  if (first) lanes_.take_spans();  // of what ran between steps
  if (first && program.has_snapshot) prepare_snapshot(number);
  try {
    enter(HostPhase::kReads, number, step);
    const std::int64_t items = program.batches->read(step, turn);
    enter(HostPhase::kIssues, number, step);
    if (program.keys != nullptr) program.keys->begin_step(step, turn);
    std::vector<double> rates{rate(step - scaler_.skipped)};
    if (options_.loss_scaling) {
      for (std::size_t more = 1; more <= begun_.size(); ++more) {
        rates.push_back(rate(step - scaler_.skipped - static_cast<std::int64_t>(more)));
      }
    }
    // Every stage reads the batches; the targets count where the losses are.
    const int last = static_cast<int>(program.schedule.layers.size()) - 1;
    const std::int64_t counted = program.schedule.is_here(last) ? items : 0;
    exchange_.begin_step(turn, given_of(step, counted, rates), program.graph != nullptr);
    Stream& compute = lanes_.of(Lane::kCompute);
    lanes_.end_action(Lane::kCompute);
    program.batches->send(turn, compute);
    if (program.keys != nullptr) program.keys->send(turn, compute);
    bool issued = false;  // and not replayed
    const Traffic copied = std::exchange(copies_, {});
    const auto put = [&](int action) {
      issued = true;
      issue(program, step, action);
    };
    if (program.graph != nullptr) {
      results_ = program.graph->run({.number = step + 1, .longest = longest_step_}, exchange_, put);
    } else {
      const auto actions = static_cast<int>(program.schedule.actions.size());
      for (int i = 0; i < actions; ++i) put(i);
    }
    if (issued) program.copies_of_step = copies_;
    copies_ = copied;
    copies_ += program.copies_of_step;
    begun_.push_back(
        {number, turn, now, std::exchange(results_, {}), step, scaler_.skipped, std::move(rates)});
  } catch (const std::exception& error) {
    abandon(error.what());
  } catch (...) {
    abandon("an unknown exception");
  }
}

void Executor::Impl::prepare_snapshot(std::size_t number) {
  Loaded& program = *programs_.at(number);
  require(program.has_snapshot, ErrorCode::kInvalidArgument, "this schedule copies nothing");
  require_no_step();
  if (program.host != nullptr) return;
  program.host = std::make_unique<SnapshotBuffers>(program.schedule, device_);
  program.buffers.take(*program.host);
  lanes_.open(Lane::kCopyOut);
}

void Executor::Impl::take_snapshot(std::size_t number, std::int64_t step) {
  prepare_snapshot(number);
  Loaded& program = *programs_[number];
  for (std::size_t i = 0; i < program.schedule.actions.size(); ++i) {
    if (!copies_to_snapshot(program.schedule, program.schedule.actions[i])) continue;
    issue(program, step, static_cast<int>(i));
  }
  lanes_.synchronize();
}

StepResult Executor::Impl::finish_step() {
  require(!begun_.empty(), ErrorCode::kInvalidArgument, "no step has begun");
  const Begun step = std::move(begun_.front());
  begun_.pop_front();
  enter(HostPhase::kWaits, step.program, step.step);
  try {
    // A step with none behind it is over when its updates are.
    if (!begun_.empty()) {
      try {
        step.results.synchronize();
      } catch (...) {
        lanes_.synchronize();  // with the cause, if a lane knows it
        throw;
      }
    }
    if (begun_.empty() || lanes_.failed()) lanes_.synchronize();
  } catch (...) {
    rethrow_explained(std::current_exception());
  }
  enter(HostPhase::kOutside, step.program, step.step);
  using std::chrono::milliseconds;
  longest_step_ = std::max(longest_step_, std::chrono::duration_cast<milliseconds>(
                                              std::chrono::steady_clock::now() - step.at));
  if (options_.trace && begun_.empty()) spans_ = lanes_.take_spans();
  DiskStore* const disk = state_.disk();
  const bool trains = programs_[step.program]->schedule.purpose == Purpose::kTrain;
  if (disk != nullptr && trains && begun_.empty()) disk->mark(step.step + 1);
  StepResult result{.loss = exchange_.mean_loss(step.turn),
                    .gradient_norm = exchange_.gradient_norm(step.turn),
                    .items = exchange_.total_items(step.turn)};
  judge(step, result);
  return result;
}

void Executor::Impl::judge(const Begun& step, StepResult& result) {
  const auto more = static_cast<std::size_t>(scaler_.skipped - step.skipped);
  result.learning_rate = step.rates.at(more);
  const DeviceLossScaler* const scaler = exchange_.scaler();
  if (scaler == nullptr || programs_[step.program]->schedule.purpose != Purpose::kTrain) return;
  scaler_ = scaler->state(step.turn);
  result.loss_scale = scaler->result(step.turn);
  if (result.loss_scale->exhausted) result.loss_scale->non_finite = find_non_finite(step.turn);
}

/// Every rank knows of its own gradients, and all have come here.
std::string Executor::Impl::find_non_finite(std::size_t turn) {
  std::int64_t first = exchange_.scaler()->first_bad(turn);
  if (ProcessGroup* const control = groups_.control(); control != nullptr) {
    DeviceArray<std::int64_t> all(device_, control->size());
    all.host()[control->rank()] = first;
    Stream& stream = lanes_.of(Lane::kReduce);
    all.upload(stream);
    control->all_reduce(all.view(), stream);
    all.download(stream);
    stream.synchronize();
    first = *std::min_element(all.host(), all.host() + all.numel());
  }
  const GradientPlace place = gradient_place(first);
  const Unit& unit = layout_.units.at(static_cast<std::size_t>(place.unit));
  std::int64_t element = place.element;
  for (const FlatParameter& flat : unit.flats) {  // one after the other, trainable ones first
    for (const FlatTensor& tensor : flat.tensors) {
      if (element >= tensor.offset + tensor.spec.shape.numel()) continue;
      return concat("the gradient of ", tensor.spec.name, " in unit ", unit.name);
    }
    if (element < flat.padded_numel) break;
    element -= flat.padded_numel;
  }
  return concat("the gradient of padding in unit ", unit.name);
}

void Executor::Impl::set_loss_scaler(const LossScalerState& state) {
  require_no_step();
  scaler_.skipped = state.skipped;
  DeviceLossScaler* const scaler = exchange_.scaler();
  if (scaler == nullptr) return;
  scaler_ = state;
  Stream& stream = lanes_.of(Lane::kReduce);
  scaler->set(state, stream);
  stream.synchronize();
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
    result.correct += exchange_.hits(0)[0];
    result.classified += exchange_.hits(0)[1];
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

/// What has come too late, or not at all, has a cause on another rank.
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

/// Issues one action on its lane: waits, work, and an event if somebody waits for it.
void Executor::Impl::issue(Loaded& program, std::int64_t step, int index) {
  const auto i = static_cast<std::size_t>(index);
  const Action& action = program.schedule.actions[i];
  Stream& stream = lanes_.of(action.lane);
  const StepGraph* const graph =
      program.graph != nullptr && program.graph->capturing() ? program.graph.get() : nullptr;
  for (const int wait : action.waits) {
    if (graph != nullptr && !graph->waits_inside(index, wait)) continue;
    stream.wait(program.events[static_cast<std::size_t>(wait)]);
  }
  if (graph != nullptr) {
    graph->wait_for_previous(index, stream);
  } else if (!begun_.empty()) {
    // Not issued again yet, so these are the previous step's events.
    for (const int wait : action.previous_waits) {
      stream.wait(program.events[static_cast<std::size_t>(wait)]);
    }
  }
  const auto run = action.operation->run;
  const Work work{.name = program.names[i],
                  .action = index,
                  .seconds = options_.cost ? options_.cost(program.schedule, action) : 0.0,
                  .step = step,
                  .program = static_cast<int>(program.number),
                  .goes_on = is_collective(action) || action.operation->on_host};
  const auto announce = [this, &action, step] {
    if (options_.before_action) options_.before_action(state_.rank(), step, action);
  };
  if (is_collective(action) || action.operation->on_host) {
    // Process groups and copies submit tasks of their own, which know of no action. An empty one
    // before them takes the action's cost, and begins its span.
    stream.submit(work, announce);
    run(program.context, action, stream);
  } else if (run != nullptr) {  // else its event alone: the slot is free again
    stream.submit(work, [&program, &action, run, &stream, announce] {
      announce();
      run(program.context, action, stream);
    });
  }
  if (program.waited_for[i]) program.events[i] = stream.record();
  if (action.operation == &operations::kResults && options_.steps_in_flight > 1) {
    results_ = stream.record();
  }
  if (graph != nullptr) graph->tell_next(index, stream);
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

/// Sends what a pipeline rank has put together to all others.
void Executor::Impl::share_flat(const FlatId& id, const TensorView& whole, Stream& stream) {
  const Schedule& schedule = programs_.front()->schedule;
  if (schedule.pipeline_ranks() == 1) return;
  const int owner = schedule.units[static_cast<std::size_t>(id.unit)].rank;
  const ShardNesting& nesting = state_.nesting();
  const int first = owner * (schedule.mesh.world_size() / schedule.pipeline_ranks());
  groups_.control()->broadcast(whole, nesting.index(nesting.all_axes(), first), stream);
}

/// An unsharded flat parameter in fp32, put together from the finest shards of all ranks; `whole`
/// has room for it, and holds it afterwards.
std::span<const float> Executor::Impl::gather_flat(const FlatId& id, DeviceArray<float>& whole) {
  const std::int64_t numel = layout_.flat_of({id.unit, id.flat}).padded_numel;
  Stream& stream = lanes_.of(Lane::kReduce);
  if (has_unit(id.unit)) gather_own_flat(id, numel, whole, stream);
  share_flat(id, whole.view(0, numel), stream);
  whole.download_first(numel, stream);
  stream.synchronize();
  return {whole.host(), static_cast<std::size_t>(numel)};
}

void Executor::Impl::gather_own_flat(const FlatId& id, std::int64_t numel,
                                     DeviceArray<float>& whole, Stream& stream) {
  const ShardNesting& nesting = state_.nesting();
  const StateTensor* const master = state_.find(Role::kMaster, id);
  const StateTensor& tensor = master != nullptr ? *master : *state_.find(Role::kParameter, id);
  const Range finest = nesting.range(numel, nesting.state_axes(), state_.rank());
  const TensorView mine = tensor.view.narrow(0, finest.begin - tensor.range.begin, finest.numel);
  ProcessGroup* const ranks = groups_.state();
  const std::int64_t first = ranks != nullptr ? ranks->rank() * mine.numel() : 0;
  const TensorView shard = whole.view(first, mine.numel());
  if (tensor.tier != Tier::kDisk) {
    stream.submit({.name = "export"}, [&] { kernels_.cast({.src = mine, .dst = shard}, stream); });
  } else {
    state_.read(tensor.name, finest.begin,
                {whole.host() + first, static_cast<std::size_t>(mine.numel())}, stream);
    whole.upload_first(numel, stream);
  }
  if (ranks != nullptr) ranks->all_gather(shard, whole.view(0, numel), stream);
  stream.synchronize();  // the task refers to what is here
}

/// The same of a quantised one, in bytes.
std::vector<std::byte> Executor::Impl::gather_quantized(const FlatId& id) {
  const std::int64_t bytes = layout_.flat_of({id.unit, id.flat}).padded_numel;
  Stream& stream = lanes_.of(Lane::kReduce);
  DeviceArray<std::uint8_t> whole(device_, bytes);
  if (has_unit(id.unit)) gather_own_bytes(id, whole, stream);
  share_flat(id, whole.view(), stream);
  whole.download(stream);
  stream.synchronize();
  const auto from = std::as_bytes(std::span(whole.host(), static_cast<std::size_t>(bytes)));
  return {from.begin(), from.end()};
}

void Executor::Impl::gather_own_bytes(const FlatId& id, DeviceArray<std::uint8_t>& whole,
                                      Stream& stream) {
  const ShardNesting& nesting = state_.nesting();
  const StateTensor& tensor = *state_.find(Role::kParameter, id);
  const Range finest = nesting.range(whole.numel(), nesting.state_axes(), state_.rank());
  const std::int64_t offset = finest.begin - tensor.range.begin;
  const TensorView mine = tensor.view.narrow(0, offset, finest.numel);
  ProcessGroup* const ranks = groups_.state();
  const std::int64_t first = ranks != nullptr ? ranks->rank() * mine.numel() : 0;
  const TensorView shard = whole.view(first, mine.numel());
  if (tensor.tier != Tier::kDisk) {
    stream.copy(shard.data, mine.data, static_cast<std::size_t>(mine.bytes()));
  } else {
    const std::span own(whole.host() + first, static_cast<std::size_t>(finest.numel));
    state_.disk()->read(tensor.extent, std::as_writable_bytes(own), offset);
    whole.upload(stream);
  }
  if (ranks != nullptr) ranks->all_gather(shard, whole.view(), stream);
}

std::vector<float> Executor::Impl::decoded(const FlatTensor& tensor,
                                           std::span<const std::byte> flat) {
  std::vector<float> values(static_cast<std::size_t>(tensor.spec.shape.numel()));
  auto* const from = const_cast<std::byte*>(flat.data()) + tensor.offset;
  cpu_kernels().dequantize({.format = tensor.spec.format,
                            .src = TensorView(from, DType::kUInt8, Shape{tensor.numel()}),
                            .dst = TensorView(values.data(), DType::kFloat32, tensor.spec.shape),
                            .joined = tensor.spec.joined},
                           lanes_.of(Lane::kReduce));
  return values;
}

/// Layers are in order of declaration, and so are units: each unit's layers follow one another.
void Executor::Impl::gather_parameters(const std::function<void(FullParameter)>& receive) {
  require_no_step();
  std::vector<std::int64_t>
      largest;  // by index in a unit: elements of those that are not quantised
  for (const Unit& unit : layout_.units) {
    largest.resize(std::max(largest.size(), unit.flats.size()), 1);
    for (std::size_t f = 0; f < unit.flats.size(); ++f) {
      if (!unit.flats[f].quantized) largest[f] = std::max(largest[f], unit.flats[f].padded_numel);
    }
  }
  std::deque<DeviceArray<float>> whole;
  for (const std::int64_t numel : largest) whole.emplace_back(device_, numel);
  int gathered = -1;
  std::vector<std::span<const float>> values(largest.size());
  std::vector<std::vector<std::byte>> bytes(largest.size());
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    for (std::size_t p = 0; p < model_.layers[l]->parameters().size(); ++p) {
      const ParameterAddress& a = layout_.layers[l].parameters[p];
      const Unit& unit = layout_.units[static_cast<std::size_t>(a.unit)];
      for (std::size_t f = 0; a.unit != gathered && f < unit.flats.size(); ++f) {
        const FlatId id{a.unit, static_cast<int>(f)};
        if (unit.flats[f].quantized) {
          bytes[f] = gather_quantized(id);
        } else {
          values[f] = gather_flat(id, whole[f]);
        }
      }
      gathered = a.unit;
      if (!receive) continue;
      const FlatTensor& tensor = layout_.tensor_of(a);
      const auto flat = static_cast<std::size_t>(a.flat);
      if (tensor.is_quantized()) {
        receive({tensor.spec.name, tensor.spec.shape, decoded(tensor, bytes[flat])});
        continue;
      }
      const auto first = values[flat].begin() + tensor.offset;
      receive({tensor.spec.name, tensor.spec.shape,
               std::vector<float>(first, first + tensor.spec.shape.numel())});
    }
  }
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
