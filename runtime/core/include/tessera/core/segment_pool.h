#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace tessera {

/// How a GPU's memory pool serves requests, without the memory: a simulation of a run finds what
/// the pool of the run will take from the driver.
///
/// A request is served from the smallest free block that holds it; neighbours that are free merge,
/// but not over the border of a segment. Requests below kSegmentBytes share segments of that size,
/// a larger one that finds no block gets a segment of its own, in pages of kPageBytes. The choice
/// depends on the sequence of requests only, not on the addresses of segments. Not thread-safe.
class SegmentPool {
 public:
  using Address = std::uintptr_t;
  struct Segment {
    Address address = 0;
    std::size_t bytes = 0;
  };
  /// Gives a segment of `wanted` bytes, or if there is none, of `needed`, both whole pages; throws
  /// if there is none either. Segments do not overlap.
  using Grow = std::function<Segment(std::size_t wanted, std::size_t needed)>;

  static constexpr std::size_t kAlignment = 512;
  static constexpr std::size_t kSegmentBytes = std::size_t{32} << 20;
  static constexpr std::size_t kPageBytes = std::size_t{2} << 20;  ///< as the driver maps memory

  explicit SegmentPool(Grow grow) : grow_(std::move(grow)) {}

  /// Aligned to kAlignment if the segments are. Throws what Grow throws.
  Address allocate(std::size_t bytes);
  void deallocate(Address address) noexcept;
  /// Bytes of all segments.
  std::int64_t reserved_bytes() const { return reserved_; }
  int segments() const { return segments_; }

 private:
  struct Block {
    std::size_t bytes = 0;
    int segment = 0;
    bool free = false;
  };
  using Blocks = std::map<Address, Block>;

  Blocks::iterator grow(std::size_t bytes);
  void set_free(Blocks::iterator block, bool free);
  void merge_with_next(Blocks::iterator block);

  Grow grow_;
  Blocks blocks_;
  std::set<std::tuple<std::size_t, int, Address>> free_;  ///< by size, then segment, then address
  int segments_ = 0;
  std::int64_t reserved_ = 0;
};

}  // namespace tessera
