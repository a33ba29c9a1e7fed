#pragma once

#include <cstdint>
#include <vector>

#include "tessera/sharding/layout.h"
#include "tessera/sharding/schedule.h"

namespace tessera {

/// The statistics of a schedule that trains with a factored optimizer (factored_moments.h). Its
/// trainable flat parameters are numbered in the order of units, those that this pipeline rank
/// keeps, mirrors apart. All of them share three buffers, of which each has its part:
///
///   BufferKind::kSquares        kFactoredWords int64 for each row and column; behind those of all
///                               flat parameters, with `scale_parameter`, the exact sums of squares
///                               of their matrices' elements
///   BufferKind::kFactors        an fp32 for each row and column
///   BufferKind::kUpdateSquares  an exact sum for each matrix
class FactoredTable {
 public:
  explicit FactoredTable(const Schedule& schedule);
  /// The table of schedules that train over such a state.
  FactoredTable(const std::vector<ScheduleUnit>& units, const StateOptions& options,
                bool scale_parameter);

  struct Entry {
    FlatId id;
    std::int64_t first_number = 0;
    std::int64_t first_matrix = 0;
    std::int64_t numbers = 0;
    std::int64_t matrices = 0;
  };

  bool empty() const { return entries_.empty(); }
  const std::vector<Entry>& entries() const { return entries_; }
  /// The number of a flat parameter; -1: it has no moments.
  int find(const FlatId& id) const;
  /// Axes over which its elements are cut, and sums are partial.
  AxisSet axes() const { return axes_; }
  /// Elements of a buffer of these kinds; 0 of others.
  std::int64_t numel(BufferKind kind) const;
  /// The part of a flat parameter in a buffer of these kinds: elements [begin, begin + numel).
  Range part(BufferKind kind, const Entry& entry) const;
  /// The part of its sums of squared elements, in the buffer of squares.
  Range parameter_part(const Entry& entry) const;

 private:
  void fill(const std::vector<ScheduleUnit>& units, const StateOptions& options,
            bool scale_parameter);

  std::vector<Entry> entries_;
  AxisSet axes_{};
  std::int64_t numbers_ = 0, matrices_ = 0;
  bool scale_parameter_ = false;
};

}  // namespace tessera
