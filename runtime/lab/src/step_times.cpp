#include "tessera/lab/step_times.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/core/quantile.h"
#include "tessera/lab/kernel_calls.h"
#include "tessera/lab/kernel_times.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

constexpr int kUntimedSteps = 2, kLeastSteps = 3, kMostSteps = 1000;

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// A kernel at a size in actions of an operation.
using KernelKey = std::tuple<std::string, std::string, std::string, std::vector<double>>;

KernelKey key_of(std::string_view operation, const KernelCall& call) {
  return {std::string(operation), step_name(call), std::string(to_string(call.dtype)),
          rates_size(call)};
}

struct KernelSum {
  double seconds = 0.0, calls = 0.0;
};

/// The times of a step: its kernels, and means of what is beside them; nothing: there was none.
struct SeenStep {
  double seconds = 0.0, between = 0.0;
  std::optional<double> beside{}, gap{};
  std::map<KernelKey, KernelSum> kernels{};
};

/// The steps of a copy, and what their kernels take alone.
struct Seen {
  std::vector<SeenStep> steps;
  std::map<KernelKey, double> alone;
};

/// Times one rank: its kernels as they are called, on the thread of its compute lane, and its
/// actions by their spans when a step is over.
class StepWatch {
 public:
  StepWatch(const TimedStep& step, const HardwareProfile& profile)
      : step_(step),
        schedule_(*step.program.schedule),
        profile_(profile),
        passes_(schedule_.actions.size()) {}

  /// For the executor: the kernels of passes.
  KernelTable kernels(const Device& device) {
    return observed_kernels(
        kernels_for(device), [this](const auto& call, const auto& run, Stream& stream) {
          auto* const gpu = dynamic_cast<CudaStream*>(&stream);
          if (gpu != nullptr) return observe_on_gpu(call, run, *gpu);
          const double begin = clock_seconds();
          run();
          const double end = clock_seconds();
          if (action_ == nullptr) return;
          add(call(), action_->operation->name, end - begin);
          Pass& pass = passes_[static_cast<std::size_t>(action_ - schedule_.actions.data())];
          pass.kernels += 1;
          // The time that describing a call takes is no part of the pass.
          pass.accounted += clock_seconds() - begin;
        });
  }
  void begin_action(const Action& action) {
    if (action.lane == Lane::kCompute) action_ = &action;
  }

  /// Takes the step that has ended, which began `seconds` ago on the host's thread.
  void end_step(const std::vector<ActionSpan>& spans, double seconds) {
    action_ = nullptr;
    for (Launched& one : std::exchange(launched_, {})) {
      const double begin = one.begin();
      add(one.call, one.operation, one.end() - begin);
    }
    std::vector<double> begins(schedule_.actions.size()), ends(schedule_.actions.size());
    double first = HUGE_VAL, last = 0.0;
    for (const ActionSpan& span : spans) {
      if (span.action < 0) continue;
      const auto i = static_cast<std::size_t>(span.action);
      if (ends[i] == 0.0) begins[i] = span.begin;  // an action may have several spans
      ends[i] = span.end;
      first = std::min(first, span.begin);
      last = std::max(last, span.end);
    }
    SeenStep& seen = seen_.steps.emplace_back(
        SeenStep{.seconds = seconds, .between = std::max(0.0, seconds - (last - first))});
    note_actions(begins, ends, seen);
    note_gaps(begins, ends, seen);
    seen.kernels = std::exchange(sums_, {});
    forget_step();
  }
  /// Drops what was seen of a step that is not to be counted.
  void forget_step() {
    action_ = nullptr;
    for (Launched& one : std::exchange(launched_, {})) {
      one.begin();
      one.end();
    }
    sums_.clear();
    std::ranges::fill(passes_, Pass{});
  }

  Seen take() { return std::move(seen_); }

 private:
  struct Pass {
    int kernels = 0;
    double accounted = 0.0;  ///< seconds of kernels and of describing them
  };

  /// A kernel of a GPU, whose times are known when the step is over.
  struct Launched {
    KernelCall call;
    std::string_view operation;
    std::function<double()> begin, end;
  };

