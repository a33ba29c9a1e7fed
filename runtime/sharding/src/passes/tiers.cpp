#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "passes/tier_updates.h"
#include "tessera/core/error.h"
#include "tessera/sharding/passes.h"

namespace tessera {
namespace {

Tier tier_of_buffer(const Schedule& schedule, int buffer) {
  return schedule.buffers[static_cast<std::size_t>(buffer)].tier;
}

/// Whether a pass is the first that reads what its layer's forward has kept.
bool is_first_of_backward(const Action& pass) {
  return !pass.operation->parts.forward && pass.operation->parts.backward;
}

class TierPass {
 public:
  explicit TierPass(Schedule& schedule) : schedule_(schedule), updates_(schedule, actions_) {}

  void run();

 private:
  void add_inputs();
  void pass(Action action);
  void gather(Action action);
  Operand bring(std::vector<Operand> from, const Action& pass);
  std::vector<Operand> bring_closer(std::vector<Operand> from, bool to_device);
  Operand decode(const Operand& quantized, const Action& pass);
  Operand add_content(const std::vector<Operand>& like, BufferKind kind, Tier tier,
                      int micro_step = -1);
  void copy(Lane lane, std::vector<Operand> from, const Operand& to) {
    actions_.push_back(
        {.operation = &operations::kCopy, .lane = lane, .reads = std::move(from), .writes = {to}});
  }
  bool leaves(int layer) const {
    return !schedule_.offload_activations.empty() && schedule_.keeps_input(layer);
  }

