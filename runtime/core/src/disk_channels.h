#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "disk_transfer.h"
#include "tessera/core/disk_store.h"

namespace tessera {

/// Channels of a disk store, each for one call at a time.
class DiskChannels {
 public:
  /// io_uring's, or where that is forbidden and `options.backend` allows it, threads. Throws
  /// Error{kUnavailable}.
  DiskChannels(const DiskStoreOptions& options, DiskCalls& calls);

  /// A channel until it dies.
  class Lease {
   public:
    Lease(DiskChannels& channels, std::size_t index) : channels_(channels), index_(index) {}
    ~Lease() { channels_.give_back(index_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    const DiskChannel& operator*() const { return channels_.channels_[index_]; }

   private:
    DiskChannels& channels_;
    const std::size_t index_;
  };

  /// Waits, if all are taken, for another call to end.
  Lease take();

  DiskBackend backend() const { return backend_; }
  /// "io_uring", or "threads (io_uring: Operation not permitted)".
  const std::string& description() const { return description_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  void make_queues(const DiskStoreOptions& options, DiskCalls& calls, DiskBackend backend);
  void make_channels(const DiskStoreOptions& options);
  void give_back(std::size_t index);

  std::vector<std::unique_ptr<DiskQueue>> queues_;
  std::unique_ptr<std::byte, Free> buffers_;  // (channels, depth, block_bytes)
  std::vector<DiskChannel> channels_;
  DiskBackend backend_ = DiskBackend::kThreads;
  std::string description_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<std::size_t> idle_;
};

}  // namespace tessera
