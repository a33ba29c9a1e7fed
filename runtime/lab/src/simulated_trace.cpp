#include "tessera/lab/simulated_trace.h"

#include "tessera/core/error.h"
#include "tessera/lab/run_trace.h"
#include "tessera/lab/trace.h"

namespace tessera {

nlohmann::ordered_json to_trace(const Program& program, const ModelLayout& layout,
                                const Model& model, const ExecutorOptions& options,
                                const std::vector<ActionSpan>& spans, std::string_view strategy) {
  const Schedule& schedule = *program.schedule;
  FlightDump run;
  run.run = "simulated";
  run.strategy = strategy;
  run.mesh = to_string(schedule.mesh);
  run.world_size = schedule.mesh.world_size();
  run.programs = {describe_program(schedule)};
  run.programs.front().memory =
      simulate(std::span(&program, 1), layout, model, state_options(schedule), options)
          .step_memory.front();
  run.ranks = {{.rank = 0, .groups = {}, .lanes = whole_step(schedule, spans), .host = {}}};
  for (DumpedLane& lane : run.ranks.front().lanes) {
    for (ActionRecord& record : lane.records) ++record.step;
  }
  nlohmann::ordered_json trace = to_trace(std::span(&run, 1));
  trace["otherData"].erase("began");
  trace["otherData"]["command"] = command_of_process();
  trace["otherData"]["note"] = "simulated: nothing was measured; rank 0 stands for all";
  return trace;
}

}  // namespace tessera
