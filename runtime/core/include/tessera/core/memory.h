#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "tessera/core/device.h"

namespace tessera {

/// The purpose of an allocation. Predicted and measured memory are compared per category.
enum class MemoryCategory : std::uint8_t {
  kParameters,  ///< parameters in compute precision that stay (unsharded, or this rank's shard)
  kUnshardedParameters,  ///< slots that all-gathers fill
  kGradients,            ///< accumulated gradients (unsharded, or this rank's shard)
  kUnshardedGradients,   ///< slots that backward fills and reductions drain
  kOptimizer,            ///< fp32 master weights (where they are not the parameters) and moments
  kActivations,          ///< what forward keeps for backward, and temporaries of both
  kWorkspace,            ///< scratch of kernels
  kData,                 ///< the tokens of the current step
};
inline constexpr int kMemoryCategories = 8;

/// "parameters", "unsharded_parameters", ...: the keys of the log.
std::string_view to_string(MemoryCategory category);

/// The memory that something lies in.
enum class Tier : std::uint8_t {
  kDevice,  ///< where kernels run; on CPU ranks the host's memory as well
  kHost,    ///< of a GPU: pinned, so that copies run beside kernels
  kDisk,    ///< a file: no memory, so nothing is allocated there; see disk_store.h
};
inline constexpr int kTiers = 3;
std::string_view to_string(Tier tier);

/// Bytes by category.
struct MemoryUse {
  std::array<std::int64_t, kMemoryCategories> bytes{};

  std::int64_t& operator[](MemoryCategory c) { return bytes[static_cast<std::size_t>(c)]; }
  std::int64_t operator[](MemoryCategory c) const { return bytes[static_cast<std::size_t>(c)]; }
  bool operator==(const MemoryUse&) const = default;
};

/// The highest use so far: of the sum, and of each category by itself (their peaks need not
/// coincide, so the categories may add up to more than the total).
struct MemoryPeak {
  std::int64_t total = 0;
  MemoryUse by_category;
  bool operator==(const MemoryPeak&) const = default;
};

class Memory;

/// Owns one allocation. Moves; its bytes leave the ledger when it dies.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  explicit operator bool() const { return memory_ != nullptr; }

 private:
  friend class Memory;
  Memory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  MemoryCategory category_ = MemoryCategory::kActivations;
  Tier tier_ = Tier::kDevice;
};

/// One rank's memory: allocates from a device and keeps a ledger of each tier. Outlives its
/// Buffers.
///
/// A request is rounded up to a multiple of 64 bytes, which is what the ledger counts.
/// Thread-safe: a rank's lanes may allocate at the same time.
class Memory {
 public:
  /// `limit_bytes`, of the device's tier: 0 means no limit but the device's own.
  explicit Memory(Device& device, std::int64_t limit_bytes = 0);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Throws Error{kOutOfMemory} that names `what`, the category, the use and the limit.
  Buffer allocate(std::int64_t bytes, MemoryCategory category, std::string_view what,
                  Tier tier = Tier::kDevice);

  MemoryUse current(Tier tier = Tier::kDevice) const;
  MemoryPeak peak(Tier tier = Tier::kDevice) const;
  /// The highest use of the device's tier since the last call, or from the beginning.
  MemoryPeak take_recent_peak();
  Device& device() const { return device_; }

 private:
  friend class Buffer;
  struct Ledger {
    std::int64_t total = 0;
    MemoryUse current;
    MemoryPeak peak;
    MemoryPeak recent;  ///< see take_recent_peak()
  };
  void release(const Buffer& buffer) noexcept;
  Ledger& ledger(Tier tier) { return ledgers_[static_cast<std::size_t>(tier)]; }
  const Ledger& ledger(Tier tier) const { return ledgers_[static_cast<std::size_t>(tier)]; }

  Device& device_;
  const std::int64_t limit_bytes_;
  mutable std::mutex mutex_;
  std::array<Ledger, kTiers> ledgers_;
};

/// `bytes` rounded up to what Memory counts (a multiple of 64).
constexpr std::int64_t allocation_bytes(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace tessera
