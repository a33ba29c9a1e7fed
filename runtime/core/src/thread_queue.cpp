#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "disk_queues.h"
#include "tessera/core/start_thread.h"

namespace tessera {
namespace {

class ThreadQueue : public DiskQueue {
 public:
  explicit ThreadQueue(int threads) {
    try {
      for (int i = 0; i < threads; ++i) {
        threads_.push_back(start_thread("the disk tier", [this] { serve(); }));
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~ThreadQueue() override { stop(); }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  int submit(const DiskRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    submitted_.notify_one();
    return 0;
  }

  DiskResult wait() noexcept override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return !results_.empty(); });
    const DiskResult result = results_.front();
    results_.pop_front();
    return result;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      submitted_.wait(lock, [this] { return stops_ || !requests_.empty(); });
      if (requests_.empty()) return;
      const DiskRequest request = requests_.front();
      requests_.pop_front();
      lock.unlock();
      const DiskResult result{.tag = request.tag, .moved = move(request)};
      lock.lock();
      results_.push_back(result);
      ended_.notify_one();
    }
  }

  static std::int64_t move(const DiskRequest& request) {
    const ssize_t moved = request.write
                              ? pwrite(request.file, request.data, request.bytes, request.offset)
                              : pread(request.file, request.data, request.bytes, request.offset);
    return moved < 0 ? -errno : moved;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    submitted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::mutex mutex_;
  std::condition_variable submitted_, ended_;
  std::deque<DiskRequest> requests_;
  std::deque<DiskResult> results_;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DiskQueue> make_thread_queue(int threads) {
  return std::make_unique<ThreadQueue>(threads);
}

}  // namespace tessera
