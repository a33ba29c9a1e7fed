#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sharding/frozen_values.h"
#include "tessera/trainer/parameter_hash.h"

// A frozen configuration on in-process ranks.
namespace tessera::test {

/// 64 bits of a SHA-256 will do to tell a few hundred apart.
inline std::string short_hash(const std::string& sha256) { return sha256.substr(0, 16); }

inline std::string hash_of(const std::vector<double>& values) {
  std::vector<float> halves(2 * values.size());
  std::memcpy(halves.data(), values.data(), values.size() * sizeof(double));
  ParameterHash hash;
  hash.add(halves);
  return short_hash(hash.finish());
}

inline constexpr std::int64_t kEvaluatedSamples = 13;  ///< the last batch is not full

struct FrozenResult {
  std::string parameters;                   ///< parameters_sha256
  std::string results;                      ///< SHA-256 of losses, norms, and the evaluation's loss
  std::vector<double> losses;               ///< by step
  std::vector<MemoryPeak> device, host;     ///< by rank
  std::int64_t disk_bytes = 0;              ///< the file of rank 0
  Traffic traffic;                          ///< of rank 0, in all
  std::map<std::string, std::int64_t> ran;  ///< how often, by schedule
};

/// The steps of a run and its evaluation on in-process ranks.
inline FrozenResult execute(const FrozenPlans& plans) {
  const SmallRun& run = plans.configuration.run;
  FrozenResult result;
  result.device.resize(static_cast<std::size_t>(run.ranks));
  result.host = result.device;
  std::vector<double> results;
  launch_ranks(make_thread_group(run.ranks), [&](int rank, ProcessGroup& group) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    std::vector<const Schedule*> schedules;
    for (const auto& [name, schedule] : plans.schedules) schedules.push_back(&schedule);
    RankGroups groups = RankGroups::split_from(group, schedules);
    FaultyCalls calls;  // which has no faults, but takes folders in memory
    calls.plain_queues = true;
    TrainingState state(
        plans.layout, plans.state, rank, memory,
        {.folder = folder_in_memory().string(), .block_bytes = kDiskAlignment, .calls = &calls});
    Executor executor(state, plans.model, plans.programs(), groups, memory,
                      plans.executor_options());
    std::map<std::string, std::int64_t> ran;
    const auto finish = [&] {
      const StepResult step = executor.finish_step();
      if (rank != 0) return;
      results.insert(results.end(), {step.loss, step.gradient_norm});
      result.losses.push_back(step.loss);
    };
    const bool snapshots = plans.configuration.snapshots;
    const int plain = run.steps - (snapshots ? 1 : 0);
    int begun = 0;
    for (int step = 0; step < plain; ++step) {
      while (begun < std::min(step + run.steps_in_flight, plain)) {
        executor.begin_step(begun++, 1e-2);
      }
      finish();
      ++ran["step"];
    }
    if (snapshots) {
      executor.begin_step(plain, 1e-2, 1);
      finish();
      ++ran["snapshot"];
    }
    if (plans.configuration.evaluates) {
      const StepResult evaluated = executor.evaluate(plans.schedules.size() - 1, kEvaluatedSamples,
                                                     [&](std::int64_t) { ++ran["evaluation"]; });
      if (rank == 0) results.push_back(evaluated.loss);
    }
    const auto at = static_cast<std::size_t>(rank);
    result.device[at] = memory.peak();
    result.host[at] = memory.peak(Tier::kHost);
    if (rank == 0) {
      result.disk_bytes = state.disk_bytes();
      result.traffic = executor.traffic();
      result.ran = std::move(ran);
    }
    const auto parameters = executor.gather_parameters();
    if (rank == 0) result.parameters = short_hash(parameters_sha256(parameters));
  });
  result.results = hash_of(results);
  return result;
}

}  // namespace tessera::test
