#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The named axes of a mesh. A new kind of parallelism is a new axis here.
enum class Axis : std::uint8_t { kReplicate, kShard };
inline constexpr int kAxes = 2;

std::string_view to_string(Axis axis);

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
  constexpr AxisSet operator-(AxisSet other) const { return AxisSet(bits_ & ~other.bits_); }
  constexpr bool operator==(const AxisSet&) const = default;

 private:
  constexpr explicit AxisSet(unsigned bits) : bits_(bits) {}
  static constexpr unsigned bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }
  unsigned bits_ = 0;
};

/// "none", "shard", "replicate", "replicate+shard"; parse_axes is its inverse (Error{kConfig}).
std::string to_string(AxisSet axes);
AxisSet parse_axes(std::string_view text);

/// How ranks are arranged: rank = replicate index * shard size + shard index, so the ranks of one
/// shard group are neighbours (and, launched the usual way, on one node).
struct Mesh {
  int replicate = 1;
  int shard = 1;

  int world_size() const { return replicate * shard; }
  int size(Axis axis) const { return axis == Axis::kReplicate ? replicate : shard; }
  /// Product of the sizes of `axes`.
  int size(AxisSet axes) const;
  /// This rank's index along `axis`.
  int index(Axis axis, int rank) const {
    return axis == Axis::kReplicate ? rank / shard : rank % shard;
  }
  /// Ranks that differ from `rank` only along `axes`, ascending.
  std::vector<int> group(AxisSet axes, int rank) const;

  bool operator==(const Mesh&) const = default;
};

}  // namespace tessera