  Schedule& schedule_;
  std::vector<Action> actions_;
  TierUpdates updates_;
  std::map<std::pair<int, int>, int> inputs_;  ///< by layer and micro-step: the buffer on the host
};

/// Adds as many buffers for a layer as micro-steps are between its forward and backward at a time.
void TierPass::add_inputs() {
  if (schedule_.offload_activations.empty()) return;
  const auto layers = schedule_.layers.size();
  std::vector<std::vector<int>> held(layers);  // by layer and buffer: the micro-step; -1: none
  std::vector<std::map<int, std::size_t>> places(layers);  // by layer and micro-step: which buffer
  for (const Action& action : schedule_.actions) {
    if (!action.operation->is_pass || !leaves(action.layer)) continue;
    const auto layer = static_cast<std::size_t>(action.layer);
    if (action.operation == &operations::kForward) {
      auto free = std::ranges::find(held[layer], -1);
      if (free == held[layer].end()) free = held[layer].insert(free, -1);
      *free = action.micro_step;
      places[layer][action.micro_step] = static_cast<std::size_t>(free - held[layer].begin());
    } else if (is_first_of_backward(action)) {
      std::ranges::replace(held[layer], action.micro_step, -1);
    }
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto first = static_cast<int>(schedule_.buffers.size());
    for (std::size_t b = 0; b < held[layer].size(); ++b) {
      add_buffer(schedule_, {.name = concat(schedule_.layers[layer].name, ".input",
                                            b > 0 ? concat(b + 1) : std::string(), "@host"),
                             .kind = BufferKind::kInput,
                             .role = Role::kActivation,
                             .layer = static_cast<int>(layer),
                             .format = schedule_.parameter_dtype,
                             .numel = schedule_.offload_activations[layer],
                             .tier = Tier::kHost});
    }
    for (const auto& [micro_step, place] : places[layer]) {
      inputs_[{static_cast<int>(layer), micro_step}] = first + static_cast<int>(place);
    }
  }
}

/// An operand of a new buffer for what `like` are of.
Operand TierPass::add_content(const std::vector<Operand>& like, BufferKind kind, Tier tier,
                              int micro_step) {
  FlatSet flats;
  std::int64_t numel = 0;
  for (const Operand& flat : like) {
    flats = flats | schedule_.flats(flat);
    numel += schedule_.numel(flat);
  }
  Operand content = like.front();
  const std::string& unit = schedule_.units[static_cast<std::size_t>(content.unit)].name;
  content.buffer =
      add_buffer(schedule_, {.name = concat(unit, '.', to_string(kind), schedule_.buffers.size()),
                             .kind = kind,
                             .role = Role::kParameter,
                             .micro_step = micro_step,
                             .format = schedule_.buffer(like.front()).format,
                             .numel = numel / schedule_.mesh.size(content.sharded),
                             .tier = tier});
  schedule_.set_flats(content, flats);
  return content;
}

/// From the disk to the host, and on to the device.
std::vector<Operand> TierPass::bring_closer(std::vector<Operand> from, bool to_device) {
  if (tier_of_buffer(schedule_, from.front().buffer) == Tier::kDisk) {
    const Operand staging = add_content(from, BufferKind::kStagingSlot, Tier::kHost);
    copy(Lane::kDiskIn, std::move(from), staging);
    from = {staging};
  }
  if (to_device) {
    const Operand on_device = add_content(from, BufferKind::kShardSlot, Tier::kDevice);
    copy(Lane::kCopyIn, std::move(from), on_device);
    from = {on_device};
  }
  return from;
}

/// An all-gather of what is not on the device: of a copy.
void TierPass::gather(Action action) {
  const Operand first = action.reads.front();
  if (is_flat_parameter(schedule_.buffer(first)) &&
      tier_of_buffer(schedule_, first.buffer) != Tier::kDevice) {
    action.reads = bring_closer(std::move(action.reads), true);
  }
  actions_.push_back(std::move(action));
}

/// A copy to the device of what every rank has unsharded elsewhere.
Operand TierPass::bring(std::vector<Operand> from, const Action& pass) {
  const Operand whole = add_content(from, BufferKind::kWholeSlot, Tier::kDevice, pass.micro_step);
  copy(Lane::kCopyIn, bring_closer(std::move(from), false), whole);
  return whole;
}

Operand TierPass::decode(const Operand& quantized, const Action& pass) {
  const std::string& unit = schedule_.units[static_cast<std::size_t>(quantized.unit)].name;
  Operand decoded{
      .buffer = add_buffer(schedule_, {.name = concat(unit, ".w", schedule_.buffers.size()),
                                       .kind = BufferKind::kWholeSlot,
                                       .role = Role::kDecoded,
                                       .micro_step = pass.micro_step,
                                       .format = schedule_.parameter_dtype}),
      .unit = quantized.unit};
  schedule_.set_flats(decoded, schedule_.flats(quantized));
  schedule_.buffers.back().numel = schedule_.numel(decoded);
  actions_.push_back(
      {.operation = &operations::kDecode, .reads = {quantized}, .writes = {decoded}});
  return decoded;
}

void TierPass::pass(Action action) {
  std::vector<Operand> reads, gone;
  for (std::size_t i = 0; i < action.reads.size();) {
    const int unit = action.reads[i].unit;
    if (unit < 0) {
      reads.push_back(action.reads[i++]);
      continue;
    }
    std::vector<std::vector<Operand>> away;  // by format
    std::vector<Operand> here;
    for (; i < action.reads.size() && action.reads[i].unit == unit; ++i) {
      Operand flat = action.reads[i];
      const bool is_away = tier_of_buffer(schedule_, flat.buffer) != Tier::kDevice;
      if (schedule_.flat(id_of(schedule_, flat)).is_quantized()) {
        if (is_away) gone.push_back(flat = bring({flat}, action));
        gone.push_back(decode(flat, action));
        reads.push_back(gone.back());
      } else if (!is_away) {
        here.push_back(flat);
      } else {
        const auto alike = std::ranges::find_if(away, [&](const std::vector<Operand>& flats) {
          return schedule_.buffer(flats.front()).format == schedule_.buffer(flat).format;
        });
        if (alike == away.end()) {
          away.push_back({flat});
        } else {
          alike->push_back(flat);
        }
      }
    }
    for (std::vector<Operand>& flats : away) {
      gone.push_back(bring(std::move(flats), action));
      reads.push_back(gone.back());
    }
    reads.insert(reads.end(), here.begin(), here.end());
  }
  action.reads = std::move(reads);
  const bool is_forward = action.operation == &operations::kForward;
  const bool is_backward = is_first_of_backward(action);
  const int layer = action.layer;
  const auto on_host = inputs_.find({layer, action.micro_step});
  const Operand there{.buffer = on_host == inputs_.end() ? -1 : on_host->second};
  const auto push = [&](const Operation& operation, const Operand& written) {
    actions_.push_back({.operation = &operation, .writes = {written}});
  };
  if (is_backward && leaves(layer)) {
    const auto input = std::ranges::find_if(action.reads, [&](const Operand& operand) {
      return schedule_.is_of_kind(operand, BufferKind::kActivation);
    });
    push(operations::kReserve, *input);
    copy(Lane::kCopyIn, {there}, *input);
  }
  const Operand output = is_forward ? action.writes.front() : Operand();
  actions_.push_back(std::move(action));
  if (is_forward && leaves(layer)) {
    copy(Lane::kCopyOut, {output}, there);
    push(operations::kRelease, output);
  }
  for (const Operand& content : gone) push(operations::kReshard, content);
}

void TierPass::run() {
  set_state(schedule_, schedule_.state());
  updates_.begin();
  add_inputs();
  std::vector<Action> given = std::move(schedule_.actions);
  for (std::size_t a = 0; a < given.size(); ++a) {
    Action& action = given[a];
    const bool gathers = action.operation == &operations::kAllGather;
    if (action.operation->is_pass) {
      pass(std::move(action));
    } else if (gathers && schedule_.is_of_kind(action.writes.front(), BufferKind::kWholeSlot)) {
      gather(std::move(action));
    } else {
      updates_.add(std::move(action), a);
    }
  }
  schedule_.actions = std::move(actions_);
}

}  // namespace

Schedule tiers(Schedule schedule) {
  TierPass(schedule).run();
  return schedule;
}

}  // namespace tessera
