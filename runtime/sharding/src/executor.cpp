#include "tessera/sharding/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "lanes.h"
#include "layer_runner.h"
#include "micro_batches.h"
#include "rank_state.h"
#include "registration.h"
#include "step_exchange.h"
#include "step_graph.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/philox.h"

namespace tessera {

class Executor::Impl {
 public:
  Impl(const Schedule& schedule, const ModelLayout& layout, const Model& model,
       const BatchSource& source, RankGroups& groups, Memory& memory, ExecutorOptions options)
      : schedule_(schedule),
        model_(model),
        layout_(layout),
        groups_(groups),
        options_(std::move(options)),
        device_(memory.device()),
        kernels_(kernels_for(memory.device())),
        lanes_(memory.device(), groups, options_),
        state_(schedule, layout, groups.rank(), memory),
        exchange_(schedule, state_, groups.control(), memory),
        batches_(schedule, source, state_, memory, options_.micro_batch),
        layers_(schedule, layout, model, batches_, state_, memory, options_),
        graph_(StepGraph::make(memory.device(), lanes_, groups, options_)),
        waited_for_(schedule.actions.size()),
        events_(schedule.actions.size()) {
    for (const Action& action : schedule.actions) {
      for (const int wait : action.waits) waited_for_[static_cast<std::size_t>(wait)] = true;
    }
    plan_segments();
    run_apart([this](Stream& stream) { state_.initialize(stream, options_.seed); });
    registration_note_ = register_buffers(schedule, state_, groups);
    prepare(memory);
  }

  StepResult run_step(std::int64_t step, double learning_rate);
  void set_parameters(const ParameterValues& values) {
    run_apart([&](Stream& stream) { state_.set_parameters(values, stream); });
  }
  void gather_parameters(const std::function<void(FullParameter)>& receive);
  const std::vector<ActionSpan>& spans() const { return spans_; }
  std::vector<std::string> notes();

 private:
  void run_apart(const std::function<void(Stream& compute)>& work);
  void abandon(std::string_view reason) noexcept;
  void issue_step();
  void issue(int index);
  std::function<void()> computation(int index, Stream& stream);
  void collective(const Action& action, Stream& stream);
  void all_gather_parameters(const Action& action, ProcessGroup& group, Stream& stream);
  void reduce_scatter(const Action& action, ProcessGroup& group, Stream& stream);
  void update(int unit, Stream& stream);
  void plan_segments();
  void prepare(Memory& memory);
  std::vector<float> gather_flat(int unit, bool trainable);

