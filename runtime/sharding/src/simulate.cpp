#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "tessera/core/sim_device.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/sharding/account.h"
#include "tessera/sharding/executor.h"

namespace tessera {
namespace {

/// The shapes of another source, and no samples: the sim device's memory has no contents.
class ShapesOnly : public BatchSource {
 public:
  explicit ShapesOnly(const BatchSource& source) : source_(source) {}
  Shape input_shape(std::int64_t n) const override { return source_.input_shape(n); }
  DType input_dtype() const override { return source_.input_dtype(); }
  Shape target_shape(std::int64_t n) const override { return source_.target_shape(n); }
  DType target_dtype() const override { return source_.target_dtype(); }
  std::int64_t fill(std::int64_t, std::int64_t, TensorView, TensorView) const override { return 1; }

 private:
  const BatchSource& source_;
};

// A kernel is a plain function: this is where it finds the list.
thread_local std::vector<GemmArgs>* recorded_gemms = nullptr;
thread_local std::set<CudaAttentionCall>* recorded_attention = nullptr;
thread_local const KernelTable* attention_kernels = nullptr;  ///< those that it is recorded before

void record_gemm(const GemmArgs& args, Stream& /*stream*/) { recorded_gemms->push_back(args); }

template <bool kBackward, class Args>
void record_attention(const Args& args, Stream& stream) {
  const Shape& qkv = args.qkv.shape;
  recorded_attention->insert({.batch = qkv[0],
                              .length = qkv[1],
                              .heads = qkv[3],
                              .head_dim = qkv[4],
                              .dtype = args.qkv.dtype,
                              .backward = kBackward,
                              .window = args.window,
                              .documents = static_cast<bool>(args.starts),
                              .causal = args.causal,
                              .soft_cap = args.scores.soft_cap != 0.0F});
  if constexpr (kBackward) {
    attention_kernels->attention_backward(args, stream);
  } else {
    attention_kernels->attention_forward(args, stream);
  }
}

constexpr MemoryCategory kPlanned[] = {
    MemoryCategory::kParameters, MemoryCategory::kUnshardedParameters, MemoryCategory::kGradients,
    MemoryCategory::kUnshardedGradients, MemoryCategory::kOptimizer};

std::int64_t total_of(const MemoryUse& use) {
  return std::accumulate(use.bytes.begin(), use.bytes.end(), std::int64_t{0});
}

/// Follows a rank's memory along the steps of its programs. What stays is as planned.
class MemoryWalk {
 public:
  MemoryWalk(std::span<const Schedule* const> schedules, Memory& memory)
      : schedules_(schedules), memory_(memory), planned_(account_memory(schedules)) {
    for (const Schedule* const schedule : schedules) {
      steps_.push_back({.before = {}, .actions = {schedule->actions.size(), ActionMemory()}});
    }
  }

  /// `action` begins, and the one before it is over.
  void begin(const Action& action) {
    const std::size_t program = program_of(action);
    const auto index = static_cast<std::size_t>(&action - schedules_[program]->actions.data());
    if (program != program_ || index < next_) end();
    if (next_ == 0) start(program);
    reach(index);
    next_ = index + 1;
    runs_ = true;
  }
  /// The step is over.
  void end() {
    if (next_ > 0) reach(steps_[program_].actions.size());
    next_ = 0;
  }
  std::vector<StepMemory> take() { return std::move(steps_); }

