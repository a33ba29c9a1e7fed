#include "tessera/core/memory.h"

#include <algorithm>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// Sums of a ledger stay within 64 bits, also of what is only counted.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;

}  // namespace

std::string_view to_string(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kUnshardedParameters:
      return "unsharded_parameters";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kUnshardedGradients:
      return "unsharded_gradients";
    case MemoryCategory::kOptimizer:
      return "optimizer";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kWorkspace:
      return "workspace";
    case MemoryCategory::kData:
      return "data";
  }
  return "unknown";
}

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      category_(other.category_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  // The old allocation dies with `taken`, also on self-assignment's way round.
  Buffer taken(std::move(other));
  std::swap(memory_, taken.memory_);
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(category_, taken.category_);
  return *this;
}

Buffer::~Buffer() {
  if (memory_ != nullptr) memory_->release(data_, bytes_, category_);
}

Memory::Memory(Device& device, std::int64_t limit_bytes)
    : device_(device), limit_bytes_(limit_bytes) {
  require(limit_bytes >= 0, ErrorCode::kInvalidArgument, "a memory limit of ", limit_bytes,
          " bytes is negative");
}

Buffer Memory::allocate(std::int64_t bytes, MemoryCategory category, std::string_view what) {
  require(bytes >= 0, ErrorCode::kInvalidArgument, "cannot allocate ", bytes, " bytes for ", what);
  const std::int64_t counted = allocation_bytes(bytes);
  std::byte* data = nullptr;
  {
    // The device is asked under the lock: the ledger never shows bytes that were refused.
    const std::lock_guard lock(mutex_);
    require(limit_bytes_ == 0 || counted <= limit_bytes_ - total_, ErrorCode::kOutOfMemory,
            "no room for ", counted, " bytes of ", to_string(category), " for ", what, ": ", total_,
            " bytes are in use and the limit is ", limit_bytes_,
            "; shard more states, use smaller micro-batches, or raise the limit");
    require(counted <= kMaxBytes - total_, ErrorCode::kOutOfMemory, "no room for ", counted,
            " bytes of ", to_string(category), " for ", what, ": beside the ", total_,
            " bytes in use they are more than 2^62; use smaller micro-batches or a smaller model");
    try {
      data = static_cast<std::byte*>(device_.allocate(static_cast<std::size_t>(counted)));
    } catch (const Error& error) {
      fail(error.code(), "no memory for ", counted, " bytes of ", to_string(category), " for ",
           what, " (", total_, " bytes are in use, the limit is ",
           limit_bytes_ == 0 ? std::string("the device's own") : std::to_string(limit_bytes_),
           "): ", error.what());
    }
    total_ += counted;
    current_[category] += counted;
    for (MemoryPeak* const peak : {&peak_, &recent_}) {
      peak->total = std::max(peak->total, total_);
      peak->by_category[category] = std::max(peak->by_category[category], current_[category]);
    }
  }
  Buffer buffer;
  buffer.memory_ = this;
  buffer.data_ = data;
  buffer.bytes_ = counted;
  buffer.category_ = category;
  return buffer;
}

void Memory::release(std::byte* data, std::int64_t bytes, MemoryCategory category) noexcept {
  const std::lock_guard lock(mutex_);
  device_.deallocate(data, static_cast<std::size_t>(bytes));
  total_ -= bytes;
  current_[category] -= bytes;
}

MemoryUse Memory::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

MemoryPeak Memory::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

MemoryPeak Memory::take_recent_peak() {
  const std::lock_guard lock(mutex_);
  return std::exchange(recent_, {.total = total_, .by_category = current_});
}

}  // namespace tessera