  const Schedule& schedule_;
  const Model& model_;
  const ModelLayout& layout_;
  RankGroups& groups_;
  ExecutorOptions options_;
  Device& device_;
  const KernelTable& kernels_;
  Lanes lanes_;
  RankState state_;
  StepExchange exchange_;
  MicroBatches batches_;
  LayerRunner layers_;
  Tensor scratch_;  ///< of the compute lane, on a CUDA device
  std::unique_ptr<StepGraph> graph_;
  std::vector<bool> waited_for_;
  std::vector<Event> events_;
  std::vector<std::vector<AdamWSegment>> segments_;  ///< by unit, relative to the optimizer shard
  /// By unit: the place of its first element if all units were one.
  std::vector<std::int64_t> first_elements_;
  RandomKey rounding_key_{};  ///< of the step
  std::string registration_note_;
  std::chrono::milliseconds longest_step_{0};
  std::vector<ActionSpan> spans_;
};

/// Where this rank's optimizer shard overlaps each tensor, and with what weight decay.
void Executor::Impl::plan_segments() {
  std::int64_t elements = 0;
  for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u) {
    const Range shard = state_.optimizer_range(u);
    std::vector<AdamWSegment> segments;
    for (const FlatTensor& tensor : state_.flat(u, true).tensors) {
      const std::int64_t begin = std::max(shard.begin, tensor.offset);
      const std::int64_t end = std::min(shard.end(), tensor.offset + tensor.spec.shape.numel());
      if (begin >= end) continue;
      segments.push_back(
          {.begin = begin - shard.begin,
           .end = end - shard.begin,
           .weight_decay = options_.optimizer.weight_decay * tensor.spec.weight_decay_scale});
    }
    segments_.push_back(std::move(segments));
    first_elements_.push_back(elements);
    const std::int64_t numel = state_.flat(u, true).numel;
    elements += (numel + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
  }
}

/// What a GPU's libraries need once: the first step neither plans nor takes memory from the driver.
void Executor::Impl::prepare(Memory& memory) {
  if (options_.device != DeviceKind::kCuda) return;
  scratch_ = Tensor::empty(memory, Shape{kCudaScratchBytes}, DType::kUInt8,
                           MemoryCategory::kWorkspace, "scratch of matrix products");
  auto* const compute = dynamic_cast<CudaStream*>(&lanes_.of(Lane::kCompute));
  if (compute == nullptr) return;  // simulated
  compute->lend_scratch(scratch_.view().data, static_cast<std::size_t>(kCudaScratchBytes));
  layers_.prepare(exchange_.loss_scale(), exchange_.loss_sum(), *compute);
}

/// Runs kernels of no step, and waits for them. The thread that calls a CPU's kernel runs it, and
/// keeps OpenMP threads for it (see [Note: teams of threads]): here it is one that ends with them.
void Executor::Impl::run_apart(const std::function<void(Stream& compute)>& work) {
  if (device_.kind() != DeviceKind::kCpu) return work(lanes_.of(Lane::kCompute));
  const auto stream = device_.create_stream({.name = "apart", .threads = options_.threads});
  stream->submit({.name = "apart"}, [&] { work(lanes_.of(Lane::kCompute)); });
  stream->synchronize();
}

StepResult Executor::Impl::run_step(std::int64_t step, double learning_rate) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  lanes_.take_spans();  // of what ran between steps
  try {
    batches_.read(step);
    const OptimizerOptions& o = options_.optimizer;
    rounding_key_ = {options_.seed, stream_of("rounding", static_cast<std::uint64_t>(step))};
    exchange_.begin_step(batches_.items(), adamw_scalars(static_cast<float>(learning_rate), o.beta1,
                                                         o.beta2, step + 1));
    if (graph_ == nullptr) {
      issue_step();
    } else {
      graph_->run({.number = step + 1,
                   .longest = longest_step_,
                   .values_change = layers_.draws_random() || o.stochastic_rounding},
                  [this] { issue_step(); });
    }
  } catch (const std::exception& error) {
    abandon(error.what());
    throw;
  } catch (...) {
    abandon("an unknown exception");
    throw;
  }
  lanes_.synchronize();
  longest_step_ = std::max(
      longest_step_, std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin));
  if (options_.trace) spans_ = lanes_.take_spans();
  return {.loss = exchange_.mean_loss(),
          .gradient_norm = exchange_.gradient_norm(),
          .items = exchange_.total_items()};
}

void Executor::Impl::issue_step() {
  Stream& compute = lanes_.of(Lane::kCompute);
  batches_.send(compute);
  exchange_.send_scalars(compute);
  for (int i = 0; i < static_cast<int>(schedule_.actions.size()); ++i) issue(i);
}

/// Peers must not wait for what will never be issued, and what was issued must not outlive its
/// data.
void Executor::Impl::abandon(std::string_view reason) noexcept {
  groups_.abort(reason);
  try {
    lanes_.synchronize();
  } catch (...) {  // NOLINT: a consequence of what the caller is about to throw
  }
}

/// Issues one action on its lane: waits, work, and an event if somebody waits for it.
void Executor::Impl::issue(int index) {
  const Action& action = schedule_.actions[static_cast<std::size_t>(index)];
  Stream& stream = lanes_.of(action.lane());
  for (const int wait : action.waits) stream.wait(events_[static_cast<std::size_t>(wait)]);
  const Work work{.name = to_string(action.kind),
                  .action = index,
                  .seconds = options_.cost ? options_.cost(schedule_, action) : 0.0};
  if (is_collective(action.kind)) {
    // Process groups submit tasks of their own, which know of no action. An empty one before them
    // takes the action's cost, and begins its span.
    stream.submit(work, [] {});
    collective(action, stream);
  } else if (action.kind != ActionKind::kReshard) {  // its event alone: the slot is free again
    stream.submit(work, computation(index, stream));
  }
  if (waited_for_[static_cast<std::size_t>(index)]) {
    events_[static_cast<std::size_t>(index)] = stream.record();
  }
}

