#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "gate.h"
#include "tessera/core/device.h"

namespace tessera {

/// A worker thread and its queue. Waiting for an event is an entry of the queue that blocks the
/// worker, so the host never waits but in `synchronize` and in the destructor.
///
/// After a failure tasks are dropped, but waits are still honoured: an event recorded here then
/// still means that everything it was ordered after is over, and buffers may be freed.
class CpuStream : public Stream {
 public:
  explicit CpuStream(StreamOptions options);
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;
  /// Runs what was submitted, then joins the worker.
  ~CpuStream() override;

  void submit(const Work& work, std::function<void()> task) override;
  Event record() override;
  void wait(const Event& event) override;
  void copy(void* destination, const void* source, std::size_t bytes) override;
  void synchronize() override;
  bool failed() const override;

 private:
  /// A task, a gate to open (record) or a gate to pass (wait).
  struct Entry {
    Work work;
    std::function<void()> task;
    std::shared_ptr<Gate> open;
    std::shared_ptr<Gate> pass;
  };

  /// Throws if a task of this stream asks for `call`.
  void refuse_own_task(std::string_view call) const;
  void push(Entry entry);
  void run();
  void execute(Entry& entry);
  void run_task(Entry& entry);
  void fail_with(std::string_view what);

  static constexpr std::uint64_t kNobody = std::numeric_limits<std::uint64_t>::max();

  const StreamOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable pushed_;
  std::vector<Entry> queue_;                // guarded by mutex_
  bool stopping_ = false;                   // guarded by mutex_
  std::exception_ptr failure_;              // guarded by mutex_; set once
  bool failed_ = false;                     // the worker's own copy of "failure_ is set"
  std::uint64_t pushes_ = 0;                // guarded by mutex_
  std::atomic<std::uint64_t> executed_{0};  // of these
  /// A thread that sleeps in synchronize() is woken when executed_ reaches this: to wake it after
  /// each task would take the core from a thread that computes, some hundred times a step.
  std::atomic<std::uint64_t> awaited_{kNobody};
  int sleepers_ = 0;  // guarded by mutex_
  std::condition_variable progressed_;
  std::thread worker_;
};

}  // namespace tessera
