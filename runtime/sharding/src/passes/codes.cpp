#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/sharding/passes.h"
#include "tessera/sharding/scales.h"

// [Note: gathers in E4M3]
//
// 1. A code is e4m3(bf16 * scale) whether a rank rounds its shard or the gathered matrix, if the
//    scale is the same: that of the whole matrix, the maximum over the shards. So gathers of codes
//    give the bits of gathers of bf16, with half the bytes.
// 2. Scales are of a step: of the parameters that it begins with. Before the first gather of a
//    group of units, each rank takes the largest magnitudes in its shards, and one message joins
//    them. More units in a group are fewer messages, and a forward that waits for the updates of
//    more units.
// 3. Each gather encodes its shard anew, behind the gather before it on the same lane, so that one
//    slot is enough and nothing is kept from step to step but what bf16 keeps.
// 4. With delayed scaling ([Note: delayed scaling]) the histories have the scales: nothing is
// joined
//    before a gather, and the largest magnitudes of shards go to the maxima of the step.
// 5. Parameters that come from the host are gathered in bf16: their shards pass the device on their
//    way to the gather alone, too late for scales.
namespace tessera {
namespace {

class Coding {
 public:
  explicit Coding(Schedule& schedule)
      : schedule_(schedule), table_(schedule), history_(schedule.find(BufferKind::kHistory)) {}

  void run();

 private:
  /// The operands that one of gathered parameters becomes.
  struct Split {
    std::vector<Operand> codes{};
    std::optional<Operand> rest{};  ///< in bf16
  };

  bool is_delayed() const { return history_ >= 0; }
  void join_scales(int group);
  void take_maxima(const Action& pass);
  Operand encode(const Operand& shard, int entry);
  Operand gather_codes(const Operand& shard, AxisSet axes);
  void gather(Action action);
  void read_codes(std::vector<Operand>& reads) const;
  int entry_of(const Operand& shard) const;
  Operand scales_of(int entry) const {
    if (is_delayed()) return {.buffer = history_};
    const int group = table_.entries()[static_cast<std::size_t>(entry)].group;
    return {.buffer = scales_[static_cast<std::size_t>(group)]};
  }
  const std::string& unit_name(const Operand& operand) const {
    return schedule_.units[static_cast<std::size_t>(operand.unit)].name;
  }