 private:
  std::size_t program_of(const Action& action) const {
    const auto found = std::ranges::find_if(schedules_, [&](const Schedule* schedule) {
      const Action* const first = schedule->actions.data();
      return &action >= first && &action < first + schedule->actions.size();
    });
    return static_cast<std::size_t>(found - schedules_.begin());
  }
  void start(std::size_t program) {
    program_ = program;
    memory_.take_recent_peak();
    steps_[program].before = with_planned(memory_.current());
    runs_ = false;
  }
  /// Of the action that ran, and of those up to `index`, which have no work.
  void reach(std::size_t index) {
    StepMemory& step = steps_[program_];
    const MemoryUse now = with_planned(memory_.current());
    if (runs_) {
      ActionMemory& ran = step.actions[next_ - 1];
      const MemoryPeak peak = memory_.take_recent_peak();
      ran = {.highest = {.total = peak.total + total_of(now) - total_of(memory_.current()),
                         .by_category = with_planned(peak.by_category)},
             .after = now};
    }
    for (std::size_t i = next_; i < index; ++i) {
      step.actions[i] = {.highest = {.total = total_of(now), .by_category = now}, .after = now};
    }
    runs_ = false;
  }
  MemoryUse with_planned(MemoryUse use) const {
    for (const MemoryCategory category : kPlanned) use[category] = planned_[category];
    return use;
  }
  const std::span<const Schedule* const> schedules_;
  Memory& memory_;
  const MemoryUse planned_;
  std::vector<StepMemory> steps_;
  std::size_t program_ = 0;
  std::size_t next_ = 0;  ///< action of the program; 0: no step runs
  bool runs_ = false;     ///< the action before it
};

/// What Executor::gather_parameters takes of the pool for the largest unit.
void gather_largest(SimDevice& device, const ModelLayout& layout) {
  std::int64_t largest = 0;
  for (const Unit& unit : layout.units) {
    constexpr std::int64_t kBytes = sizeof(float);
    for (const FlatParameter& flat : unit.flats) {
      largest = std::max(largest, (flat.quantized ? 1 : kBytes) * flat.padded_numel);
    }
  }
  const auto bytes = static_cast<std::size_t>(largest);
  device.deallocate(device.allocate(bytes), bytes);
}

}  // namespace

Simulation simulate(std::span<const Program> programs, const ModelLayout& layout,
                    const Model& model, const StateOptions& state_options,
                    const ExecutorOptions& options) {
  SimDevice device(options.device, options.speeds);
  Memory memory(device);
  std::map<const BatchSource*, std::unique_ptr<ShapesOnly>> shapes;  // programs may share one
  std::vector<Program> simulated;
  std::vector<const Schedule*> schedules;
  for (const Program& program : programs) {
    auto& own = shapes[program.source];
    if (own == nullptr) own = std::make_unique<ShapesOnly>(*program.source);
    simulated.push_back({program.schedule, own.get(), program.predicts});
    schedules.push_back(program.schedule);
  }
  RankGroups groups = RankGroups::simulated(0, schedules);
  ExecutorOptions traced = options;
  traced.before_task = nullptr;
  traced.trace = true;
  traced.graph = false;
  Simulation result;
  const KernelTable& given =
      options.layer_kernels != nullptr ? *options.layer_kernels : kernels_for(device);
  KernelTable kernels = given;
  if (options.device == DeviceKind::kCuda) {
    kernels.attention_forward = record_attention<false, AttentionForwardArgs>;
    kernels.attention_backward = record_attention<true, AttentionBackwardArgs>;
    recorded_attention = &result.attention_calls;
    attention_kernels = &given;
  }
  traced.layer_kernels = &kernels;
  TrainingState state(layout, state_options, 0, memory);
  MemoryWalk walk(schedules, memory);
  traced.before_action = [&](int, std::int64_t, const Action& action) { walk.begin(action); };
  Executor executor(state, model, simulated, groups, memory, traced);
  executor.begin_step(0, 0.0);
  result.traffic = executor.traffic();
  for (int step = 1; step < options.steps_in_flight; ++step) executor.begin_step(step, 0.0);
  for (int step = 0; step < options.steps_in_flight; ++step) executor.finish_step();
  result.spans = executor.spans();
  for (std::size_t p = 1; p < simulated.size(); ++p) executor.run_step(0, 0.0, p);
  walk.end();
  result.step_memory = walk.take();
  result.memory = memory.peak();
  // What stays is taken from the plans alone; the run contributes what comes and goes.
  const MemoryUse planned = account_memory(schedules);
  for (const MemoryCategory category : kPlanned) {
    result.memory.total += planned[category] - result.memory.by_category[category];
    result.memory.by_category[category] = planned[category];
  }
  const MemoryUse on_host = account_memory(schedules, Tier::kHost);
  result.host_memory = {.total = total_of(on_host), .by_category = on_host};
  if (options.device == DeviceKind::kCuda) {
    gather_largest(device, layout);
    result.reserved_bytes = device.reserved_bytes();
  }
  recorded_attention = nullptr;
  return result;
}

Simulation simulate(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                    const BatchSource& source, const ExecutorOptions& options) {
  const Program program{&schedule, &source};
  return simulate(std::span(&program, 1), layout, model, state_options(schedule), options);
}

std::vector<GemmArgs> record_gemms(std::span<const Program> programs, const ModelLayout& layout,
                                   const Model& model, const StateOptions& state,
                                   const ExecutorOptions& options) {
  KernelTable kernels = planning(kernels_for(SimDevice()));
  kernels.gemm = record_gemm;
  ExecutorOptions recording = options;
  recording.layer_kernels = &kernels;
  std::vector<GemmArgs> gemms;
  recorded_gemms = &gemms;
  simulate(programs, layout, model, state, recording);
  recorded_gemms = nullptr;
  return gemms;
}

MemoryPeak predict_memory(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                          const BatchSource& source, const ExecutorOptions& options) {
  return simulate(schedule, layout, model, source, options).memory;
}

StateOptions state_options(const Schedule& schedule) { return schedule.state(); }

}  // namespace tessera
