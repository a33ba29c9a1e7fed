#include "async_copy.h"

namespace tessera::emulator {

// The hardware may write at any time from the instruction to the wait. The order of the run says
// when (Order::copy_at_once): a copy that arrives early shows a buffer that was reused too soon, a
// late one a missing wait. ThreadSanitizer is told of an access at both ends.

void async_copy16(void* shared, const void* global, const Location& where) {
  Block& block = Block::running();
  check_aligned16(shared, where);
  check_aligned16(global, where);
  if (!block.shared().contains(shared, 16)) fault("cp.async to memory that is not shared", where);
  if (poisoned(global, 16)) fault("cp.async from memory that is not allocated", where);
  announce_read(global, 16);
  announce_write(shared, 16);
  Thread& thread = block.thread();
  if (thread.copies == static_cast<int>(thread.copy.size())) {
    fault("more cp.async under way than the emulator keeps", where);
  }
  const bool at_once = block.order().copy_at_once();
  if (at_once) __builtin_memcpy(shared, global, 16);
  thread.copy[static_cast<std::size_t>(thread.copies++)] = {
      .to = shared, .from = global, .group = thread.groups, .delivered = at_once};
}

void async_copy_commit() { ++Block::running().thread().groups; }

void async_copy_wait(int pending) { deliver_copies(Block::running().thread(), pending); }

void deliver_copies(Thread& thread, int pending) {
  const int done = thread.groups - pending;
  int left = 0;
  for (int i = 0; i < thread.copies; ++i) {
    const AsyncCopy copy = thread.copy[static_cast<std::size_t>(i)];
    if (copy.group >= done) {
      thread.copy[static_cast<std::size_t>(left++)] = copy;
      continue;
    }
    announce_read(copy.from, 16);
    announce_write(copy.to, 16);
    if (!copy.delivered) __builtin_memcpy(copy.to, copy.from, 16);
  }
  thread.copies = left;
}

}  // namespace tessera::emulator
