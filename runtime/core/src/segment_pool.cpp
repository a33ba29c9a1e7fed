#include "tessera/core/segment_pool.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

std::size_t rounded(std::size_t bytes, std::size_t to) {
  return std::max((bytes + to - 1) / to * to, to);
}

}  // namespace

SegmentPool::Address SegmentPool::allocate(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes, kAlignment);
  const auto fitting = free_.lower_bound({wanted, 0, 0});
  const auto block = fitting != free_.end() ? blocks_.find(std::get<2>(*fitting)) : grow(wanted);
  set_free(block, false);
  if (block->second.bytes > wanted) {
    const auto rest =
        blocks_
            .emplace(block->first + wanted,
                     Block{.bytes = block->second.bytes - wanted, .segment = block->second.segment})
            .first;
    block->second.bytes = wanted;
    set_free(rest, true);
  }
  return block->first;
}

void SegmentPool::deallocate(Address address) noexcept {
  auto block = blocks_.find(address);
  if (block == blocks_.end()) return;
  set_free(block, true);
  merge_with_next(block);
  if (block != blocks_.begin() && std::prev(block)->second.free) merge_with_next(std::prev(block));
}

SegmentPool::Blocks::iterator SegmentPool::grow(std::size_t bytes) {
  const std::size_t needed = rounded(bytes, kPageBytes);
  const Segment segment = grow_(std::max(needed, kSegmentBytes), needed);
  reserved_ += static_cast<std::int64_t>(segment.bytes);
  const auto block =
      blocks_.emplace(segment.address, Block{.bytes = segment.bytes, .segment = segments_++}).first;
  set_free(block, true);
  return block;
}

void SegmentPool::set_free(Blocks::iterator block, bool free) {
  if (block->second.free == free) return;
  block->second.free = free;
  const std::tuple key(block->second.bytes, block->second.segment, block->first);
  if (free) {
    free_.insert(key);
  } else {
    free_.erase(key);
  }
}

/// `block` is free; takes in the one behind it, if that is free and of the same segment.
void SegmentPool::merge_with_next(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next == blocks_.end() || !next->second.free ||
      next->second.segment != block->second.segment) {
    return;
  }
  set_free(next, false);
  set_free(block, false);
  block->second.bytes += next->second.bytes;
  blocks_.erase(next);
  set_free(block, true);
}

}  // namespace tessera
