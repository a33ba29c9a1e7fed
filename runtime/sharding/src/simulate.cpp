#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "tessera/collectives/sim_group.h"
#include "tessera/core/error.h"
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

template <class Args>
CudaAttentionCall attention_call(const Args& args, bool backward) {
  const Shape& qkv = args.qkv.shape;
  return {.batch = qkv[0],
          .length = qkv[1],
          .heads = qkv[3],
          .head_dim = qkv[4],
          .dtype = args.qkv.dtype,
          .backward = backward,
          .window = args.window,
          .documents = static_cast<bool>(args.starts),
          .causal = args.causal,
          .soft_cap = args.scores.soft_cap != 0.0F};
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
  /// Notes the memory of the action that ran, and of those up to `index`, which have no work.
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

/// Takes from the pool what Executor::gather_parameters takes for the largest unit.
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

/// A rank that is simulated: its steps are begun, and then finished, as a host does.
class SimulatedRank {
 public:
  /// `beside`: a rank on whose clock this one runs; null: on one of its own. `meetings`: see
  /// RankGroups::simulated.
  SimulatedRank(std::span<const Program> programs, const ModelLayout& layout, const Model& model,
                const StateOptions& state, const ExecutorOptions& options,
                const SimulatedRank* beside, SimMeetings* meetings)
      : layout_(layout),
        options_(options),
        device_(make_device(options, beside)),
        memory_(*device_),
        programs_(with_shapes(programs)),
        schedules_(schedules_of(programs)),
        rank_(first_rank(state)),
        groups_(RankGroups::simulated(rank_, schedules_, meetings)),
        kernels_(noting_attention()),
        state_(layout, state, rank_, memory_),
        walk_(schedules_, memory_) {
    ExecutorOptions traced = options;
    traced.before_task = nullptr;
    traced.trace = true;
    traced.graph = false;
    traced.layer_kernels = &kernels_;
    traced.before_action = [this](int, std::int64_t, const Action& action) { walk_.begin(action); };
    executor_ = std::make_unique<Executor>(state_, model, programs_, groups_, memory_, traced);
  }
  SimulatedRank(const SimulatedRank&) = delete;
  SimulatedRank& operator=(const SimulatedRank&) = delete;

  /// Issues one step of a program; of the first, as many as may be in flight.
  void begin(std::size_t program) {
    executor_->begin_step(0, 0.0, program);
    if (program > 0) return;
    result_.traffic = executor_->traffic();
    for (int step = 1; step < options_.steps_in_flight; ++step) executor_->begin_step(step, 0.0);
  }
  void finish(std::size_t program) {
    for (int step = 0; step < (program == 0 ? options_.steps_in_flight : 1); ++step) {
      executor_->finish_step();
    }
    if (program == 0) result_.spans = executor_->spans();
  }
  Simulation take();

 private:
  static std::unique_ptr<SimDevice> make_device(const ExecutorOptions& options,
                                                const SimulatedRank* beside) {
    return beside == nullptr
               ? std::make_unique<SimDevice>(options.device, options.speeds)
               : std::make_unique<SimDevice>(options.device, options.speeds, *beside->device_);
  }
  /// The first rank of the state's pipeline rank.
  static int first_rank(const StateOptions& state) {
    return state.pipeline.rank * (state.mesh.world_size() / state.mesh.size(Axis::kPipeline));
  }
  std::vector<Program> with_shapes(std::span<const Program> programs) {
    std::vector<Program> simulated;
    for (const Program& program : programs) {
      auto& own = shapes_[program.source];
      if (own == nullptr) own = std::make_unique<ShapesOnly>(*program.source);
      simulated.push_back({program.schedule, own.get(), program.predicts});
    }
    return simulated;
  }
  static std::vector<const Schedule*> schedules_of(std::span<const Program> programs) {
    std::vector<const Schedule*> schedules;
    for (const Program& program : programs) schedules.push_back(program.schedule);
    return schedules;
  }
  /// The run's kernels, or the sim device's; on a GPU they note which attention they compute.
  KernelTable noting_attention() {
    const KernelTable& given =
        options_.layer_kernels != nullptr ? *options_.layer_kernels : kernels_for(*device_);
    KernelTable kernels = given;
    if (options_.device != DeviceKind::kCuda) return kernels;
    kernels.attention_forward = [&](const AttentionForwardArgs& args, Stream& stream) {
      result_.attention_calls.insert(attention_call(args, false));
      given.attention_forward(args, stream);
    };
    kernels.attention_backward = [&](const AttentionBackwardArgs& args, Stream& stream) {
      result_.attention_calls.insert(attention_call(args, true));
      given.attention_backward(args, stream);
    };
    return kernels;
  }

  const ModelLayout& layout_;
  const ExecutorOptions& options_;
  Simulation result_;
  std::unique_ptr<SimDevice> device_;
  Memory memory_;
  std::map<const BatchSource*, std::unique_ptr<ShapesOnly>> shapes_;  ///< programs may share one
  const std::vector<Program> programs_;
  const std::vector<const Schedule*> schedules_;
  const int rank_;
  RankGroups groups_;
  const KernelTable kernels_;
  TrainingState state_;
  MemoryWalk walk_;
  std::unique_ptr<Executor> executor_;
};

/// Lasting memory is taken from the plans alone; the run contributes what comes and goes.
Simulation SimulatedRank::take() {
  walk_.end();
  result_.step_memory = walk_.take();
  result_.memory = memory_.peak();
  const MemoryUse planned = account_memory(schedules_);
  for (const MemoryCategory category : kPlanned) {
    result_.memory.total += planned[category] - result_.memory.by_category[category];
    result_.memory.by_category[category] = planned[category];
  }
  const MemoryUse on_host = account_memory(schedules_, Tier::kHost);
  result_.host_memory = {.total = total_of(on_host), .by_category = on_host};
  if (options_.device == DeviceKind::kCuda) {
    gather_largest(*device_, layout_);
    result_.reserved_bytes = device_->reserved_bytes();
  }
  return std::move(result_);
}

}  // namespace

