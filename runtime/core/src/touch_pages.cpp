#include "tessera/core/touch_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tessera/core/start_thread.h"
#include "tessera/core/usable_cores.h"

namespace tessera {
namespace {

/// Bytes that a thread takes at a time, in whole huge pages. Large enough for the call to cost
/// nothing, small enough for a stop to be noticed within some 10 ms.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20U;

/// Writes to each page what it holds.
void write_each_page(std::byte* begin, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const values = reinterpret_cast<unsigned char*>(begin);
  for (std::size_t i = 0; i < bytes; i += page) {
    std::atomic_ref<unsigned char>(values[i]).fetch_or(0);
  }
}

bool take(std::byte* begin, std::size_t bytes, bool may_write) {
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL || !may_write) return false;
  write_each_page(begin, bytes);
  return true;
}

/// State that the threads share.
class Pieces {
 public:
  Pieces(std::byte* begin, std::size_t bytes, const TouchOptions& options)
      : begin_(begin), bytes_(bytes), may_write_(options.may_write), work_(options.work) {}

  /// Takes pieces until there are none.
  void run() {
    try {
      while (!ended_) {
        const std::size_t at = next_.fetch_add(kPieceBytes);
        if (at >= bytes_) return;
        const std::size_t size = std::min(kPieceBytes, bytes_ - at);
        if (!take(begin_ + at, size, may_write_)) {
          enough_ = false;
          ended_ = true;
          return;
        }
        advance_work(work_, HostTask::kTouchPages, static_cast<std::int64_t>(size));
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      ended_ = true;
    }
  }
  bool result() const {
    if (failure_) std::rethrow_exception(failure_);
    return enough_;
  }

 private:
  std::byte* const begin_;
  const std::size_t bytes_;
  const bool may_write_;
  HostWork* const work_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> enough_ = true;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

bool touch_pages(void* address, std::size_t bytes, const TouchOptions& options) {
  // The page that `address` is in, as madvise wants it.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t into_page = reinterpret_cast<std::uintptr_t>(address) % page;
  auto* const begin = static_cast<std::byte*>(address) - into_page;
  bytes += into_page;
  begin_work(options.work, HostTask::kTouchPages, static_cast<std::int64_t>(bytes));
  const std::size_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const int most = options.threads > 0 ? options.threads : usable_cores();
  const std::size_t threads = std::min(pieces, static_cast<std::size_t>(most));
  Pieces shared(begin, bytes, options);
  {
    std::vector<std::jthread> others;  // joined when the scope ends
    for (std::size_t i = 1; i < threads; ++i) {
      others.push_back(start_thread<std::jthread>("touching host memory", [&] { shared.run(); }));
    }
    shared.run();
  }
  return shared.result();
}

}  // namespace tessera
