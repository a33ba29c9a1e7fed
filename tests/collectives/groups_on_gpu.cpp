#include <bit>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "collectives/cuda_under_test.h"
#include "tessera/collectives/thread_group.h"

// Threads that share a real GPU.
namespace tessera::test {
namespace {

/// Page-locked memory, which the GPU reads and writes in place. To take it from the driver and to
/// give it back is slow, and may wait for the GPU: blocks are kept, by powers of two.
class PinnedBlocks {
 public:
  void* take(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(bytes);
    const std::lock_guard lock(mutex_);
    std::vector<void*>& kept = kept_[size];
    if (kept.empty()) {
      void* made = nullptr;
      if (cudaMallocHost(&made, size) != cudaSuccess) throw std::bad_alloc();
      kept.push_back(made);
    }
    void* const block = kept.back();
    kept.pop_back();
    return block;
  }
  void give_back(void* block, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    kept_[std::bit_ceil(bytes)].push_back(block);
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> kept_;
};

PinnedBlocks& pinned_blocks() {
  static PinnedBlocks blocks;
  return blocks;
}

}  // namespace

Groups make_groups(int size, std::chrono::milliseconds timeout) {
  return make_thread_group(size, {.timeout = timeout});
}

void* allocate(std::size_t bytes) { return pinned_blocks().take(bytes); }
void deallocate(void* address, std::size_t bytes) { pinned_blocks().give_back(address, bytes); }

void delay_device(std::chrono::microseconds) {}  // run_ranks delays the lanes themselves

bool testing_nccl() { return false; }

}  // namespace tessera::test
