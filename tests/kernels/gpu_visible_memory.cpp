#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

// The kernel tests hand vectors and local variables to kernels. So that a real GPU sees them, heap
// and stack of the tests lie in one arena of page-locked memory, which the GPU reads and writes in
// place: operator new takes from it, and main runs the tests on a thread whose stack is in it. Not
// in managed memory, which not every virtual machine's driver supports. Where there is no GPU, or
// before CUDA works, it is malloc as ever.
namespace {

constexpr std::size_t kArenaBytes = std::size_t{1} << 30;
constexpr std::size_t kStackBytes = std::size_t{8} << 20;
constexpr int kClasses = 40;  // of powers of two

struct FreeBlock {
  FreeBlock* next;
};

/// Blocks of powers of two, kept in lists once freed. In front of each: which list.
class Arena {
 public:
  /// Null if there is no arena. Throws std::bad_alloc if it is full: malloc's memory would be an
  /// illegal address to the GPU.
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!begun_) begin();
    if (base_ == nullptr) return nullptr;
    const auto size_class = static_cast<int>(std::bit_width(bytes + kHeader - 1));
    if (size_class >= kClasses) throw std::bad_alloc();
    FreeBlock*& head = free_[static_cast<std::size_t>(size_class)];
    std::byte* block = reinterpret_cast<std::byte*>(head);
    if (head != nullptr) {
      head = head->next;
    } else if (used_ + (std::size_t{1} << size_class) <= kArenaBytes) {
      block = base_ + used_;
      used_ += std::size_t{1} << size_class;
    } else {
      throw std::bad_alloc();
    }
    *reinterpret_cast<int*>(block) = size_class;
    return block + kHeader;
  }

  bool owns(const void* address) const {
    const auto* bytes = static_cast<const std::byte*>(address);
    return base_ != nullptr && bytes >= base_ && bytes < base_ + kArenaBytes;
  }

  void release(void* address) {
    const std::lock_guard lock(mutex_);
    std::byte* block = static_cast<std::byte*>(address) - kHeader;
    const int size_class = *reinterpret_cast<int*>(block);
    auto* freed = reinterpret_cast<FreeBlock*>(block);
    freed->next = free_[static_cast<std::size_t>(size_class)];
    free_[static_cast<std::size_t>(size_class)] = freed;
  }

 private:
  static constexpr std::size_t kHeader = 64;

  /// CUDA itself may call operator new meanwhile: it finds `begun_` and no base, so malloc.
  void begin() {
    begun_ = true;
    int count = 0;
    void *memory = nullptr, *seen_by_gpu = nullptr;
    mutex_.unlock();
    const bool works = cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
                       cudaHostAlloc(&memory, kArenaBytes, cudaHostAllocMapped) == cudaSuccess &&
                       cudaHostGetDevicePointer(&seen_by_gpu, memory, 0) == cudaSuccess &&
                       seen_by_gpu == memory;
    mutex_.lock();
    if (works) base_ = static_cast<std::byte*>(memory);
  }

  std::mutex mutex_;
  bool begun_ = false;
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;
  std::array<FreeBlock*, kClasses> free_{};
};

Arena& arena() {
  alignas(Arena) static std::array<std::byte, sizeof(Arena)> storage;
  static Arena* const made = new (storage.data()) Arena;  // never destroyed
  return *made;
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* block = arena().allocate(bytes); block != nullptr) return block;
  if (void* block = std::malloc(bytes > 0 ? bytes : 1); block != nullptr) return block;
  throw std::bad_alloc();
}

void operator delete(void* address) noexcept {
  if (address != nullptr && arena().owns(address)) {
    arena().release(address);
  } else {
    std::free(address);
  }
}
void operator delete(void* address, std::size_t /*bytes*/) noexcept { operator delete(address); }

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int failed = 1;
  const auto run_tests = [](void* result) -> void* {
    *static_cast<int*>(result) = RUN_ALL_TESTS();
    return nullptr;
  };
  void* const stack = operator new(kStackBytes);  // never deleted: the thread's until the end
  pthread_attr_t attributes;
  pthread_t thread = 0;
  if (pthread_attr_init(&attributes) != 0 ||
      pthread_attr_setstack(&attributes, stack, kStackBytes) != 0 ||
      pthread_create(&thread, &attributes, run_tests, &failed) != 0) {
    std::fputs("test_kernels_gpu: cannot start a thread\n", stderr);
    return 1;
  }
  pthread_join(thread, nullptr);
  return failed;
}
