#include "tessera/lab/simulated_trace.h"

#include "tessera/core/error.h"
#include "tessera/lab/run_trace.h"
#include "tessera/lab/trace.h"

namespace tessera {

nlohmann::ordered_json to_trace(const std::vector<std::vector<Program>>& ranks,
                                const ModelLayout& layout, const Model& model,
                                const ExecutorOptions& options,
                                const std::vector<std::vector<ActionSpan>>& spans,
                                std::string_view strategy) {
  const Schedule& first = *ranks.front().front().schedule;
  FlightDump run;
  run.run = "simulated";
  run.strategy = strategy;
  run.mesh = to_string(first.mesh);
  run.world_size = first.mesh.world_size();
  const int of_each = run.world_size / first.pipeline_ranks();
  std::vector<std::vector<Program>> steps_alone;
  for (const std::vector<Program>& programs : ranks) steps_alone.push_back({programs.front()});
  const std::vector<ExecutorOptions> same(ranks.size(), options);
  std::vector<Simulation> simulated =
      simulate(steps_alone, layout, model, state_options(first), same);
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    const Schedule& schedule = *ranks[p].front().schedule;
    run.programs.push_back(describe_program(schedule));
    run.programs.back().memory = std::move(simulated[p].step_memory.front());
    run.ranks.push_back({.rank = static_cast<int>(p) * of_each,
                         .groups = {},
                         .lanes = whole_step(schedule, spans[p], static_cast<int>(p)),
                         .host = {}});
    for (DumpedLane& lane : run.ranks.back().lanes) {
      for (ActionRecord& record : lane.records) ++record.step;
    }
  }
  nlohmann::ordered_json trace = to_trace(std::span(&run, 1));
  trace["otherData"].erase("began");
  trace["otherData"]["command"] = command_of_process();
  trace["otherData"]["note"] =
      ranks.size() == 1
          ? "simulated: nothing was measured; rank 0 stands for all"
          : "simulated: nothing was measured; the first rank of a stage stands for all of it";
  return trace;
}

}  // namespace tessera