Simulation simulate(std::span<const Program> programs, const ModelLayout& layout,
                    const Model& model, const StateOptions& state, const ExecutorOptions& options) {
  SimulatedRank rank(programs, layout, model, state, options, nullptr, nullptr);
  for (std::size_t p = 0; p < programs.size(); ++p) {
    rank.begin(p);
    rank.finish(p);
  }
  return rank.take();
}

std::vector<Simulation> simulate(std::span<const std::vector<Program>> ranks,
                                 const ModelLayout& layout, const Model& model,
                                 const StateOptions& state,
                                 std::span<const ExecutorOptions> options) {
  require(!ranks.empty() && options.size() == ranks.size(), ErrorCode::kInvalidArgument,
          "programs of ", ranks.size(), " pipeline ranks, and options of ", options.size());
  SimMeetings meetings;
  std::vector<std::unique_ptr<SimulatedRank>> simulated;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    StateOptions own = state;
    own.pipeline.rank = static_cast<int>(r);
    simulated.push_back(
        std::make_unique<SimulatedRank>(ranks[r], layout, model, own, options[r],
                                        simulated.empty() ? nullptr : simulated.front().get(),
                                        ranks.size() == 1 ? nullptr : &meetings));
  }
  for (std::size_t p = 0; p < ranks.front().size(); ++p) {
    for (const auto& rank : simulated) rank->begin(p);
    for (const auto& rank : simulated) rank->finish(p);
  }
  std::vector<Simulation> results;
  for (const auto& rank : simulated) results.push_back(rank->take());
  return results;
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
  std::vector<GemmArgs> gemms;
  kernels.gemm = [&](const GemmArgs& args, Stream& /*stream*/) { gemms.push_back(args); };
  ExecutorOptions recording = options;
  recording.layer_kernels = &kernels;
  simulate(programs, layout, model, state, recording);
  return gemms;
}

MemoryPeak predict_memory(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                          const BatchSource& source, const ExecutorOptions& options) {
  return simulate(schedule, layout, model, source, options).memory;
}

StateOptions state_options(const Schedule& schedule) { return schedule.state(); }

}  // namespace tessera