  void observe_on_gpu(const std::function<KernelCall()>& call, const std::function<void()>& run,
                      CudaStream& stream) {
    if (action_ == nullptr) return run();
    Launched one{call(), action_->operation->name, stream.mark_time(), {}};
    run();
    one.end = stream.mark_time();
    launched_.push_back(std::move(one));
  }

  void add(const KernelCall& call, std::string_view operation, double seconds) {
    KernelKey key = key_of(operation, call);
    if (!seen_.alone.contains(key)) {
      seen_.alone[key] = seconds_alone(call, profile_, step_.options.threads);
    }
    KernelSum& sum = sums_[std::move(key)];
    sum.seconds += seconds;
    sum.calls += 1.0;
  }

  void note_actions(const std::vector<double>& begins, const std::vector<double>& ends,
                    SeenStep& seen) {
    double beside = 0.0;
    int kernels = 0;
    for (std::size_t i = 0; i < schedule_.actions.size(); ++i) {
      const Action& action = schedule_.actions[i];
      if (ends[i] == 0.0 || is_collective(action)) continue;
      const double seconds = ends[i] - begins[i];
      if (action.operation->is_pass) {
        beside += seconds - passes_[i].accounted;
        kernels += passes_[i].kernels;
      } else if (action.operation->run != nullptr && action.operation != &operations::kCopy) {
        add(call_of(schedule_, action, step_.options.optimizer), action.operation->name, seconds);
      }
    }
    if (kernels > 0) seen.beside = std::max(0.0, beside / kernels);
  }

  /// The time between the end of an action and the beginning of the next one. A rank alone on a CPU
  /// has one stream for all lanes, and none of them waits for another (see take_graph for a GPU).
  void note_gaps(const std::vector<double>& begins, const std::vector<double>& ends,
                 SeenStep& seen) {
    std::vector<std::pair<double, double>> spans;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] > 0.0) spans.emplace_back(begins[i], ends[i]);
    }
    std::ranges::sort(spans);
    std::vector<double> gaps;
    for (std::size_t i = 1; i < spans.size(); ++i) {
      gaps.push_back(std::max(0.0, spans[i].first - spans[i - 1].second));
    }
    if (!gaps.empty()) seen.gap = mean(gaps);
  }

  const TimedStep& step_;
  const Schedule& schedule_;
  const HardwareProfile& profile_;
  const Action* action_ = nullptr;  ///< the compute lane's, while it runs
  std::vector<Pass> passes_;        ///< by action
  std::vector<Launched> launched_;
  std::map<KernelKey, KernelSum> sums_;
  Seen seen_;
};

std::unique_ptr<Device> device_of(const ExecutorOptions& options) {
  if (options.device == DeviceKind::kCuda) return make_cuda_device();
  return make_cpu_device();
}

/// Runs steps of one rank that has no others until the time is over, of which `after_step` takes
/// those after the first two with the seconds that each took.
void run_steps(const TimedStep& step, Device& device, ExecutorOptions options,
               const std::function<void(const Executor& executor, double seconds)>& after_step) {
  const Schedule& schedule = *step.program.schedule;
  Memory memory(device);
  const auto world = make_thread_group(1);
  RankGroups groups = RankGroups::split_from(*world.front(), schedule);
  TrainingState state(step.layout, state_options(schedule), 0, memory);
  options.steps_in_flight = 1;
  Executor executor(state, step.model, {step.program}, groups, memory, std::move(options));
  double begun = 0.0;
  for (int i = 0; i < kUntimedSteps + kMostSteps; ++i) {
    require(!step.goes_on || step.goes_on(), ErrorCode::kAborted, "stopped after ", i, " steps");
    if (i == kUntimedSteps) begun = clock_seconds();
    if (i >= kUntimedSteps + kLeastSteps && clock_seconds() - begun >= step.seconds) break;
    const double begin = clock_seconds();
    executor.run_step(i, 1e-4);
    if (i < kUntimedSteps) {
      after_step(executor, 0.0);
    } else {
      after_step(executor, clock_seconds() - begin);
    }
  }
}

