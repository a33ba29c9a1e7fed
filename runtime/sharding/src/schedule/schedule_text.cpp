#include <algorithm>
#include <array>
#include <sstream>

#include "schedule/schedule_policy.h"
#include "schedule/schedule_words.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule.h"

// The printed form of a schedule. parse_schedule.cpp reads it back; a line is a keyword (or, of
// actions, the index) followed by words, so columns are only for the eye.
namespace tessera {
namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kWidestColumn = 48;

// Writes rows as columns two blanks apart: numbers to the right, words to the left. What is wider
// than kWidestColumn pushes the rest of its row aside.
void write_table(std::ostream& out, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].size() <= kWidestColumn) widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - std::min(widths[i], row[i].size()), ' ');
      const bool number = !row[i].empty() && row[i].find_first_not_of("0123456789") == row[i].npos;
      line += (number ? pad + row[i] : row[i] + pad) + (widths[i] > 0 ? "  " : "");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

template <typename Item>
std::string name_of(const std::vector<Item>& items, int index) {
  if (index < 0 || static_cast<std::size_t>(index) >= items.size()) {
    return concat('?', index);  // a broken schedule still prints; it does not parse
  }
  return quote_name(items[static_cast<std::size_t>(index)].name);
}

void write_header(std::ostream& out, const Schedule& schedule) {
  const Placement& placement = schedule.placement;
  const auto line = [&out](std::string key, const auto&... value) {
    key.resize(22, ' ');
    (out << key << ... << value) << '\n';
  };
  out << kScheduleTitle << "\n\n";
  line("purpose", to_string(schedule.purpose));
  line("mesh", to_string(schedule.mesh, " "));
  line("parameter", "over ", to_string(placement.parameter), " in ",
       to_string(schedule.parameter_dtype));
  if (placement.frozen) line("frozen", "over ", to_string(*placement.frozen));
  line("gradient", "over ", to_string(placement.gradient), " in ",
       to_string(schedule.reduce_dtype));
  line("optimizer", "over ", to_string(placement.optimizer));
  line("micro_steps", schedule.micro_steps);
  line("recompute", to_string(schedule.policy.recompute));
  line("first_backward_layer", schedule.first_backward_layer);
  for (const PolicyRow& row : policy_rows()) {
    if (!is_written(row, schedule)) continue;
    line("policy", row.name, std::string(22 - std::min<std::size_t>(21, row.name.size()), ' '),
         row.write(schedule));
  }
}

void write_units(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> units{{"# unit", "name"}};
  std::vector<Row> flats{{"# flat", "unit", "name", "format", "numel", "", "decoded"}};
  for (const ScheduleUnit& unit : schedule.units) {
    Row row{"unit", quote_name(unit.name)};
    if (schedule.pipeline_ranks() > 1) row.push_back(concat("rank ", unit.rank));
    if (unit.mirrors >= 0) row.push_back("mirrors " + name_of(schedule.units, unit.mirrors));
    units.push_back(std::move(row));
    for (const ScheduleFlat& flat : unit.flats) {
      flats.push_back({"flat", quote_name(unit.name), quote_name(flat.name),
                       std::string(to_string(flat.format)), concat(flat.numel),
                       flat.trainable ? "trained" : "frozen"});
      if (flat.has_codes()) flats.back().push_back(concat("e4m3 ", flat.matrices));
      if (flat.factored_matrices > 0) {
        flats.back().push_back(
            concat("factored ", flat.factored_numbers, ' ', flat.factored_matrices));
      }
      if (flat.is_quantized()) flats.back().push_back(concat(flat.decoded_numel));
    }
  }
  out << "\n# What is gathered and released together.\n";
  write_table(out, units);
  out << "\n# Flat parameters of units, in elements with padding.\n";
  write_table(out, flats);
}

/// "h.1", and "h.1+parameter+frozen" with flat parameters.
std::string with_flats(const Schedule& schedule, int unit, FlatSet flats) {
  std::string text = name_of(schedule.units, unit);
  for (int f = 0; f < FlatSet::kMost; ++f) {
    if (!flats.contains(f)) continue;
    const bool exists = unit >= 0 && unit < std::ssize(schedule.units);
    static const std::vector<ScheduleFlat> kNoFlats;
    text +=
        '+' + name_of(exists ? schedule.units[static_cast<std::size_t>(unit)].flats : kNoFlats, f);
  }
  return text;
}

