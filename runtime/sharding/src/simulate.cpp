#include "tessera/core/sim_device.h"
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

constexpr MemoryCategory kPlanned[] = {
    MemoryCategory::kParameters, MemoryCategory::kUnshardedParameters, MemoryCategory::kGradients,
    MemoryCategory::kUnshardedGradients, MemoryCategory::kOptimizer};

}  // namespace

Simulation simulate(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                    const BatchSource& source, const ExecutorOptions& options) {
  SimDevice device;
  Memory memory(device);
  RankGroups groups = RankGroups::simulated(0, schedule);
  const ShapesOnly shapes(source);
  ExecutorOptions traced = options;
  traced.before_task = nullptr;
  traced.trace = true;
  traced.graph = false;
  Executor executor(schedule, layout, model, shapes, groups, memory, traced);
  executor.run_step(0, 0.0);
  return {.memory = memory.peak(), .traffic = groups.traffic(), .spans = executor.spans()};
}

MemoryPeak predict_memory(const Schedule& schedule, const ModelLayout& layout, const Model& model,
                          const BatchSource& source, const ExecutorOptions& options) {
  MemoryPeak peak = simulate(schedule, layout, model, source, options).memory;
  // What stays is taken from the plan alone; the run contributes what comes and goes.
  const MemoryUse planned = account_memory(schedule);
  for (const MemoryCategory category : kPlanned) {
    peak.total += planned[category] - peak.by_category[category];
    peak.by_category[category] = planned[category];
  }
  return peak;
}

}  // namespace tessera