  Schedule& schedule_;
  const ScaleTable table_;
  const int history_;  ///< buffer; -1: scales are of this step's parameters
  std::vector<Action> actions_;
  std::vector<int> scales_;      ///< buffers, by group
  std::vector<bool> is_joined_;  ///< by group
  /// By entry: whether the largest magnitudes of its matrices have been taken for the histories.
  std::vector<bool> is_observed_;
  std::map<int, Split> splits_;  ///< by buffer of gathered parameters
};

/// The number of a flat parameter whose shard is gathered from where it is kept; -1: none.
int Coding::entry_of(const Operand& shard) const {
  if (!is_flat_parameter(schedule_.buffer(shard))) return -1;
  return table_.find(id_of(schedule_, shard));
}

void Coding::join_scales(int number) {
  const auto g = static_cast<std::size_t>(number);
  if (is_joined_[g]) return;
  is_joined_[g] = true;
  const ScaleTable::Group& group = table_.groups()[g];
  for (int entry = group.begin; entry < group.end; ++entry) {
    const FlatId id = table_.entries()[static_cast<std::size_t>(entry)].id;
    const int kept = schedule_.find(Role::kParameter, id.unit, id.flat);
    Operand words = scales_of(entry);
    words.adds = entry > group.begin;
    actions_.push_back({.operation = &operations::kAmax,
                        .lane = Lane::kGather,
                        .reads = {{.buffer = kept, .unit = id.unit, .sharded = group.axes}},
                        .writes = {words}});
  }
  const Operand words{.buffer = scales_[g]};
  actions_.push_back({.operation = &operations::kAllReduceMax,
                      .lane = Lane::kGather,
                      .reads = {words},
                      .writes = {words},
                      .axes = group.axes});
}

/// A shard's codes, in a slot for the gather.
Operand Coding::encode(const Operand& shard, int entry) {
  Operand codes{.buffer = add_buffer(
                    schedule_, {.name = concat(unit_name(shard), ".cs", schedule_.buffers.size()),
                                .kind = BufferKind::kShardSlot,
                                .role = Role::kCode,
                                .format = DType::kUInt8}),
                .unit = shard.unit,
                .sharded = shard.sharded};
  schedule_.set_flats(codes, schedule_.flats(shard));
  schedule_.buffers.back().numel = schedule_.numel(codes) / schedule_.mesh.size(codes.sharded);
  actions_.push_back({.operation = &operations::kEncode,
                      .lane = Lane::kGather,
                      .reads = {shard, scales_of(entry)},
                      .writes = {codes}});
  return codes;
}

Operand Coding::gather_codes(const Operand& shard, AxisSet axes) {
  const int entry = entry_of(shard);
  if (!is_delayed()) join_scales(table_.entries()[static_cast<std::size_t>(entry)].group);
  const Operand part = encode(shard, entry);
  Operand whole{.buffer = add_buffer(
                    schedule_, {.name = concat(unit_name(shard), ".c", schedule_.buffers.size()),
                                .kind = BufferKind::kWholeSlot,
                                .role = Role::kCode,
                                .format = DType::kUInt8}),
                .unit = shard.unit};
  schedule_.set_flats(whole, schedule_.flats(shard));
  schedule_.buffers.back().numel = schedule_.numel(whole);
  actions_.push_back({.operation = &operations::kAllGather,
                      .lane = Lane::kGather,
                      .reads = {part},
                      .writes = {whole},
                      .axes = axes});
  return whole;
}

void Coding::gather(Action action) {
  const auto is_coded = [this](const Operand& shard) { return entry_of(shard) >= 0; };
  if (std::ranges::none_of(action.reads, is_coded)) {
    actions_.push_back(std::move(action));
    return;
  }
  Operand whole = action.writes.front();
  Split& split = splits_[whole.buffer];
  std::vector<Operand> rest;
  FlatSet flats;
  for (const Operand& shard : action.reads) {
    if (is_coded(shard)) {
      split.codes.push_back(gather_codes(shard, action.axes));
      continue;
    }
    rest.push_back(shard);
    flats = flats | schedule_.flats(shard);
  }
  if (rest.empty()) return;
  schedule_.set_flats(whole, flats);
  schedule_.buffers[static_cast<std::size_t>(whole.buffer)].numel = schedule_.numel(whole);
  split.rest = whole;
  action.reads = std::move(rest);
  action.writes = {whole};
  actions_.push_back(std::move(action));
}

/// A pass reads codes and their scales in place of what was gathered in bf16.
void Coding::read_codes(std::vector<Operand>& reads) const {
  std::vector<Operand> replaced, scales;
  for (const Operand& operand : reads) {
    const auto found = splits_.find(operand.buffer);
    if (found == splits_.end()) {
      replaced.push_back(operand);
      continue;
    }
    const Split& split = found->second;
    if (split.rest) replaced.push_back(*split.rest);
    for (const Operand& codes : split.codes) {
      replaced.push_back(codes);
      if (is_delayed()) continue;  // passes read the histories of their layers
      const Operand words = scales_of(table_.find(id_of(schedule_, codes)));
      if (std::ranges::find(scales, words) == scales.end()) scales.push_back(words);
    }
  }
  replaced.insert(replaced.end(), scales.begin(), scales.end());
  reads = std::move(replaced);
}

/// Before the first pass that reads codes of a flat parameter, on the same lane: passes add to the
/// same maxima.
void Coding::take_maxima(const Action& pass) {
  const Operand maxima{.buffer = schedule_.find(BufferKind::kMaxima), .adds = true};
  for (const Operand& operand : pass.reads) {
    const auto found = splits_.find(operand.buffer);
    if (found == splits_.end()) continue;
    for (const Operand& codes : found->second.codes) {
      const int entry = table_.find(id_of(schedule_, codes));
      if (is_observed_[static_cast<std::size_t>(entry)]) continue;
      is_observed_[static_cast<std::size_t>(entry)] = true;
      const FlatId id = table_.entries()[static_cast<std::size_t>(entry)].id;
      actions_.push_back({.operation = &operations::kAmax,
                          .reads = {{.buffer = schedule_.find(Role::kParameter, id.unit, id.flat),
                                     .unit = id.unit,
                                     .sharded = table_.group_of(entry).axes}},
                          .writes = {maxima}});
    }
  }
}

void Coding::run() {
  if (table_.entries().empty()) return;
  is_joined_.resize(table_.groups().size());
  is_observed_.resize(table_.entries().size());
  for (const ScaleTable::Group& group : table_.groups()) {
    if (is_delayed()) break;
    scales_.push_back(add_buffer(schedule_, {.name = concat("scales.", scales_.size()),
                                             .kind = BufferKind::kScales,
                                             .role = Role::kScales,
                                             .format = DType::kInt32,
                                             .numel = group.numel}));
  }
  std::vector<Action> given = std::move(schedule_.actions);
  for (Action& action : given) {
    const bool gathers = action.operation == &operations::kAllGather;
    if (gathers && schedule_.is_of_kind(action.writes.front(), BufferKind::kWholeSlot)) {
      gather(std::move(action));
    } else if (action.operation == &operations::kReshard &&
               splits_.contains(action.writes.front().buffer)) {
      const Split& split = splits_.at(action.writes.front().buffer);
      std::vector<Operand> gone = split.codes;
      if (split.rest) gone.push_back(*split.rest);
      for (const Operand& content : gone) {
        actions_.push_back({.operation = &operations::kReshard, .writes = {content}});
      }
    } else {
      if (action.operation->is_pass) {
        if (is_delayed()) take_maxima(action);
        read_codes(action.reads);
      }
      actions_.push_back(std::move(action));
    }
  }
  schedule_.actions = std::move(actions_);
}

}  // namespace

Schedule codes(Schedule schedule) {
  Coding(schedule).run();
  return schedule;
}

}  // namespace tessera
