#include "cpu_stream.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"
#include "tessera/core/thread_team.h"

namespace tessera {
namespace {

constexpr int kYields = 8;

/// Attributes that sched_setattr(2) of Linux reads; older C libraries do not declare them.
struct SchedulingOfThread {
  std::uint32_t size = sizeof(SchedulingOfThread);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t slice = 0;  ///< nanoseconds that an ordinary thread keeps its core
  std::uint64_t deadline = 0, period = 0;
};

/// Shortens the slice of this thread. From Linux 6.12 on a thread that wakes takes the core from
/// one with a longer slice; else it waits until that one sleeps or its slice, some milliseconds, is
/// over. A system that refuses changes nothing but when it runs.
void shorten_slice() {
  constexpr std::uint64_t kNanoseconds = 100'000;  // the shortest that Linux grants
  SchedulingOfThread thread;
  if (syscall(SYS_sched_getattr, 0, &thread, sizeof thread, 0) != 0) return;
  if (thread.policy != SCHED_OTHER && thread.policy != SCHED_BATCH) return;
  thread.slice = kNanoseconds;
  syscall(SYS_sched_setattr, 0, &thread, 0);
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

CpuStream::CpuStream(StreamOptions options) : options_(std::move(options)) {
  require(options_.threads >= 1, ErrorCode::kInvalidArgument, "stream '", options_.name,
          "' needs at least one thread, got ", options_.threads);
  worker_ = start_thread(concat("the stream '", options_.name, "'"), [this] { run(); });
}

CpuStream::~CpuStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pushed_.notify_one();
  worker_.join();
}

/// A task that submits to its own stream gets behind whatever the host has already enqueued, so
/// behind the readers of its result; and it would wait for itself.
void CpuStream::refuse_own_task(std::string_view call) const {
  require(std::this_thread::get_id() != worker_.get_id(), ErrorCode::kInvalidArgument,
          "Stream::", call, " was called by a task of the same CPU stream, '", options_.name,
          "': that would run after tasks that need its result; compute at once, in the calling "
          "thread (an operation of your own runs inside of such a task)");
}

void CpuStream::submit(const Work& work, std::function<void()> task) {
  refuse_own_task("submit");
  push({.work = work, .task = std::move(task), .open = nullptr, .pass = nullptr});
}

Event CpuStream::record() {
  refuse_own_task("record");
  auto gate = std::make_shared<Gate>();
  push({.work = {}, .task = nullptr, .open = gate, .pass = nullptr});
  return Event(std::move(gate));
}

void CpuStream::wait(const Event& event) {
  refuse_own_task("wait");
  if (event.state() == nullptr) return;
  auto gate = std::dynamic_pointer_cast<Gate>(event.state());
  require(gate != nullptr, ErrorCode::kInvalidArgument, "CPU stream '", options_.name,
          "' cannot wait for an event of another kind of device");
  push({.work = {}, .task = nullptr, .open = nullptr, .pass = std::move(gate)});
}

void CpuStream::copy(void* destination, const void* source, std::size_t bytes) {
  submit({.name = "copy"}, [=] { std::memcpy(destination, source, bytes); });
}

/// Without an event, which would take memory: this must not fail where a failure is handled.
void CpuStream::synchronize() {
  refuse_own_task("synchronize");
  std::unique_lock lock(mutex_);
  const std::uint64_t pushes = pushes_;
  const auto reached = [&] { return executed_.load(std::memory_order_seq_cst) >= pushes; };
  lock.unlock();
  // A few yields, as in Gate, catch what is about to end.
  for (int i = 0; i < kYields && !reached(); ++i) std::this_thread::yield();
  lock.lock();
  if (!reached()) {
    // The first of several sleepers to be due is named, and all are woken from then on.
    ++sleepers_;
    awaited_.store(std::min(awaited_.load(std::memory_order_relaxed), pushes),
                   std::memory_order_seq_cst);
    progressed_.wait(lock, reached);
    if (--sleepers_ == 0) awaited_.store(kNobody, std::memory_order_relaxed);
  }
  if (failure_) std::rethrow_exception(failure_);
}

bool CpuStream::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void CpuStream::push(Entry entry) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = queue_.empty();
    queue_.push_back(std::move(entry));
    ++pushes_;
  }
  // The worker takes the whole queue at once: it can only be asleep if the queue was empty.
  if (was_empty) pushed_.notify_one();
}

void CpuStream::run() {
  const TeamLimit threads(options_.threads);
  if (!options_.name.empty()) {
    pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  }
  if (options_.priority == StreamPriority::kUrgent) shorten_slice();
  std::vector<Entry> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      pushed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (Entry& entry : batch) execute(entry);
    batch.clear();
  }
}

void CpuStream::execute(Entry& entry) {
  if (entry.open) {
    entry.open->open();
  } else if (entry.pass) {
    entry.pass->pass();
  } else if (!failed_) {
    run_task(entry);
  }
  // The task's holdings must be gone before a later event says that it is over.
  entry = Entry{};
  // Either this thread sees who sleeps, or that thread has seen the new number.
  const std::uint64_t executed = executed_.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (executed < awaited_.load(std::memory_order_seq_cst)) return;
  { const std::lock_guard lock(mutex_); }
  progressed_.notify_all();
}

void CpuStream::run_task(Entry& entry) {
  try {
    double begin = options_.on_begin || options_.on_span ? steady_seconds() : 0.0;
    if (options_.on_begin) options_.on_begin(entry.work, begin);
    if (options_.before_task) {
      options_.before_task();
      begin = steady_seconds();
    }
    if (entry.task) entry.task();
    if (options_.on_span) options_.on_span(entry.work, begin, steady_seconds());
  } catch (const std::exception& error) {
    fail_with(error.what());
  } catch (...) {
    fail_with("unknown exception");
  }
}

void CpuStream::fail_with(std::string_view what) {
  failed_ = true;
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  if (options_.on_error) options_.on_error(what);
}

}  // namespace tessera
