#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "disk_queues.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class UringQueue : public DiskQueue {
 public:
  explicit UringQueue(int depth) {
    const int error = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    require(error >= 0, ErrorCode::kUnavailable, "io_uring: ", std::strerror(-error));
    if (reads_and_writes()) return;
    io_uring_queue_exit(&ring_);
    fail(ErrorCode::kUnavailable, "io_uring: Linux 5.6 or newer is needed");
  }
  ~UringQueue() override { io_uring_queue_exit(&ring_); }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  int submit(const DiskRequest& request) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return -EBUSY;
    const auto bytes = static_cast<unsigned>(request.bytes);
    const auto offset = static_cast<std::uint64_t>(request.offset);
    if (request.write) {
      io_uring_prep_write(entry, request.file, request.data, bytes, offset);
    } else {
      io_uring_prep_read(entry, request.file, request.data, bytes, offset);
    }
    io_uring_sqe_set_data64(entry, request.tag);
    const int error = flush();
    if (error == 0) return 0;
    // The entry stays in the ring, and the next call would start it.
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data64(entry, kNobody);
    return error;
  }

  DiskResult wait() noexcept override {
    while (true) {
      io_uring_cqe* entry = nullptr;
      const int error = io_uring_wait_cqe(&ring_, &entry);
      if (error == -EINTR || error == -EAGAIN) continue;
      require(error == 0, ErrorCode::kInternal,
              "io_uring gives no result: ", std::strerror(-error));
      const DiskResult result{.tag = io_uring_cqe_get_data64(entry), .moved = entry->res};
      io_uring_cqe_seen(&ring_, entry);
      if (result.tag != kNobody) return result;
    }
  }

 private:
  static constexpr std::uint64_t kNobody = ~std::uint64_t{0};
  static constexpr int kAttempts = 1000;  // a millisecond each

  bool reads_and_writes() {
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    const bool both = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                      io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    io_uring_free_probe(probe);
    return both;
  }

  /// 0, or an errno, negated: the kernel may lack memory for a moment.
  int flush() {
    int result = 0;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      result = io_uring_submit(&ring_);
      if (result > 0) return 0;
      if (result != 0 && result != -EAGAIN && result != -EBUSY && result != -EINTR) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return result == 0 ? -EAGAIN : result;
  }

  io_uring ring_{};
};

}  // namespace

std::unique_ptr<DiskQueue> make_uring_queue(int depth) {
  return std::make_unique<UringQueue>(depth);
}

}  // namespace tessera
