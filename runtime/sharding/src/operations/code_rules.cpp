#include "operations/history_rules.h"
#include "operations/operation_rules.h"
#include "operations/rule_tools.h"

// The rules of matrices that are gathered as fp8 codes: their scales, and the codes.
namespace tessera::rules {
namespace {

/// The number of the flat parameter whose shard an operand names; -1: its codes are not gathered.
int entry_of(ContentWalk& walk, const Operand& operand, const Content& shard) {
  const auto name = walk.name_of(operand.buffer);
  const ScheduleBuffer& buffer = walk.schedule().buffer(operand);
  if (!shard.valid || shard.unit < 0) return -1;
  const bool is_kept = buffer.kind == BufferKind::kState && shard.role == Role::kParameter;
  const int entry = is_kept ? walk.scales().find(walk.id_of(shard)) : -1;
  if (walk.require_that(entry >= 0, name, " is no matrix whose codes are gathered")) {
    walk.require_that(
        shard.sharded == walk.scales().group_of(entry).axes, "reads ", name, " as ",
        [&] { return walk.sharding_text(shard.sharded); },
        ", and codes are gathered of what it is kept as");
  }
  return entry;
}

/// Requires that the buffer is for the scales of this flat parameter.
bool has_group(ContentWalk& walk, const Operand& scales, int entry) {
  const int group = walk.scales().group_in(walk.schedule(), scales.buffer);
  const auto number = static_cast<std::size_t>(entry);
  return walk.require_that(group >= 0 && group == walk.scales().entries()[number].group,
                           walk.name_of(scales.buffer), " is not for the scales of ",
                           walk.unit_name(walk.scales().entries()[number].id.unit));
}

}  // namespace

void require_scales(ContentWalk& walk, const Operand& scales, const Content& of) {
  const int entry = walk.scales().find(walk.id_of(of));
  if (!walk.require_that(entry >= 0, walk.unit_name(of.unit), " has no scales") ||
      !has_group(walk, scales, entry)) {
    return;
  }
  const Content words = walk.read(scales);
  if (!words.valid) return;
  const auto name = walk.name_of(scales.buffer);
  walk.require_that(words.partial.empty(), "reads ", name,
                    ", which holds the largest magnitudes of this rank's shards: the maximum is "
                    "still to be taken over ",
                    [&] { return to_string(words.partial); });
  walk.require_that(words.begin <= entry && entry < words.end, "reads ", name,
                    ", in which the scales of ", walk.unit_name(of.unit), " are missing");
  walk.require_that(words.version == of.version, "reads ", name,
                    ", whose scales are of parameters before their update");
}

void amax(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  const Content shard = walk.read(from);
  const int entry = entry_of(walk, from, shard);
  if (entry < 0) return;
  if (!walk.histories().empty()) {
    const bool is_maxima = walk.schedule().is_of_kind(to, BufferKind::kMaxima);
    walk.require_that(is_maxima, walk.name_of(to.buffer), " is for no magnitudes of this step");
    walk.require_that(shard.version == 0, "reads ", walk.name_of(from.buffer),
                      ", which this step has updated already");
    walk.require_that(walk.observed().insert(entry).second, "takes the largest magnitudes of ",
                      walk.name_of(from.buffer), " again");
    if (is_maxima) add_maxima(walk, to);
    return;
  }
  if (!has_group(walk, to, entry)) return;
  const Content& there = walk.at(to.buffer);
  walk.require_that(!to.adds || !there.valid || there.version == shard.version, "adds to ",
                    walk.name_of(to.buffer), " scales of other updates");
  walk.write(to, {.valid = true,
                  .role = Role::kScales,
                  .partial = shard.sharded,
                  .version = shard.version,
                  .begin = entry,
                  .end = entry + 1});
}

void all_reduce_max(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 1, 1)) return;
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  if (walk.schedule().is_of_kind(from, BufferKind::kMaxima)) return join_maxima(walk, action);
  const auto name = walk.name_of(from.buffer);
  Content words = walk.read(from);
  if (!words.valid) return;
  const int group = walk.scales().group_in(walk.schedule(), from.buffer);
  if (!walk.require_that(words.role == Role::kScales && group >= 0, name, " holds no scales") ||
      !walk.require_that(from.buffer == to.buffer && !to.adds,
                         "must write the buffer that it reads, ", name)) {
    return;
  }
  const ScaleTable::Group& all = walk.scales().groups()[static_cast<std::size_t>(group)];
  walk.require_that(words.begin == all.begin && words.end == all.end, "joins ", name,
                    ", in which scales are missing");
  walk.require_that(
      words.partial == action.axes, "takes the maximum of ", name, " over ",
      [&] { return to_string(action.axes); }, ", but ranks' differ over ",
      [&] { return to_string(words.partial); });
  words.partial = {};
  walk.at(to.buffer).valid = false;
  walk.write(to, words);
}

void encode(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 2, 1)) return;
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  Content content = walk.read(from);
  if (entry_of(walk, from, content) < 0) return;
  const Operand& scales = action.reads.back();
  if (walk.histories().empty()) {
    require_scales(walk, scales, content);
  } else if (walk.require_that(walk.schedule().is_of_kind(scales, BufferKind::kHistory),
                               "must read the histories of ", walk.unit_name(content.unit))) {
    require_history(walk, scales);
    walk.require_that(content.version == 0, "encodes ", walk.name_of(from.buffer),
                      ", which this step has updated already");
  }
  const ScheduleBuffer& target = walk.schedule().buffer(to);
  walk.require_that(target.kind == BufferKind::kShardSlot && target.role == Role::kCode,
                    walk.name_of(to.buffer), " is no slot for a shard's codes");
  walk.require_that(target.format == DType::kUInt8, "writes codes in ",
                    [&] { return to_string(target.format); });
  walk.require_that(!to.adds, "adds where it encodes");
  content.role = Role::kCode;
  walk.write(to, content);
}

}  // namespace tessera::rules
