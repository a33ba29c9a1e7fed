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

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
  }
  return "unknown";
}

Buffer::Buffer(Buffer&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      category_(other.category_),
      tier_(other.tier_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  // The old allocation dies with `taken`, also on self-assignment's way round.
  Buffer taken(std::move(other));
  std::swap(memory_, taken.memory_);
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(category_, taken.category_);
  std::swap(tier_, taken.tier_);
  return *this;
}

Buffer::~Buffer() {
  if (memory_ != nullptr) memory_->release(*this);
}

Memory::Memory(Device& device, std::int64_t limit_bytes)
    : device_(device), limit_bytes_(limit_bytes) {
  require(limit_bytes >= 0, ErrorCode::kInvalidArgument, "a memory limit of ", limit_bytes,
          " bytes is negative");
}

Buffer Memory::allocate(std::int64_t bytes, MemoryCategory category, std::string_view what,
                        Tier tier) {
  require(bytes >= 0, ErrorCode::kInvalidArgument, "cannot allocate ", bytes, " bytes for ", what);
  require(tier != Tier::kDisk, ErrorCode::kInvalidArgument, "cannot allocate memory for ", what,
          " on the disk");
  const std::int64_t counted = allocation_bytes(bytes);
  const std::int64_t limit = tier == Tier::kDevice ? limit_bytes_ : 0;
  std::byte* data = nullptr;
  {
    // The device is asked under the lock: the ledger never shows bytes that were refused.
    const std::lock_guard lock(mutex_);
    Ledger& l = ledger(tier);
    require(limit == 0 || counted <= limit - l.total, ErrorCode::kOutOfMemory, "no room for ",
            counted, " bytes of ", to_string(category), " for ", what, ": ", l.total,
            " bytes are in use and the limit is ", limit,
            "; shard more states, keep some on the host, use smaller micro-batches, or raise the "
            "limit");
    require(counted <= kMaxBytes - l.total, ErrorCode::kOutOfMemory, "no room for ", counted,
            " bytes of ", to_string(category), " for ", what, ": beside the ", l.total,
            " bytes in use they are more than 2^62; use smaller micro-batches or a smaller model");
    try {
      const auto size = static_cast<std::size_t>(counted);
      data = static_cast<std::byte*>(tier == Tier::kDevice ? device_.allocate(size)
                                                           : device_.allocate_host(size));
    } catch (const Error& error) {
      fail(error.code(), "no memory for ", counted, " bytes of ", to_string(category), " for ",
           what, " (", l.total, " bytes are in use, the limit is ",
           limit == 0 ? concat("the ", to_string(tier), "'s own") : std::to_string(limit),
           "): ", error.what());
    }
    l.total += counted;
    l.current[category] += counted;
    for (MemoryPeak* const peak : {&l.peak, &l.recent}) {
      peak->total = std::max(peak->total, l.total);
      peak->by_category[category] = std::max(peak->by_category[category], l.current[category]);
    }
  }
  Buffer buffer;
  buffer.memory_ = this;
  buffer.data_ = data;
  buffer.bytes_ = counted;
  buffer.category_ = category;
  buffer.tier_ = tier;
  return buffer;
}

void Memory::release(const Buffer& buffer) noexcept {
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<std::size_t>(buffer.bytes_);
  if (buffer.tier_ == Tier::kDevice) {
    device_.deallocate(buffer.data_, size);
  } else {
    device_.deallocate_host(buffer.data_, size);
  }
  Ledger& l = ledger(buffer.tier_);
  l.total -= buffer.bytes_;
  l.current[buffer.category_] -= buffer.bytes_;
}

MemoryUse Memory::current(Tier tier) const {
  const std::lock_guard lock(mutex_);
  return ledger(tier).current;
}

MemoryPeak Memory::peak(Tier tier) const {
  const std::lock_guard lock(mutex_);
  return ledger(tier).peak;
}

MemoryPeak Memory::take_recent_peak() {
  const std::lock_guard lock(mutex_);
  Ledger& l = ledger(Tier::kDevice);
  return std::exchange(l.recent, {.total = l.total, .by_category = l.current});
}

}  // namespace tessera
