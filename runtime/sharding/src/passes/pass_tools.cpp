#include "passes/pass_tools.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/sharding/state_buffers.h"

namespace tessera {

int add_buffer(Schedule& schedule, ScheduleBuffer buffer) {
  schedule.buffers.push_back(std::move(buffer));
  return static_cast<int>(schedule.buffers.size()) - 1;
}

StateOptions on_device(StateOptions options) {
  options.offload_optimizer = options.offload_parameters = 0.0;
  options.disk_optimizer = options.disk_parameters = 0.0;
  return options;
}

void set_state(Schedule& schedule, const StateOptions& options) {
  const auto is_state = [](const ScheduleBuffer& buffer) { return buffer.persistent; };
  std::vector<ScheduleBuffer> buffers = state_buffers(schedule.units, options);
  std::map<std::string, int> places;
  for (int b = 0; b < static_cast<int>(buffers.size()); ++b) {
    places[buffers[static_cast<std::size_t>(b)].name] = b;
  }
  const std::vector<ScheduleBuffer> before = schedule.buffers;
  std::vector<int> moved;
  for (ScheduleBuffer& buffer : schedule.buffers) {
    if (is_state(buffer)) {
      moved.push_back(places.at(buffer.name));
    } else {
      moved.push_back(static_cast<int>(buffers.size()));
      buffers.push_back(std::move(buffer));
    }
  }
  schedule.buffers = std::move(buffers);
  for (Action& action : schedule.actions) {
    for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
      for (Operand& operand : *operands) {
        const bool is_all =
            operand.sharded == before[static_cast<std::size_t>(operand.buffer)].sharded;
        operand.buffer = moved[static_cast<std::size_t>(operand.buffer)];
        if (is_all) operand.sharded = schedule.buffer(operand).sharded;
      }
    }
  }
}

PipelineShape pipeline_shape(const Schedule& schedule) {
  const PipelineOptions& pipeline = schedule.pipeline;
  return {.ranks = schedule.pipeline_ranks(),
          .stages = pipeline.stages(),
          .micro_steps = schedule.micro_steps,
          .trains = schedule.purpose == Purpose::kTrain,
          .first_backward_stage = pipeline.stage_of(schedule.first_backward_layer),
          .stage_ranks = pipeline.stage_ranks};
}

}  // namespace tessera
