#include "disk_transfer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "tessera/core/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

/// Results in a row that move nothing (EAGAIN, a signal, less than a sector): a millisecond each.
constexpr int kMostStalls = 300;

bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

}  // namespace

std::uint64_t hash_of(const std::vector<PlacedExtent>& extents) {
  std::vector<std::uint64_t> hashes;
  for (const PlacedExtent& extent : extents) {
    for (const DiskBlock& block : extent.blocks) hashes.push_back(block.hash);
  }
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

DiskTransfer::DiskTransfer(const UnlistedFile& file, PlacedExtent& extent,
                           const DiskChannel& channel)
    : file_(file),
      extent_(extent),
      channel_(channel),
      slots_(static_cast<std::size_t>(channel.depth)) {}

void DiskTransfer::write(const std::byte* data, std::int64_t begin, std::int64_t end) {
  writes_ = true;
  data_ = const_cast<std::byte*>(data);  // which a write only reads
  begin_ = begin;
  end_ = end;
  try {
    run();
  } catch (...) {
    spoil_blocks();
    throw;
  }
}

void DiskTransfer::read(std::byte* data, std::int64_t begin, std::int64_t end) {
  writes_ = false;
  data_ = data;
  begin_ = begin;
  end_ = end;
  run();
}

void DiskTransfer::run() {
  if (begin_ == end_) return;
  std::int64_t next = begin_ / channel_.block_bytes;
  const std::int64_t last = (end_ - 1) / channel_.block_bytes;
  std::vector<std::size_t> idle;
  for (std::size_t i = slots_.size(); i > 0; --i) idle.push_back(i - 1);
  // After an error nothing is started, but what is in flight uses the caller's memory until it
  // ends.
  std::exception_ptr error;
  while (true) {
    try {
      for (; !error && next <= last && !idle.empty(); ++next) {
        start(idle.back(), next);
        idle.pop_back();
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (in_flight_ == 0) break;
    const DiskResult result = channel_.queue->wait();
    --in_flight_;
    if (error) continue;
    try {
      if (take(result.tag, result.moved)) idle.push_back(result.tag);
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void DiskTransfer::start(std::size_t slot, std::int64_t block) {
  Slot& s = slots_[slot];
  const std::int64_t block_begin = block * channel_.block_bytes;
  s = {.block = block,
       .begin = std::max(begin_, block_begin),
       .end = std::min(end_, block_begin + payload(block))};
  const bool straight = is_whole(s) && fits_direct(callers(s), payload(block));
  s.data = straight ? callers(s)
                    : channel_.buffers + static_cast<std::int64_t>(slot) * channel_.block_bytes;
  s.bytes = file_.direct() ? padded_to_sectors(payload(block)) : payload(block);
  const bool reads_first = !writes_ || !is_whole(s);
  const DiskBlock::Content content = extent_.blocks[static_cast<std::size_t>(block)].content;
  if (reads_first) {
    if (content != DiskBlock::Content::kWhole) fail_unwritten(s, content);
    begin_request(slot, false);
  } else {
    if (uses_buffer(s)) std::memcpy(s.data, callers(s), static_cast<std::size_t>(s.end - s.begin));
    begin_write(slot);
  }
}

void DiskTransfer::begin_write(std::size_t slot) {
  Slot& s = slots_[slot];
  const std::int64_t bytes = payload(s.block);
  if (uses_buffer(s)) std::memset(s.data + bytes, 0, static_cast<std::size_t>(s.bytes - bytes));
  extent_.blocks[static_cast<std::size_t>(s.block)] = {
      .hash = XXH3_64bits(s.data, static_cast<std::size_t>(bytes)),
      .content = DiskBlock::Content::kTorn};
  begin_request(slot, true);
}

void DiskTransfer::begin_request(std::size_t slot, bool writes) {
  Slot& s = slots_[slot];
  s.writes = writes;
  s.moved = 0;
  s.stalls = 0;
  submit(slot);
}

void DiskTransfer::submit(std::size_t slot) {
  const Slot& s = slots_[slot];
  const int error =
      channel_.queue->submit({.write = s.writes,
                              .file = file_.descriptor(),
                              .offset = extent_.begin + s.block * channel_.block_bytes + s.moved,
                              .data = s.data + s.moved,
                              .bytes = static_cast<std::size_t>(s.bytes - s.moved),
                              .tag = slot});
  if (error != 0) fail_io(s, -error);
  ++in_flight_;
}

/// Takes the result of a slot's request; whether the slot is idle now.
bool DiskTransfer::take(std::size_t slot, std::int64_t moved) {
  Slot& s = slots_[slot];
  const bool again = moved == -EINTR || moved == -EAGAIN;
  if (moved < 0 && !again) fail_io(s, static_cast<int>(-moved));
  // A file that ends early has been cut: there are no others in it than ours.
  if (moved == 0) fail_io(s, s.writes ? ENOSPC : ENODATA);
  std::int64_t reached = s.moved + std::max<std::int64_t>(moved, 0);
  if (reached >= s.bytes) return finish(slot);
  // Direct requests begin at whole sectors, so the part of one is moved again.
  if (file_.direct()) reached -= reached % kDiskAlignment;
  s.stalls = reached > s.moved ? 0 : s.stalls + 1;
  s.moved = reached;
  if (s.stalls > kMostStalls) fail_io(s, EAGAIN);
  if (s.stalls > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  submit(slot);
  return false;
}

/// All bytes of a slot's request have been moved; whether the slot is idle now.
bool DiskTransfer::finish(std::size_t slot) {
  Slot& s = slots_[slot];
  if (s.writes) {
    extent_.blocks[static_cast<std::size_t>(s.block)].content = DiskBlock::Content::kWhole;
    return true;
  }
  check_read(s);
  std::byte* const part = s.data + (s.begin - s.block * channel_.block_bytes);
  const auto bytes = static_cast<std::size_t>(s.end - s.begin);
  if (writes_) {
    std::memcpy(part, callers(s), bytes);
    begin_write(slot);
    return false;
  }
  if (uses_buffer(s)) std::memcpy(callers(s), part, bytes);
  return true;
}

void DiskTransfer::check_read(const Slot& slot) const {
  const std::uint64_t hash = XXH3_64bits(slot.data, static_cast<std::size_t>(payload(slot.block)));
  if (hash == extent_.blocks[static_cast<std::size_t>(slot.block)].hash) return;
  fail(ErrorCode::kIo, place(slot),
       " is not what was last written: its hash differs. The disk has lost or changed"
       " it; resume from the last checkpoint, with the disk tier on another disk");
}

/// The caller cannot know how far a write that failed has come.
void DiskTransfer::spoil_blocks() {
  const std::int64_t last = (end_ - 1) / channel_.block_bytes;
  for (std::int64_t block = begin_ / channel_.block_bytes; block <= last; ++block) {
    extent_.blocks[static_cast<std::size_t>(block)].content = DiskBlock::Content::kTorn;
  }
}

bool DiskTransfer::fits_direct(const std::byte* data, std::int64_t bytes) const {
  return !file_.direct() || (bytes % kDiskAlignment == 0 &&
                             reinterpret_cast<std::uintptr_t>(data) %
                                     static_cast<std::uintptr_t>(file_.memory_alignment()) ==
                                 0);
}

/// Bytes of the extent that a block has.
std::int64_t DiskTransfer::payload(std::int64_t block) const {
  return std::min(channel_.block_bytes, extent_.bytes - block * channel_.block_bytes);
}

std::string DiskTransfer::place(const Slot& slot) const {
  const std::int64_t begin = slot.block * channel_.block_bytes;
  return concat("'", extent_.name, "' (bytes ", begin, " to ", begin + payload(slot.block) - 1,
                " of ", extent_.bytes, ") in ", file_.name());
}

void DiskTransfer::fail_unwritten(const Slot& slot, DiskBlock::Content content) const {
  if (content == DiskBlock::Content::kTorn) {
    fail(ErrorCode::kIo, place(slot),
         " cannot be read: writing it has failed; resume from the last checkpoint");
  }
  fail(ErrorCode::kInvalidArgument, place(slot),
       " has never been written whole, so it cannot be read, nor written in part");
}

void DiskTransfer::fail_io(const Slot& slot, int error) const {
  const char* const reason =
      error == ENODATA ? "the file has been cut short" : std::strerror(error);
  fail(ErrorCode::kIo, "cannot ", slot.writes ? "write " : "read ", place(slot), ": ", reason, "; ",
       is_full(error)
           ? "make room there, or choose a folder on another disk"
           : "look for the disk in dmesg; resume from the last checkpoint, with the disk tier on "
             "another disk");
}

}  // namespace tessera