Seen watch_rank(const TimedStep& step, const HardwareProfile& profile) {
  const auto device = device_of(step.options);
  StepWatch watch(step, profile);
  const KernelTable kernels = watch.kernels(*device);
  ExecutorOptions options = step.options;
  options.trace = true;
  options.graph = false;
  options.layer_kernels = &kernels;
  options.before_action = [&watch](int /*rank*/, std::int64_t /*step*/, const Action& action) {
    watch.begin_action(action);
  };
  run_steps(step, *device, std::move(options), [&](const Executor& executor, double seconds) {
    if (seconds > 0.0) return watch.end_step(executor.spans(), seconds);
    watch.forget_step();
  });
  return watch.take();
}

/// The time that a host adds to kernels which it launches one by one is no part of a graph: of a
/// GPU's step the kernels count, and the step is that of a graph.
void take_graph(const TimedStep& step, StepTimes& times) {
  const auto device = device_of(step.options);
  ExecutorOptions options = step.options;
  options.graph = true;
  std::vector<double> steps;
  run_steps(step, *device, std::move(options), [&](const Executor& /*executor*/, double seconds) {
    if (seconds > 0.0) steps.push_back(seconds);
  });
  times.step = interquartile_mean(std::move(steps));
  times.beside = times.gap = times.between = 0.0;
}

/// The steps whose time is between the quartiles.
std::vector<SeenStep> middle_of(std::vector<SeenStep> steps) {
  std::ranges::sort(steps, {}, &SeenStep::seconds);
  const auto [begin, end] = middle_half(steps.size());
  return {std::make_move_iterator(steps.begin() + static_cast<std::ptrdiff_t>(begin)),
          std::make_move_iterator(steps.begin() + static_cast<std::ptrdiff_t>(end))};
}

StepTimes times_of(std::vector<Seen> copies) {
  std::vector<double> beside, gaps, between, seconds;
  std::map<KernelKey, std::vector<double>> means;
  std::map<KernelKey, double> calls, alone;
  for (Seen& copy : copies) {
    alone.merge(copy.alone);
    for (const SeenStep& step : middle_of(std::move(copy.steps))) {
      if (step.beside) beside.push_back(*step.beside);
      if (step.gap) gaps.push_back(*step.gap);
      between.push_back(step.between);
      seconds.push_back(step.seconds);
      for (const auto& [key, sum] : step.kernels) {
        means[key].push_back(sum.seconds / sum.calls);
        calls[key] = sum.calls;
      }
    }
  }
  StepTimes times;
  times.beside = mean(beside);
  times.gap = mean(gaps);
  times.between = mean(between);
  times.step = mean(seconds);
  for (const auto& [key, of_steps] : means) {
    const auto& [operation, kernel, dtype, size] = key;
    times.kernels.push_back({.operation = operation,
                             .kernel = kernel,
                             .dtype = dtype,
                             .size = size,
                             .seconds = mean(of_steps),
                             .spread = relative_spread(of_steps),
                             .alone = alone.at(key),
                             .calls = calls.at(key)});
  }
  return times;
}

}  // namespace

StepTimes time_steps(const TimedStep& step, const HardwareProfile& profile) {
  require(step.copies >= 1, ErrorCode::kInvalidArgument, step.copies, " ranks cannot run");
  require(step.program.schedule->mesh.world_size() == 1, ErrorCode::kInvalidArgument, "a step of ",
          step.program.schedule->mesh.world_size(),
          " ranks: only one that needs no others can be timed alone");
  std::vector<Seen> seen(static_cast<std::size_t>(step.copies));
  std::vector<std::exception_ptr> failures(seen.size());
  {
    std::vector<std::jthread> ranks;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      ranks.emplace_back([&, i] {
        try {
          if (!step.cpus.empty()) bind_thread(step.cpus.at(i));
          seen[i] = watch_rank(step, profile);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  StepTimes times = times_of(std::move(seen));
  times.threads = step.options.threads;
  if (step.options.device == DeviceKind::kCuda) take_graph(step, times);
  return times;
}

}  // namespace tessera
