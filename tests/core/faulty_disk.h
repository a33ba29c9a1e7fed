#pragma once

#include <linux/magic.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tessera/core/disk_calls.h"
#include "tessera/core/error.h"

namespace tessera::test {

/// What happens to requests; by default nothing. On the thread that calls the store.
struct RequestFaults {
  /// May shorten a request before it is made; an errno is its result instead, and 0 none.
  std::function<int(DiskRequest&)> before{};
  /// May change the result of a request that was made.
  std::function<std::int64_t(const DiskRequest&, std::int64_t moved)> after{};
  int submit_error = 0;    ///< of every request
  int most_in_flight = 0;  ///< counted
};

/// A queue of the kernel's to whose requests faults happen.
class FaultyQueue : public DiskQueue {
 public:
  FaultyQueue(RequestFaults& faults, std::unique_ptr<DiskQueue> real)
      : faults_(faults), real_(std::move(real)) {}

  int submit(const DiskRequest& request) override {
    if (faults_.submit_error != 0) return -faults_.submit_error;
    DiskRequest made = request;
    const int error = faults_.before ? faults_.before(made) : 0;
    in_flight_[made.tag] = made;
    faults_.most_in_flight = std::max(faults_.most_in_flight, static_cast<int>(in_flight_.size()));
    if (error == 0) return real_->submit(made);
    refused_.push_back({.tag = request.tag, .moved = -error});
    return 0;
  }

  DiskResult wait() noexcept override {
    DiskResult result;
    if (refused_.empty()) {
      result = real_->wait();
      if (faults_.after) result.moved = faults_.after(in_flight_.at(result.tag), result.moved);
    } else {
      result = refused_.front();
      refused_.pop_front();
    }
    in_flight_.erase(result.tag);
    return result;
  }

 private:
  RequestFaults& faults_;
  std::unique_ptr<DiskQueue> real_;
  std::map<std::uint64_t, DiskRequest> in_flight_;
  std::deque<DiskResult> refused_;
};

/// The kernel's calls, any of which may fail as a test says. By default only the file system is not
/// as it is: always ext4, for a test's folder may be in memory.
class FaultyCalls : public DiskCalls {
 public:
  RequestFaults requests;
  bool plain_queues = false;  ///< the kernel's own: for calls on several threads
  std::int64_t type = EXT4_SUPER_MAGIC;
  std::optional<std::int64_t> free_bytes;
  std::function<int(const std::string& path, int flags)> open_error;
  int allocate_error = 0, direct_error = 0;
  std::optional<DirectAlignment> alignment;
  bool forbids_io_uring = false;
  int file = -1;  ///< the descriptor that was opened last

  int space(const std::string& folder, FolderSpace& space) override {
    const int error = disk_calls().space(folder, space);
    space.type = type;
    space.free_bytes = free_bytes.value_or(space.free_bytes);
    return error;
  }
  int open(const std::string& path, int flags) override {
    const int error = open_error ? open_error(path, flags) : 0;
    file = error != 0 ? -error : disk_calls().open(path, flags);
    return file;
  }
  int unlink(const std::string& path) override { return disk_calls().unlink(path); }
  int allocate(int descriptor, std::int64_t bytes) override {
    return allocate_error != 0 ? -allocate_error : disk_calls().allocate(descriptor, bytes);
  }
  DirectAlignment direct_alignment(int descriptor) override {
    return alignment ? *alignment : disk_calls().direct_alignment(descriptor);
  }
  int set_direct(int descriptor, bool direct) override {
    return direct && direct_error != 0 ? -direct_error
                                       : disk_calls().set_direct(descriptor, direct);
  }
  std::unique_ptr<DiskQueue> make_queue(DiskBackend backend, int depth) override {
    require(backend != DiskBackend::kIoUring || !forbids_io_uring, ErrorCode::kUnavailable,
            "io_uring: Operation not permitted");
    auto real = disk_calls().make_queue(backend, depth);
    if (plain_queues) return real;
    return std::make_unique<FaultyQueue>(requests, std::move(real));
  }
};

}  // namespace tessera::test
