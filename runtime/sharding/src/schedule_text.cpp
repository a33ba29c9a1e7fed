#include <algorithm>
#include <array>
#include <sstream>

#include "schedule_words.h"
#include "tessera/core/error.h"
#include "tessera/sharding/schedule.h"

// The printed form of a schedule. parse_schedule.cpp reads it back; a line is a keyword (or, of
// actions, the index) followed by words, so columns are only for the eye.
namespace tessera {
namespace {

using Row = std::vector<std::string>;

// Writes rows as columns two blanks apart: numbers to the right, words to the left.
void write_table(std::ostream& out, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size(), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
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

std::string subject_of(const Schedule& schedule, const Action& action) {
  switch (subject_of(action.kind)) {
    case ActionSubject::kUnit:
      return name_of(schedule.units, action.unit);
    case ActionSubject::kLayer:
      return name_of(schedule.layers, action.layer);
    case ActionSubject::kStep:
      break;
  }
  return {};
}

std::string slot_name(char letter, int slot) {
  return slot < 0 ? std::string("buffer") : concat(letter, slot);
}

void write_header(std::ostream& out, const Schedule& schedule) {
  const Placement& placement = schedule.placement;
  const auto line = [&out](std::string key, const auto&... value) {
    key.resize(22, ' ');
    (out << key << ... << value) << '\n';
  };
  out << kScheduleTitle << "\n\n";
  line("mesh", "replicate ", schedule.mesh.replicate, " shard ", schedule.mesh.shard);
  line("parameter", "over ", to_string(placement.parameter), " in ",
       to_string(schedule.parameter_dtype));
  line("gradient", "over ", to_string(placement.gradient), " in ",
       to_string(schedule.reduce_dtype));
  line("optimizer", "over ", to_string(placement.optimizer));
  line("reduction_order", to_string(schedule.reduction_order));
  line("micro_steps", schedule.micro_steps);
  line("accumulate_unsharded", schedule.accumulate_unsharded ? "yes" : "no");
  line("recompute", to_string(schedule.recompute));
  line("first_backward_layer", schedule.first_backward_layer);
}

void write_units(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows{{"# unit", "name", "trainable", "frozen"}};
  for (const ScheduleUnit& unit : schedule.units) {
    rows.push_back(
        {"unit", quote_name(unit.name), concat(unit.trainable_numel), concat(unit.frozen_numel)});
  }
  out << "\n# What is gathered and released together, in elements with padding.\n";
  write_table(out, rows);
}

std::string unit_list(const Schedule& schedule, const std::vector<int>& units) {
  std::string text;
  for (int unit : units) text += (text.empty() ? "" : " ") + name_of(schedule.units, unit);
  return text.empty() ? "-" : text;
}

void write_layers(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows{{"# layer", "name", "", "forward reads", "", "backward reads", "",
                         "backward writes gradients"}};
  for (const ScheduleLayer& layer : schedule.layers) {
    rows.push_back({"layer", quote_name(layer.name), "|", unit_list(schedule, layer.forward_reads),
                    "|", unit_list(schedule, layer.backward_reads), "|",
                    unit_list(schedule, layer.gradients)});
  }
  out << "\n# Layers in order, and the units that they touch.\n";
  write_table(out, rows);
}

void write_slots(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < schedule.parameter_slots.size(); ++i) {
    rows.push_back({"slot", concat('p', i), concat(schedule.parameter_slots[i])});
  }
  for (std::size_t i = 0; i < schedule.gradient_slots.size(); ++i) {
    rows.push_back({"slot", concat('g', i), concat(schedule.gradient_slots[i])});
  }
  if (!rows.empty()) {
    out << "\n# Buffers for whole units, p: parameters, g: gradients; in elements.\n";
    write_table(out, rows);
  }
  rows.clear();
  for (const GradientTarget& target : schedule.gradient_targets) {
    rows.push_back({"target", name_of(schedule.units, target.unit), concat('m', target.micro_step),
                    concat("-> ", slot_name('g', target.slot))});
  }
  if (!rows.empty()) {
    out << "\n# Where backward writes a unit's gradient in a micro-step.\n";
    write_table(out, rows);
  }
}

std::string slot_cell(const Action& action) {
  if (action.kind == ActionKind::kReduceScatter) return "<- " + slot_name('g', action.slot);
  if (action.slot == -1) return {};
  switch (action.kind) {
    case ActionKind::kUnshard:
      return concat("-> p", action.slot);
    case ActionKind::kReshard:
      return concat("free p", action.slot);
    case ActionKind::kRound:
      return concat("-> g", action.slot);
    default:
      return concat("<- g", action.slot);
  }
}

void write_actions(std::ostream& out, const Schedule& schedule) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    std::string after;
    for (int wait : action.waits) after += concat(after.empty() ? "after " : " ", wait);
    rows.push_back({concat(i), std::string(to_string(action.lane())),
                    std::string(to_string(action.kind)), subject_of(schedule, action),
                    action.micro_step == -1 ? std::string() : concat('m', action.micro_step),
                    slot_cell(action),
                    action.axes.empty() ? std::string() : "over " + to_string(action.axes),
                    action.accumulate ? "accumulate" : "", after});
  }
  out << "\n# Actions in the order of issue: number, lane, kind, unit or layer, micro-step, slot\n"
         "# written (->), read (<-) or released (free), axes, and the actions that must have\n"
         "# finished before.\n";
  write_table(out, rows);
}

}  // namespace

std::string to_string(const Schedule& schedule) {
  std::ostringstream out;
  write_header(out, schedule);
  write_units(out, schedule);
  write_layers(out, schedule);
  write_slots(out, schedule);
  write_actions(out, schedule);
  return out.str();
}

std::string describe(const Schedule& schedule, const Action& action) {
  std::string text(to_string(action.kind));
  const std::string subject = subject_of(schedule, action);
  if (!subject.empty()) text += ' ' + subject;
  if (!action.axes.empty()) text += " over " + to_string(action.axes);
  switch (action.kind) {
    case ActionKind::kUnshard:
      text += " -> " + slot_name('p', action.slot);
      break;
    case ActionKind::kReshard:
      text += ", slot " + slot_name('p', action.slot);
      break;
    case ActionKind::kReduceScatter:
    case ActionKind::kAccumulate:
      if (action.slot < 0) {
        text += ", in the gradient buffer";
      } else {
        const bool add =
            action.kind == ActionKind::kAccumulate ? action.micro_step > 0 : action.accumulate;
        text += concat(", slot g", action.slot, add ? " added to gradient" : " -> gradient");
      }
      break;
    case ActionKind::kRound:
      text += ", gradient -> slot " + slot_name('g', action.slot);
      break;
    default:
      break;
  }
  if (action.micro_step >= 0) text += concat(", m", action.micro_step);
  return text;
}

}  // namespace tessera