/// A unit with one flat parameter, which is not named if it is the first.
std::string with_flat(const Schedule& schedule, const FlatId& id) {
  return with_flats(schedule, id.unit, id.flat == 0 ? FlatSet() : FlatSet{id.flat});
}

std::string gradient_list(const Schedule& schedule, const std::vector<FlatId>& flats) {
  std::string text;
  for (const FlatId& id : flats) text += (text.empty() ? "" : " ") + with_flat(schedule, id);
  return text.empty() ? "-" : text;
}

std::string unit_list(const Schedule& schedule, const std::vector<int>& units) {
  std::string text;
  for (int unit : units) text += (text.empty() ? "" : " ") + name_of(schedule.units, unit);
  return text.empty() ? "-" : text;
}

/// Some of "batch", "split", "classes 2" and "histories 4", or "-".
std::string marks_of(const ScheduleLayer& layer) {
  std::string marks = layer.reads_batch ? "batch" : "";
  const auto add = [&](const std::string& mark) { marks += (marks.empty() ? "" : " ") + mark; };
  if (layer.splits_backward) add("split");
  if (layer.counted_classes > 0) add(concat("classes ", layer.counted_classes));
  if (layer.fp8_histories > 0) add(concat("histories ", layer.fp8_histories));
  return marks.empty() ? "-" : marks;
}

void write_layers(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows{{"# layer", "name", "", "forward reads", "", "backward reads", "",
                         "backward writes gradients", "", "all read"}};
  for (const ScheduleLayer& layer : schedule.layers) {
    rows.push_back({"layer", quote_name(layer.name), "|", unit_list(schedule, layer.forward_reads),
                    "|", unit_list(schedule, layer.backward_reads), "|",
                    gradient_list(schedule, layer.gradients), "|", marks_of(layer)});
  }
  out << "\n# Layers in order, and the units that they touch; of some, all passes read the "
         "batch, or backward\n# is two passes ('split').\n";
  write_table(out, rows);
}

void write_parts(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows{{"# part", "unit", "first tensor", "tensors", "", "layers"}};
  for (int u = 0; u < static_cast<int>(schedule.units.size()); ++u) {
    const std::vector<ScheduleFlat>& flats = schedule.units[static_cast<std::size_t>(u)].flats;
    for (int f = 0; f < static_cast<int>(flats.size()); ++f) {
      for (const GradientPart& part : flats[static_cast<std::size_t>(f)].parts) {
        Row row{"part", with_flat(schedule, {u, f}), quote_name(part.name), concat(part.tensors),
                "|"};
        std::string layers;
        for (const int layer : part.layers) {
          layers += (layers.empty() ? "" : " ") + name_of(schedule.layers, layer);
        }
        row.push_back(layers);
        rows.push_back(std::move(row));
      }
    }
  }
  out << "\n# Tensors of a unit whose gradients come from the same layers, in order of backward.\n";
  write_table(out, rows);
}

/// "master", and "optimizer:first-moment" of an optimizer's tensor.
std::string role_of(const ScheduleBuffer& buffer) {
  const std::string role(to_string(buffer.role));
  return buffer.tensor.empty() ? role : concat(role, ':', quote_name(buffer.tensor));
}

/// The unit, or the layer, whose it is.
std::string owner_of(const Schedule& schedule, const ScheduleBuffer& buffer) {
  if (buffer.layer >= 0) return name_of(schedule.layers, buffer.layer);
  return buffer.unit < 0 ? "-" : with_flat(schedule, {buffer.unit, buffer.flat});
}

void write_buffers(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows{{"# buffer", "name", "kind", "role", "of", "at", "format", "sharded",
                         "numel", "tier", "kept"}};
  for (const ScheduleBuffer& buffer : schedule.buffers) {
    rows.push_back(
        {"buffer", quote_name(buffer.name), std::string(to_string(buffer.kind)), role_of(buffer),
         owner_of(schedule, buffer), buffer.micro_step < 0 ? "-" : concat('m', buffer.micro_step),
         format_of(buffer), to_string(buffer.sharded), concat(buffer.numel),
         std::string(to_string(buffer.tier)), buffer.persistent ? "persistent" : "step"});
  }
  out << "\n# Buffers of one rank, in elements: of a unit, or of a layer at a micro-step. The "
         "memory "
         "of\n# activations, x.LAYER.mN, and of their gradients, d.LAYER.mN, comes and goes; "
         "batches, batch.mN,\n# are there when the step begins.\n";
  write_table(out, rows);
}