/// The task of an action in which ranks do not meet.
std::function<void()> Executor::Impl::computation(int index, Stream& stream) {
  const Action& action = schedule_.actions[static_cast<std::size_t>(index)];
  switch (action.kind) {
    case ActionKind::kForward:
      return [this, index, &stream] { layers_.forward(index, stream); };
    case ActionKind::kLoss:
      return [this, index, &stream] {
        layers_.loss(index, exchange_.loss_scale(), exchange_.loss_sum(), stream);
      };
    case ActionKind::kBackward:
      return [this, index, &stream] { layers_.backward(index, stream); };
    case ActionKind::kAccumulate:
      return [this, &action, &stream] {
        const TensorView slot = state_.gradient_slot(action.slot, action.unit);
        const TensorView buffer = state_.gradient_buffer(action.unit);
        if (action.micro_step == 0) return kernels_.cast({.src = slot, .dst = buffer}, stream);
        kernels_.add({.src = slot, .dst = buffer}, stream);
      };
    case ActionKind::kRound:
      return [this, &action, &stream] {
        kernels_.cast({.src = state_.gradient_buffer(action.unit),
                       .dst = state_.gradient_slot(action.slot, action.unit)},
                      stream);
      };
    case ActionKind::kSquares:
      return [this, unit = action.unit, &stream] { exchange_.add_squares(unit, stream); };
    case ActionKind::kUpdate:
      return [this, unit = action.unit, &stream] { update(unit, stream); };
    default:
      fail(ErrorCode::kInternal, to_string(action.kind), " is not a computation");
  }
}

void Executor::Impl::collective(const Action& action, Stream& stream) {
  const auto group = [&]() -> ProcessGroup& { return groups_.of(action.lane(), action.axes); };
  const AxisSet kept = schedule_.placement.optimizer;
  switch (action.kind) {
    case ActionKind::kCountItems:
      exchange_.exchange_items(stream);
      break;
    case ActionKind::kUnshard:
      all_gather_parameters(action, group(), stream);
      break;
    case ActionKind::kReduceScatter:
      reduce_scatter(action, group(), stream);
      break;
    case ActionKind::kAllReduce:
      group().all_reduce(state_.gradient_range(action.unit, kept), stream);
      break;
    case ActionKind::kGatherGradient:
      group().all_gather(state_.gradient_range(action.unit, state_.nesting().all_axes()),
                         state_.gradient_range(action.unit, kept), stream);
      break;
    case ActionKind::kExchange:
      exchange_.exchange_results(options_.optimizer.clip_norm, stream);
      break;
    case ActionKind::kGatherParameter:
      group().all_gather(state_.updated_parameters(action.unit),
                         state_.parameter_buffer(action.unit, true), stream);
      break;
    default:
      fail(ErrorCode::kInternal, to_string(action.kind), " is not a collective");
  }
}

void Executor::Impl::all_gather_parameters(const Action& action, ProcessGroup& group,
                                           Stream& stream) {
  for (const bool trainable : {true, false}) {
    if (state_.flat(action.unit, trainable).padded_numel == 0) continue;
    group.all_gather(state_.parameter_buffer(action.unit, trainable),
                     state_.in_parameter_slot(action.slot, action.unit, trainable), stream);
  }
}

void Executor::Impl::reduce_scatter(const Action& action, ProcessGroup& group, Stream& stream) {
  const TensorView input = action.slot >= 0 ? state_.gradient_slot(action.slot, action.unit)
                                            : state_.gradient_buffer(action.unit);
  const AxisSet cut = schedule_.gradient_buffer_axes() | action.axes;
  group.reduce_scatter(input, state_.gradient_range(action.unit, cut), action.accumulate, stream);
}

