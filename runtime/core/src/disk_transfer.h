#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/disk_store.h"
#include "unlisted_file.h"

namespace tessera {

/// The next multiple of kDiskAlignment.
inline std::int64_t padded_to_sectors(std::int64_t bytes) {
  return (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
}

/// A block as it was last written.
struct DiskBlock {
  enum class Content : std::uint8_t { kNone, kTorn, kWhole };
  std::uint64_t hash = 0;  ///< XXH3 of its bytes, without padding
  Content content = Content::kNone;
};

/// An extent in the file.
struct PlacedExtent {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t begin = 0;         ///< in the file
  std::vector<DiskBlock> blocks;  ///< of `block_bytes` each, the last one shorter
};

/// A hash of the hashes of all their blocks, in order of the file; 0 for those never written.
std::uint64_t hash_of(const std::vector<PlacedExtent>& extents);

/// Resources that one call of a disk store has for itself while it runs.
struct DiskChannel {
  DiskQueue* queue = nullptr;
  std::byte* buffers = nullptr;  ///< (depth, block_bytes), aligned to kDiskAlignment
  int depth = 0;
  std::int64_t block_bytes = 0;
};

/// One call: the bytes [begin, end) of an extent, block by block, `depth` requests in flight.
class DiskTransfer {
 public:
  DiskTransfer(const UnlistedFile& file, PlacedExtent& extent, const DiskChannel& channel);

  /// `data`: (end - begin). When they throw no request is in flight.
  void write(const std::byte* data, std::int64_t begin, std::int64_t end);
  void read(std::byte* data, std::int64_t begin, std::int64_t end);

 private:
  /// A block at work, and its request.
  struct Slot {
    std::int64_t block = 0;
    std::int64_t begin = 0, end = 0;  ///< of the caller's bytes in the extent
    std::byte* data = nullptr;        ///< of the request: the caller's, or a buffer
    std::int64_t bytes = 0;           ///< of the request, with padding
    std::int64_t moved = 0;           ///< of those
    int stalls = 0;                   ///< results that moved nothing, one after the other
    bool writes = false;
  };

  void run();
  void start(std::size_t slot, std::int64_t block);
  void begin_request(std::size_t slot, bool writes);
  void submit(std::size_t slot);
  bool take(std::size_t slot, std::int64_t moved);
  bool finish(std::size_t slot);
  void begin_write(std::size_t slot);
  void check_read(const Slot& slot) const;
  void spoil_blocks();

  bool is_whole(const Slot& slot) const { return slot.end - slot.begin == payload(slot.block); }
  bool uses_buffer(const Slot& slot) const { return slot.data != callers(slot); }
  bool fits_direct(const std::byte* data, std::int64_t bytes) const;
  std::int64_t payload(std::int64_t block) const;
  std::byte* callers(const Slot& slot) const { return data_ + (slot.begin - begin_); }
  std::string place(const Slot& slot) const;
  [[noreturn]] void fail_unwritten(const Slot& slot, DiskBlock::Content content) const;
  [[noreturn]] void fail_io(const Slot& slot, int error) const;

  const UnlistedFile& file_;
  PlacedExtent& extent_;
  const DiskChannel& channel_;
  std::vector<Slot> slots_;
  bool writes_ = false;
  std::byte* data_ = nullptr;
  std::int64_t begin_ = 0, end_ = 0;
  int in_flight_ = 0;
};

}  // namespace tessera
