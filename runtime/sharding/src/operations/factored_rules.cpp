#include "operations/factored_rules.h"

#include <algorithm>

#include "operations/operation_rules.h"
#include "operations/rule_tools.h"

// The rules of a factored optimizer: sums over matrices, moments of rows and columns, and what
// optimizer steps need of them.
namespace tessera::rules {
namespace {

/// The statistics of this kind that an action reads, of all ranks and with those of the entry. An
/// invalid content: a violation has been reported.
Content read_statistics(ContentWalk& walk, const Action& action, BufferKind kind, int entry) {
  const Operand* const operand = scalars(walk, action.reads, kind);
  if (operand == nullptr) return {};
  const Content content = walk.read(*operand);
  const auto name = walk.name_of(operand->buffer);
  const bool holds =
      walk.require_that(content.partial.empty(), "reads ", name,
                        ", which holds this rank's sums: ", "they are still to be added over ",
                        [&] { return to_string(content.partial); }) &&
      walk.require_that(
          content.begin <= entry && entry < content.end, "reads ", name, ", in which those of ",
          [&] {
            return walk.unit_name(
                walk.factored().entries()[static_cast<std::size_t>(entry)].id.unit);
          },
          " are missing");
  return holds ? content : Content();
}

/// Adds the statistics of one entry to a buffer of this kind, in the order of entries.
void write_statistics(ContentWalk& walk, const Operand& to, BufferKind kind, int entry,
                      AxisSet partial) {
  walk.require_that(walk.schedule().is_of_kind(to, kind), walk.name_of(to.buffer), " is no ",
                    to_string(kind));
  walk.require_that(to.adds == (entry > 0), entry > 0 ? "overwrites " : "adds to ",
                    walk.name_of(to.buffer),
                    entry > 0 ? ", which has statistics of other flat parameters"
                              : ", which has nothing of this step yet");
  walk.write(to, {.valid = true,
                  .role = Role::kStatistics,
                  .partial = partial,
                  .begin = entry,
                  .end = entry + 1});
}

/// The results, with the clip factor.
void read_results(ContentWalk& walk, const Action& action) {
  const Operand* const results = scalars(walk, action.reads, BufferKind::kResults);
  if (results == nullptr) return;
  walk.require_that(walk.read(*results).kept, "'", to_string(BufferKind::kResults),
                    "' has no clip factor: the results were made without '",
                    to_string(BufferKind::kNorm), "'");
}

/// The number of the flat parameter whose complete gradient an action reads first; -1: a violation
/// has been reported.
int read_gradient(ContentWalk& walk, const Action& action) {
  const Operand& operand = action.reads.front();
  const Content gradient = walk.read(operand);
  const auto name = walk.name_of(operand.buffer);
  if (!walk.require_that(gradient.valid && gradient.role == Role::kGradient && gradient.unit >= 0,
                         name, " holds no gradient")) {
    return -1;
  }
  require_complete(walk, gradient);
  walk.require_mirrors_added(walk.id_of(gradient));
  walk.require_that(gradient.sharded == walk.factored().axes(), "ranks must read parts of ", name,
                    " that are sharded over ", [&] { return to_string(walk.factored().axes()); });
  walk.require_that(walk.schedule().buffer(operand).format == DType::kFloat32,
                    "the gradient is not in fp32");
  const int entry = walk.factored().find(walk.id_of(gradient));
  walk.require_that(entry >= 0, walk.unit_name(gradient.unit),
                    " has no moments of rows and columns");
  return entry;
}

const FlatId& id_of_entry(const ContentWalk& walk, int entry) {
  return walk.factored().entries()[static_cast<std::size_t>(entry)].id;
}

/// Requires that the operand is what the optimizer updates, before the update.
void read_master(ContentWalk& walk, const Operand& operand, const FlatId& id) {
  const Schedule& schedule = walk.schedule();
  const std::vector<int>& state = walk.state_of(id);
  const bool has_master = std::ranges::any_of(
      state, [&](int buffer) { return schedule.role(buffer) == Role::kMaster; });
  const bool fits =
      std::ranges::find(state, operand.buffer) != state.end() &&
      schedule.role(operand.buffer) == (has_master ? Role::kMaster : Role::kParameter);
  const Content content = walk.read(operand);
  walk.require_that(fits, walk.name_of(operand.buffer), " is not what the optimizer updates of ",
                    walk.unit_name(id.unit));
  walk.require_that(content.version == 0, "reads ", walk.name_of(operand.buffer),
                    ", which this step has updated already");
  walk.require_that(content.sharded == walk.factored().axes(), "ranks must read parts of ",
                    walk.name_of(operand.buffer), " that are sharded over ",
                    [&] { return to_string(walk.factored().axes()); });
}

}  // namespace

void square_sums(ContentWalk& walk, const Action& action) {
  const bool scales = walk.schedule().scale_parameter;
  if (!has_operands(walk, action, scales ? 3 : 2, 1)) return;
  const int entry = read_gradient(walk, action);
  if (entry < 0) return;
  read_results(walk, action);
  if (scales) read_master(walk, action.reads[2], id_of_entry(walk, entry));
  write_statistics(walk, action.writes.front(), BufferKind::kSquares, entry,
                   walk.factored().axes());
}

void join_statistics(ContentWalk& walk, const Action& action) {
  const Operand& from = action.reads.front();
  const Operand& to = action.writes.front();
  const auto name = walk.name_of(from.buffer);
  Content sums = walk.read(from);
  if (!sums.valid || !walk.require_that(from.buffer == to.buffer && !to.adds,
                                        "must write the buffer that it reads, ", name)) {
    return;
  }
  walk.require_that(!walk.schedule().is_of_kind(from, BufferKind::kFactors), name,
                    " holds no sums");
  const auto all = static_cast<int>(walk.factored().entries().size());
  walk.require_that(sums.begin == 0 && sums.end == all, "adds up ", name,
                    ", in which sums are missing");
  walk.require_that(
      sums.partial == action.axes, "adds up ", name, " over ",
      [&] { return to_string(action.axes); }, ", but ranks' differ over ",
      [&] { return to_string(sums.partial); });
  sums.partial = {};
  walk.at(to.buffer).valid = false;
  walk.write(to, sums);
}

void moments(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 3, 2)) return;
  const Operand& kept = action.reads.back();
  Content content = walk.read(kept);
  const ScheduleBuffer& buffer = walk.schedule().buffer(kept);
  const int entry = content.valid && content.unit >= 0 && buffer.is_factored()
                        ? walk.factored().find(walk.id_of(content))
                        : -1;
  if (!walk.require_that(entry >= 0, walk.name_of(kept.buffer), " holds no moments")) return;
  read_results(walk, action);
  read_statistics(walk, action, BufferKind::kSquares, entry);
  walk.require_that(action.writes.front() == kept, "must write the moments that it reads");
  walk.require_that(content.version == 0, walk.name_of(kept.buffer), " was updated already");
  content.version = 1;
  walk.write(action.writes.front(), content);
  write_statistics(walk, action.writes.back(), BufferKind::kFactors, entry, {});
}

void update_squares(ContentWalk& walk, const Action& action) {
  if (!has_operands(walk, action, 3, 1)) return;
  const int entry = read_gradient(walk, action);
  if (entry < 0) return;
  read_results(walk, action);
  read_statistics(walk, action, BufferKind::kFactors, entry);
  write_statistics(walk, action.writes.front(), BufferKind::kUpdateSquares, entry,
                   walk.factored().axes());
}

void require_statistics(ContentWalk& walk, const Action& step, const FlatId& id) {
  const int entry = walk.factored().find(id);
  if (entry < 0) return;
  read_statistics(walk, step, BufferKind::kFactors, entry);
  read_statistics(walk, step, BufferKind::kUpdateSquares, entry);
  if (walk.schedule().scale_parameter) read_statistics(walk, step, BufferKind::kSquares, entry);
}

}  // namespace tessera::rules