/// How many of the last reads are written as well, as the same operands in the same order: they are
/// named once, among the writes, with a '*'.
std::size_t count_updated(const Action& action) {
  std::size_t updated = 0;
  for (auto write = action.writes.rbegin(); write != action.writes.rend(); ++write) {
    if (updated == action.reads.size()) break;
    if (action.reads[action.reads.size() - 1 - updated] == *write) ++updated;
  }
  return updated;
}

/// "g1=h.3 -> h.3.gradient".
std::string operand_list(const Schedule& schedule, const Action& action) {
  const std::size_t first_updated = action.reads.size() - count_updated(action);
  std::string text;
  for (std::size_t i = 0; i < first_updated; ++i) {
    text += describe(schedule, action.reads[i]) + ' ';
  }
  text += "->";
  std::size_t next = first_updated;
  for (const Operand& operand : action.writes) {
    const bool updated = next < action.reads.size() && action.reads[next] == operand;
    if (updated) ++next;
    text += concat(updated ? " *" : " ", describe(schedule, operand));
  }
  return text;
}

/// "h.3 m0", "over shard", of a message "h.3 m0 to 1" or "- from 3", or nothing.
std::string scope_of(const Schedule& schedule, const Action& action) {
  std::string text;
  if (action.operation != nullptr && action.operation->is_pass) {
    text = concat(name_of(schedule.layers, action.layer), " m", action.micro_step);
  }
  if (action.operation != nullptr && action.operation->is_message) {
    text = action.layer < 0
               ? std::string("-")
               : concat(name_of(schedule.layers, action.layer), " m", action.micro_step);
    text += concat(action.writes.empty() ? " to " : " from ", action.peer);
  }
  if (!action.axes.empty()) text += (text.empty() ? "over " : " over ") + to_string(action.axes);
  return text;
}

std::string_view operation_name(const Action& action) {
  return action.operation == nullptr ? std::string_view("nothing") : action.operation->name;
}

void write_actions(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    std::string after;
    for (const int wait : action.waits) after += concat(after.empty() ? "after " : " ", wait);
    for (std::size_t w = 0; w < action.previous_waits.size(); ++w) {
      after += concat(w > 0           ? " "
                      : after.empty() ? "previous "
                                      : " previous ",
                      action.previous_waits[w]);
    }
    rows.push_back({concat(i), std::string(to_string(action.lane)),
                    std::string(operation_name(action)), scope_of(schedule, action),
                    operand_list(schedule, action), after});
  }
  out << "\n# Actions in the order of issue: number, lane, operation, layer and micro-step or "
         "axes, buffers\n"
         "# read -> written, and the actions that must have finished before: 'after' of this step, "
         "'previous'\n"
         "# of the one before. p0=h.1: slot p0, with h.1; a/shard: this rank's part of a over that "
         "axis;\n"
         "# a/none: all of a; +a: added to a; *a: read as well.\n";
  write_table(out, rows);
}

}  // namespace

std::string to_string(const Schedule& schedule) {
  std::ostringstream out;
  write_header(out, schedule);
  write_units(out, schedule);
  write_layers(out, schedule);
  write_parts(out, schedule);
  write_buffers(out, schedule);
  write_actions(out, schedule);
  return out.str();
}

std::string describe(const Schedule& schedule, const Operand& operand) {
  std::string text = operand.adds ? "+" : "";
  const bool exists =
      operand.buffer >= 0 && operand.buffer < static_cast<int>(schedule.buffers.size());
  const std::string name = schedule.name_of(operand.buffer);  // of a broken schedule, "?7"
  text += exists ? quote_name(name) : name;
  if (operand.unit != (exists ? schedule.buffer(operand).unit : -1) || !operand.flats.empty()) {
    text += '=' + with_flats(schedule, operand.unit, operand.flats);
  }
  if (operand.sharded != (exists ? schedule.buffer(operand).sharded : AxisSet{})) {
    text += '/' + to_string(operand.sharded);
  }
  return text;
}

std::string describe(const Schedule& schedule, const Action& action) {
  std::string text(operation_name(action));
  const std::string scope = scope_of(schedule, action);
  if (!scope.empty()) text += ' ' + scope;
  return text + ' ' + operand_list(schedule, action);
}

}  // namespace tessera
