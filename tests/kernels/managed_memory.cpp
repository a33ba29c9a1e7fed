#include <cuda_runtime_api.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

// The kernel tests keep their data in std::vectors. On a real GPU they are made visible to it by
// giving the whole program managed memory: operator new takes from one managed arena. Where there
// is no GPU, or before CUDA works, it is malloc as ever.
namespace {

constexpr std::size_t kArenaBytes = std::size_t{2} << 30;
constexpr int kClasses = 40;  // of powers of two

struct FreeBlock {
  FreeBlock* next;
};

/// Blocks of powers of two, kept in lists once freed. In front of each: which list.
class Arena {
 public:
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!begun_) begin();
    const auto size_class = static_cast<int>(std::bit_width(bytes + kHeader - 1));
    if (base_ == nullptr || size_class >= kClasses) return nullptr;
    FreeBlock*& head = free_[static_cast<std::size_t>(size_class)];
    std::byte* block = reinterpret_cast<std::byte*>(head);
    if (head != nullptr) {
      head = head->next;
    } else if (used_ + (std::size_t{1} << size_class) <= kArenaBytes) {
      block = base_ + used_;
      used_ += std::size_t{1} << size_class;
    } else {
      return nullptr;
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
    void* memory = nullptr;
    mutex_.unlock();
    const bool works = cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
                       cudaMallocManaged(&memory, kArenaBytes) == cudaSuccess;
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
