#pragma once

#include <cstdint>
#include <vector>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// The scales of a schedule whose matrices are gathered in E4M3: of each matrix a word, its largest
/// magnitude (see AmaxArgs). Flat parameters of matrices are numbered, trainable ones before frozen
/// ones, in the order of units, and `scale_units` of them at a time share a buffer of
/// BufferKind::kScales, which ranks join by one message. It has a row with their words, and behind
/// it room for the rows of all ranks that a message brings.
class ScaleTable {
 public:
  explicit ScaleTable(const Schedule& schedule);

  struct Entry {
    FlatId id;
    int group = 0;
    std::int64_t first_word = 0;  ///< in the group's row
    int matrices = 0;
  };
  /// Entries [begin, end).
  struct Group {
    int begin = 0, end = 0;
    AxisSet axes{};          ///< over which its flat parameters are cut
    std::int64_t words = 0;  ///< of a row
    std::int64_t numel = 0;  ///< of the buffer
  };

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Group>& groups() const { return groups_; }
  /// The number of a flat parameter; -1: its codes are not gathered.
  int find(const FlatId& id) const;
  const Group& group_of(int entry) const {
    return groups_[static_cast<std::size_t>(entries_[static_cast<std::size_t>(entry)].group)];
  }
  /// The group of a buffer of scales, by index; -1: it is none's.
  int group_in(const Schedule& schedule, int buffer) const;

 private:
  std::vector<Entry> entries_;
  std::vector<Group> groups_;
};

}  // namespace tessera
