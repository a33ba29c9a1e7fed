#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "sanitizers.h"

// Streams of the emulated GPU: each is a thread that takes tasks from a queue. Nothing orders the
// tasks of two streams but the events between them: the workers share no lock, and what
// ThreadSanitizer may take for an order is said with SyncPoints. (These files are compiled without
// it, so it does not see their atomics.)

namespace tessera::emulator {

/// What went wrong in a stream's work. Never deleted: a rare thing.
struct Fault {
  std::string what;
  std::atomic<bool> reported = false;
  Fault* next = nullptr;  ///< in the list of all
  SyncPoint made = {};
};

/// One recording of an event: a moment in a stream.
class Moment {
 public:
  Moment* share();
  void release();

  bool reached() const { return reached_.load(std::memory_order_acquire) != 0; }
  /// By a stream whose clock is that much ahead of the machine's.
  void reach(Fault* fault, std::chrono::microseconds ahead);
  /// Blocks; afterwards what came before the moment is before what follows.
  void wait();
  Fault* fault() const { return fault_.load(); }
  std::chrono::steady_clock::time_point time() const { return time_; }
  std::chrono::microseconds ahead() const { return ahead_; }

 private:
  ~Moment() = default;

  std::atomic<std::uint32_t> reached_ = 0;
  std::atomic<int> users_ = 1;
  std::atomic<Fault*> fault_ = nullptr;
  std::chrono::steady_clock::time_point time_;
  std::chrono::microseconds ahead_{0};
  SyncPoint sync_;
};

/// See fake_cuda.
void pass_time(std::chrono::microseconds time);

/// How many faults no one has been told of.
std::int64_t unreported_faults();

}  // namespace tessera::emulator

/// The opaque type behind cudaStream_t. The functions are called under the runtime's lock, except
/// for those that wait.
struct CUstream_st {
 public:
  using Moment = tessera::emulator::Moment;
  using Fault = tessera::emulator::Fault;

  /// `number` counts the streams of the process; a lower priority goes first.
  CUstream_st(int device, std::uint32_t number, int priority, std::uint32_t seed);

  int device() const { return device_; }
  std::uint32_t number() const { return number_; }
  int priority() const { return priority_; }
  /// Runs `action` when the tasks before it are done, after a random delay of up to `max_delay_us`.
  /// What it throws becomes the stream's fault.
  void enqueue(std::function<void()> action, unsigned max_delay_us);
  /// Takes over the caller's share of the moment.
  void enqueue_wait(Moment* moment);
  /// The caller gets a share.
  Moment* enqueue_moment();

  bool idle() const;
  /// Waits for what is enqueued; returns the fault of the work so far, if there is one.
  Fault* wait();
  /// The worker ends, and frees the stream, when it has done what is enqueued.
  void close();
  /// On the worker: moves the stream's clock.
  void pass_time(std::chrono::microseconds time) { ahead_ += time; }

 private:
  struct Task {
    std::function<void()> action;  ///< none: the last task of all
    unsigned max_delay_us = 0;
    tessera::emulator::SyncPoint submitted;
    std::atomic<Task*> next = nullptr;
  };

  void append(Task* task);
  void work(Task* done);
  void delay(unsigned max_us);

  const int device_;
  const std::uint32_t number_;
  const int priority_;
  std::uint32_t random_;
  Task* newest_;
  std::atomic<std::uint32_t> submitted_ = 0, completed_ = 0;
  std::atomic<Fault*> fault_ = nullptr;
  std::chrono::microseconds ahead_{0};  ///< of the machine's clock; the worker's own
  tessera::emulator::SyncPoint done_;
};
