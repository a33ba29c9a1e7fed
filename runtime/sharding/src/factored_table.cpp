#include "tessera/sharding/factored_table.h"

#include <algorithm>

#include "tessera/kernels/exact_sum.h"

namespace tessera {

FactoredTable::FactoredTable(const Schedule& schedule) {
  if (schedule.purpose != Purpose::kTrain || !is_factored(schedule.optimizer_tensors)) return;
  fill(schedule.units, schedule.state(), schedule.scale_parameter);
}

FactoredTable::FactoredTable(const std::vector<ScheduleUnit>& units, const StateOptions& options,
                             bool scale_parameter) {
  if (is_factored(options.optimizer_tensors)) fill(units, options, scale_parameter);
}

void FactoredTable::fill(const std::vector<ScheduleUnit>& units, const StateOptions& options,
                         bool scale_parameter) {
  axes_ = ShardNesting(options.mesh, options.placement).placement().optimizer;
  scale_parameter_ = scale_parameter;
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    const ScheduleUnit& unit = units[static_cast<std::size_t>(u)];
    if (unit.rank != options.pipeline.rank || unit.mirrors >= 0) continue;
    for (int f = 0; f < static_cast<int>(unit.flats.size()); ++f) {
      const ScheduleFlat& flat = unit.flats[static_cast<std::size_t>(f)];
      if (!flat.trainable || flat.factored_matrices == 0) continue;
      entries_.push_back({.id = {u, f},
                          .first_number = numbers_,
                          .first_matrix = matrices_,
                          .numbers = flat.factored_numbers,
                          .matrices = flat.factored_matrices});
      numbers_ += flat.factored_numbers;
      matrices_ += flat.factored_matrices;
    }
  }
}

int FactoredTable::find(const FlatId& id) const {
  const auto found = std::ranges::find(entries_, id, &Entry::id);
  return found == entries_.end() ? -1 : static_cast<int>(found - entries_.begin());
}

std::int64_t FactoredTable::numel(BufferKind kind) const {
  switch (kind) {
    case BufferKind::kSquares:
      return numbers_ * kFactoredWords + (scale_parameter_ ? matrices_ * kExactSumWords : 0);
    case BufferKind::kFactors:
      return numbers_;
    case BufferKind::kUpdateSquares:
      return matrices_ * kExactSumWords;
    default:
      return 0;
  }
}

Range FactoredTable::part(BufferKind kind, const Entry& entry) const {
  switch (kind) {
    case BufferKind::kSquares:
      return {entry.first_number * kFactoredWords, entry.numbers * kFactoredWords};
    case BufferKind::kFactors:
      return {entry.first_number, entry.numbers};
    case BufferKind::kUpdateSquares:
      return {entry.first_matrix * kExactSumWords, entry.matrices * kExactSumWords};
    default:
      return {};
  }
}

Range FactoredTable::parameter_part(const Entry& entry) const {
  if (!scale_parameter_) return {};
  return {numbers_ * kFactoredWords + entry.first_matrix * kExactSumWords,
          entry.matrices * kExactSumWords};
}

}  // namespace tessera
