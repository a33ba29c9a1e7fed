#include "disk_channels.h"

#include "tessera/core/error.h"

namespace tessera {

DiskChannels::DiskChannels(const DiskStoreOptions& options, DiskCalls& calls) {
  description_ = "threads";
  if (options.backend != DiskBackend::kThreads) {
    try {
      make_queues(options, calls, DiskBackend::kIoUring);
      description_ = "io_uring";
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable || options.backend == DiskBackend::kIoUring) {
        throw;
      }
      description_ = concat("threads (", error.what(), ")");
    }
  }
  if (queues_.empty()) make_queues(options, calls, DiskBackend::kThreads);
  make_channels(options);
}

void DiskChannels::make_queues(const DiskStoreOptions& options, DiskCalls& calls,
                               DiskBackend backend) {
  std::vector<std::unique_ptr<DiskQueue>> queues;
  for (int i = 0; i < options.callers; ++i) {
    queues.push_back(calls.make_queue(backend, options.queue_depth));
  }
  queues_ = std::move(queues);
  backend_ = backend;
}

void DiskChannels::make_channels(const DiskStoreOptions& options) {
  // Pages that no request uses are never touched, and take no memory.
  const auto bytes = static_cast<std::size_t>(disk_buffer_bytes(options));
  buffers_.reset(static_cast<std::byte*>(std::aligned_alloc(kDiskAlignment, bytes)));
  require(buffers_ != nullptr, ErrorCode::kOutOfMemory, "there is no memory for the ", bytes,
          " bytes of buffers of the disk tier; have fewer requests in flight, or smaller ones");
  std::byte* buffers = buffers_.get();
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    channels_.push_back({.queue = queues_[i].get(),
                         .buffers = buffers,
                         .depth = options.queue_depth,
                         .block_bytes = options.block_bytes});
    buffers += options.queue_depth * options.block_bytes;
    idle_.push_back(i);
  }
}

DiskChannels::Lease DiskChannels::take() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [this] { return !idle_.empty(); });
  const std::size_t index = idle_.back();
  idle_.pop_back();
  return {*this, index};
}

void DiskChannels::give_back(std::size_t index) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(index);  // within its capacity: it throws nothing
  }
  given_back_.notify_one();
}

}  // namespace tessera