void Executor::Impl::update(int unit, Stream& stream) {
  const OptimizerOptions& o = options_.optimizer;
  const bool has_copy = schedule_.parameter_dtype != DType::kFloat32;
  kernels_.adamw({.master = state_.master(unit),
                  .gradient = state_.gradient_range(unit, schedule_.placement.optimizer),
                  .m = state_.first_moment(unit),
                  .v = state_.second_moment(unit),
                  .parameter = has_copy ? state_.updated_parameters(unit) : TensorView(),
                  .segments = segments_[static_cast<std::size_t>(unit)],
                  .scalars = exchange_.adamw_scalars(),
                  .beta1 = o.beta1,
                  .beta2 = o.beta2,
                  .epsilon = o.epsilon,
                  .stochastic_rounding = o.stochastic_rounding,
                  .rounding_key = rounding_key_,
                  .first_index = first_elements_[static_cast<std::size_t>(unit)] +
                                 state_.optimizer_range(unit).begin},
                 stream);
}

std::vector<std::string> Executor::Impl::notes() {
  std::vector<std::string> notes;
  if (!registration_note_.empty()) notes.push_back(registration_note_);
  auto* const stream = dynamic_cast<CudaStream*>(&lanes_.of(Lane::kCompute));
  if (stream != nullptr && !cuda_attention(*stream).fallback.empty()) {
    notes.push_back(concat("attention runs on our own kernels, not on cuDNN: ",
                           cuda_attention(*stream).fallback));
  }
  return notes;
}

/// A whole flat parameter in fp32, put together from the finest shards of all ranks.
std::vector<float> Executor::Impl::gather_flat(int unit, bool trainable) {
  if (state_.flat(unit, trainable).padded_numel == 0) return {};
  Stream& stream = lanes_.of(Lane::kReduce);
  const TensorView mine = state_.finest_master(unit, trainable);
  ProcessGroup* const control = groups_.control();
  const std::int64_t ranks = control != nullptr ? control->size() : 1;
  const std::int64_t first = control != nullptr ? control->rank() * mine.numel() : 0;
  DeviceArray<float> whole(device_, ranks * mine.numel());
  const TensorView shard = whole.view(first, mine.numel());
  stream.submit({.name = "export"}, [&] { kernels_.cast({.src = mine, .dst = shard}, stream); });
  if (control != nullptr) control->all_gather(shard, whole.view(), stream);
  whole.download(stream);
  stream.synchronize();
  return {whole.host(), whole.host() + whole.numel()};
}

/// Layers are in order of declaration, and so are units: each unit's layers follow one another.
void Executor::Impl::gather_parameters(const std::function<void(FullParameter)>& receive) {
  int gathered = -1;
  std::array<std::vector<float>, 2> flats;  // frozen, trainable
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    for (std::size_t p = 0; p < model_.layers[l]->parameters().size(); ++p) {
      const ParameterAddress& a = layout_.layers[l].parameters[p];
      if (a.unit != gathered) {
        flats = {gather_flat(a.unit, false), gather_flat(a.unit, true)};
        gathered = a.unit;
      }
      const FlatTensor& tensor =
          state_.flat(a.unit, a.trainable).tensors[static_cast<std::size_t>(a.tensor)];
      const auto first = flats[a.trainable ? 1 : 0].begin() + tensor.offset;
      receive({tensor.spec.name, tensor.spec.shape,
               std::vector<float>(first, first + tensor.spec.shape.numel())});
    }
  }
}

Executor::Executor(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                   const BatchSource& source, RankGroups& groups, Memory& memory,
                   ExecutorOptions options) try
    : impl_(std::make_unique<Impl>(schedule, layout, model, source, groups, memory,
                                   std::move(options))) {
} catch (const std::exception& error) {
  groups.abort(error.what());  // peers may be waiting in a step already; rethrows
}

Executor::~Executor() = default;

StepResult Executor::run_step(std::int64_t step, double learning_rate) {
  return impl_->run_step(step, learning_rate);
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

const std::vector<ActionSpan>& Executor::spans() const { return impl_->spans(); }

std::vector<std::string> Executor::notes() { return impl_->notes(); }

}  // namespace tessera
