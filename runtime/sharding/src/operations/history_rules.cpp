#include "operations/history_rules.h"

#include "operations/operation_rules.h"
#include "operations/rule_tools.h"

// The rules of delayed scaling: histories of largest magnitudes, and the maxima of a step.
namespace tessera::rules {
namespace {

const Operand* find_kind(const ContentWalk& walk, const std::vector<Operand>& operands,
                         BufferKind kind) {
  return walk.schedule().find(operands, kind);
}

/// Requires that all actions that take largest magnitudes have done so.
bool is_complete(ContentWalk& walk, const Operand& maxima, const Content& content) {
  return walk.require_that(content.end == walk.observations(), "reads ",
                           walk.name_of(maxima.buffer), ", to which ", content.end, " of ",
                           walk.observations(), " actions have taken largest magnitudes");
}

}  // namespace

void require_history(ContentWalk& walk, const Operand& history) {
  const Content content = walk.read(history);
  walk.require_that(content.version == 0, "reads ", walk.name_of(history.buffer),
                    ", which has this step's magnitudes already");
}

void add_maxima(ContentWalk& walk, const Operand& maxima) {
  walk.require_that(maxima.adds, "overwrites ", walk.name_of(maxima.buffer),
                    ", which has magnitudes of other tensors");
  const int before = walk.at(maxima.buffer).end;
  walk.write(maxima, {.valid = true,
                      .role = Role::kMaxima,
                      .partial = walk.histories().axes(),
                      .begin = before,
                      .end = before + 1});
}

HistoryOperands observe(ContentWalk& walk, const Action& action) {
  if (walk.histories().first_tensor(action.layer) < 0) return {};
  const Operand* const history = find_kind(walk, action.reads, BufferKind::kHistory);
  if (walk.require_that(history != nullptr, "must read the histories of its layer")) {
    require_history(walk, *history);
  }
  if (!takes_maxima(action)) return {.reads = 1};
  const Operand* const maxima = find_kind(walk, action.writes, BufferKind::kMaxima);
  if (walk.require_that(maxima != nullptr, "must take the largest magnitudes of its layer")) {
    add_maxima(walk, *maxima);
  }
  return {.reads = 1, .writes = 1};
}

void join_maxima(ContentWalk& walk, const Action& action) {
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  Content words = walk.read(from);
  if (!words.valid ||
      !walk.require_that(from.buffer == to.buffer && !to.adds,
                         "must write the buffer that it reads, ", walk.name_of(from.buffer)) ||
      !is_complete(walk, from, words)) {
    return;
  }
  walk.require_that(
      words.partial == action.axes, "takes the maximum of ", walk.name_of(from.buffer), " over ",
      [&] { return to_string(action.axes); }, ", but ranks' differ over ",
      [&] { return to_string(words.partial); });
  words.partial = {};
  walk.at(to.buffer).valid = false;
  walk.write(to, words);
}

void roll_history(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 2, 2)) return;
  const Operand* const maxima = find_kind(walk, action.reads, BufferKind::kMaxima);
  const Operand* const history = find_kind(walk, action.reads, BufferKind::kHistory);
  const bool in_place = action.reads == action.writes;
  if (!walk.require_that(
          maxima != nullptr && history != nullptr && in_place && maxima == action.reads.data(),
          "must read and write maxima and histories")) {
    return;
  }
  const Content words = walk.read(*maxima);
  Content rolled = walk.read(*history);
  if (!words.valid || !rolled.valid || !is_complete(walk, *maxima, words)) return;
  walk.require_that(words.partial.empty(), "reads ", walk.name_of(maxima->buffer),
                    ", which holds the largest magnitudes of this rank alone: the maximum is "
                    "still to be taken over ",
                    [&] { return to_string(words.partial); });
  walk.require_that(rolled.version == 0, "moves ", walk.name_of(history->buffer),
                    " on, which has this step's magnitudes already");
  ++rolled.version;
  walk.at(maxima->buffer).valid = walk.at(history->buffer).valid = false;
  walk.write(action.writes[0],
             {.valid = true, .role = Role::kMaxima, .partial = walk.histories().axes()});
  walk.write(action.writes[1], rolled);
}

}  // namespace tessera::rules
