#include "fake_stream.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <thread>

namespace tessera::emulator {
namespace {

std::atomic<Fault*> all_faults = nullptr;
thread_local CUstream_st* stream_of_this_worker = nullptr;

// Not std::atomic::wait, whose waiters share counters.
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

/// A program must not end well if a kernel failed and no one was told.
void check_faults_at_exit() {
  bool found = false;
  for (Fault* fault = all_faults.load(); fault != nullptr; fault = fault->next) {
    if (fault->reported.load()) continue;
    fault->made.await();
    std::fprintf(stderr, "no call waited for the stream of this fault: %s\n", fault->what.c_str());
    found = true;
  }
  if (found) _exit(70);
}

Fault* make_fault(const char* what) {
  static const int registered = std::atexit(&check_faults_at_exit);
  static_cast<void>(registered);
  auto* fault = new Fault{.what = what, .reported = false, .next = all_faults.load()};
  fault->made.signal();
  while (!all_faults.compare_exchange_weak(fault->next, fault)) {
  }
  return fault;
}

}  // namespace

void pass_time(std::chrono::microseconds time) {
  if (stream_of_this_worker == nullptr) throw std::logic_error("only a stream's work passes time");
  stream_of_this_worker->pass_time(time);
}

std::int64_t unreported_faults() {
  std::int64_t count = 0;
  for (const Fault* fault = all_faults.load(); fault != nullptr; fault = fault->next) {
    count += fault->reported.load() ? 0 : 1;
  }
  return count;
}

Moment* Moment::share() {
  ++users_;
  return this;
}

void Moment::release() {
  if (--users_ > 0) return;
  sync_.await();
  delete this;
}

void Moment::reach(Fault* fault, std::chrono::microseconds ahead) {
  fault_ = fault;
  time_ = std::chrono::steady_clock::now() + ahead;
  ahead_ = ahead;
  sync_.signal();
  reached_.store(1, std::memory_order_release);
  wake(reached_);
}

void Moment::wait() {
  while (!reached()) sleep_while(reached_, 0);
  sync_.await();
}

}  // namespace tessera::emulator

using tessera::emulator::Fault;
using tessera::emulator::Moment;

CUstream_st::CUstream_st(int device, std::uint32_t number, int priority, std::uint32_t seed)
    : device_(device), number_(number), priority_(priority), random_(seed), newest_(new Task) {
  std::thread([this, done = newest_] { work(done); }).detach();
}

void CUstream_st::append(Task* task) {
  task->submitted.signal();
  newest_->next.store(task, std::memory_order_release);
  newest_ = task;
  submitted_.fetch_add(1, std::memory_order_release);
  tessera::emulator::wake(submitted_);
}

void CUstream_st::enqueue(std::function<void()> action, unsigned max_delay_us) {
  auto* task = new Task;
  task->action = std::move(action);
  task->max_delay_us = max_delay_us;
  append(task);
}

void CUstream_st::enqueue_wait(Moment* moment) {
  enqueue(
      [this, moment] {
        moment->wait();
        Fault* none = nullptr;
        if (Fault* fault = moment->fault()) fault_.compare_exchange_strong(none, fault);
        ahead_ = std::max(ahead_, moment->ahead());
        moment->release();
      },
      0);
}

Moment* CUstream_st::enqueue_moment() {
  auto* moment = new Moment;
  enqueue(
      [this, share = moment->share()] {
        share->reach(fault_.load(), ahead_);
        share->release();
      },
      0);
  return moment;
}

bool CUstream_st::idle() const { return completed_.load() == submitted_.load(); }

Fault* CUstream_st::wait() {
  const std::uint32_t target = submitted_.load();
  for (;;) {
    const std::uint32_t now = completed_.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(now - target) >= 0) break;
    tessera::emulator::sleep_while(completed_, now);
  }
  done_.await();
  return fault_.exchange(nullptr);
}

void CUstream_st::close() { append(new Task); }

/// On the worker. `done` is the task before the first.
void CUstream_st::work(Task* done) {
  tessera::emulator::stream_of_this_worker = this;
  for (std::uint32_t count = 0;; ++count) {
    while (submitted_.load(std::memory_order_acquire) == count) {
      tessera::emulator::sleep_while(submitted_, count);
    }
    Task* task = done->next.load(std::memory_order_acquire);
    delete done;
    done = task;
    task->submitted.await();
    if (!task->action) break;
    delay(task->max_delay_us);
    try {
      task->action();
    } catch (const std::exception& error) {
      Fault* none = nullptr;
      fault_.compare_exchange_strong(none, tessera::emulator::make_fault(error.what()));
    }
    task->action = nullptr;
    done_.signal();
    completed_.store(count + 1, std::memory_order_release);
    tessera::emulator::wake(completed_);
  }
  delete done;
  delete this;
}

void CUstream_st::delay(unsigned max_us) {
  if (max_us == 0) return;
  random_ = random_ * 1664525U + 1013904223U;
  usleep((random_ >> 8) % (max_us + 1));
}
