#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The named axes of a mesh, outermost first.
enum class Axis : std::uint8_t { kPipeline, kReplicate, kShard };

/// A row of the table that says what each axis divides.
struct AxisRow {
  Axis axis;
  std::string_view name;
  bool divides_samples;  ///< ranks along it read samples of their own
  bool may_shard_state;  ///< placements may shard parameters, gradients and optimizer state over it
  bool sums_gradients;   ///< a gradient is the sum of what ranks along it contribute
};

/// The table of axes, outermost first: ranks along the last one are neighbours (and, launched the
/// usual way, on one node). A new kind of parallelism is a new row here.
inline constexpr std::array kAxisTable{
    AxisRow{.axis = Axis::kPipeline,
            .name = "pipeline",
            .divides_samples = false,
            .may_shard_state = false,
            .sums_gradients = false},
    AxisRow{.axis = Axis::kReplicate,
            .name = "replicate",
            .divides_samples = true,
            .may_shard_state = true,
            .sums_gradients = true},
    AxisRow{.axis = Axis::kShard,
            .name = "shard",
            .divides_samples = true,
            .may_shard_state = true,
            .sums_gradients = true},
};
inline constexpr int kAxes = static_cast<int>(kAxisTable.size());

constexpr std::string_view to_string(Axis axis) {
  return kAxisTable[static_cast<std::size_t>(axis)].name;
}

/// A set of axes, e.g. those that a state is sharded over.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool contains(AxisSet other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet operator|(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  constexpr AxisSet operator&(AxisSet other) const { return AxisSet(bits_ & other.bits_); }
  constexpr AxisSet operator-(AxisSet other) const { return AxisSet(bits_ & ~other.bits_); }
  constexpr bool operator==(const AxisSet&) const = default;
  /// A number below kAxisSets, another one for each set.
  constexpr std::size_t number() const { return bits_; }

 private:
  constexpr explicit AxisSet(unsigned bits) : bits_(bits) {}
  static constexpr unsigned bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }
  unsigned bits_ = 0;
};
inline constexpr std::size_t kAxisSets = std::size_t{1} << kAxes;

/// The axes whose rows say so.
constexpr AxisSet axes_where(bool AxisRow::*says) {
  AxisSet axes;
  for (const AxisRow& row : kAxisTable) {
    if (row.*says) axes = axes | AxisSet{row.axis};
  }
  return axes;
}

/// By which samples are divided: ranks that differ along other axes alone read the same samples.
inline constexpr AxisSet kSampleAxes = axes_where(&AxisRow::divides_samples);
/// Over which gradients are reduced.
inline constexpr AxisSet kGradientAxes = axes_where(&AxisRow::sums_gradients);
/// Over which placements may shard training state.
inline constexpr AxisSet kStateAxes = axes_where(&AxisRow::may_shard_state);

/// "none", "shard", "replicate", "replicate+shard"; parse_axes is its inverse (Error{kConfig}).
std::string to_string(AxisSet axes);
AxisSet parse_axes(std::string_view text);
/// The axes that a placement can name: "none, or replicate and shard joined by '+'".
std::string axis_choices();

/// How ranks are arranged: a size for each axis. Ranks are numbered as the elements of an array of
/// these sizes are (rank_grid.h).
class Mesh {
 public:
  struct AxisSize {
    Axis axis;
    int size;
  };

  /// One rank.
  constexpr Mesh() { sizes_.fill(1); }
  /// Axes that are left out have size 1: `Mesh{{Axis::kReplicate, 2}, {Axis::kShard, 4}}`.
  constexpr Mesh(std::initializer_list<AxisSize> sizes) : Mesh() {
    for (const AxisSize& given : sizes) set_size(given.axis, given.size);
  }

  constexpr int size(Axis axis) const { return sizes_[static_cast<std::size_t>(axis)]; }
  constexpr void set_size(Axis axis, int size) { sizes_[static_cast<std::size_t>(axis)] = size; }
  /// Product of the sizes of `axes`.
  constexpr int size(AxisSet axes) const {
    int product = 1;
    for (const AxisRow& row : kAxisTable) {
      if (axes.contains(row.axis)) product *= size(row.axis);
    }
    return product;
  }
  int world_size() const;
  /// The axes of several ranks.
  AxisSet axes() const;
  /// This rank's index along `axis`.
  int index(Axis axis, int rank) const;
  /// Ranks that differ from `rank` only along `axes`, ascending.
  std::vector<int> group(AxisSet axes, int rank) const;

  bool operator==(const Mesh&) const = default;

 private:
  std::array<int, kAxisTable.size()> sizes_;
};

/// Whether a mesh is always written with this axis; with others only where they have several ranks.
constexpr bool is_always_written(const AxisRow& row) { return row.divides_samples; }

/// "replicate 2, shard 4", or "pipeline 2, replicate 1, shard 4".
std::string to_string(const Mesh& mesh, std::string_view separator = ", ");

}  // namespace tessera
