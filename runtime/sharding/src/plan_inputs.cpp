#include <algorithm>
#include <map>
#include <utility>

#include "planning.h"
#include "tessera/core/error.h"

namespace tessera {

std::vector<OffloadedInput> plan_inputs(const Schedule& schedule, const PlanOptions& options,
                                        const std::vector<Compute>& computes) {
  if (options.offload_activations.empty()) return {};
  require(schedule.recompute == Recompute::kFull, ErrorCode::kConfig,
          "activations wait on the host only where layers keep nothing but their input: recompute "
          "is ",
          to_string(schedule.recompute),
          "; use `policy.recompute` full, or leave `offload_activations` ", "out");
  require(options.offload_activations.size() == schedule.layers.size(), ErrorCode::kInvalidArgument,
          "the sizes of ", options.offload_activations.size(),
          " layers' inputs are given, and the model has ", schedule.layers.size(), " layers");
  const int ahead = options.policy.prefetch_host;
  std::vector<OffloadedInput> inputs;
  std::map<std::pair<int, int>, int> forwards;  // by micro-step and layer
  for (int c = 0; c < static_cast<int>(computes.size()); ++c) {
    const Compute& compute = computes[static_cast<std::size_t>(c)];
    const std::pair place(compute.micro_step, compute.layer);
    if (compute.pass == &operations::kForward) forwards[place] = c;
    if (compute.pass != &operations::kBackward || !schedule.keeps_input(compute.layer)) continue;
    const int forward = forwards.at(place);
    // Both copies are hidden behind as many passes.
    const OffloadedInput input{.layer = compute.layer,
                               .micro_step = compute.micro_step,
                               .forward = forward,
                               .release = forward + 1 + ahead,
                               .reserve = c - ahead,
                               .backward = c};
    if (input.release <= input.reserve) inputs.push_back(input);
  }
  return inputs;
}

void add_inputs(Schedule& schedule, const PlanOptions& options,
                const std::vector<OffloadedInput>& inputs) {
  for (std::size_t layer = 0; layer < schedule.layers.size(); ++layer) {
    const bool leaves = std::ranges::any_of(inputs, [&](const OffloadedInput& input) {
      return input.layer == static_cast<int>(layer);
    });
    if (!leaves) continue;
    schedule.buffers.push_back({.name = schedule.layers[layer].name + ".input@host",
                                .kind = BufferKind::kInput,
                                .role = Role::kActivation,
                                .layer = static_cast<int>(layer),
                                .format = schedule.parameter_dtype,
                                .numel = options.offload_activations[layer],
                                .tier = Tier::kHost});
  }
}

}  // namespace tessera
