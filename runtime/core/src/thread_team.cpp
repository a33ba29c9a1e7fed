#include "tessera/core/thread_team.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/spin_wait.h"
#include "tessera/core/start_thread.h"

namespace tessera {
namespace {

/// Kernels of a small model follow each other within some microseconds. A step of 4 ms took 5 %
/// longer with 2 us, and two programs at once took 2.2 times as long as one with 20 us (1.8 with
/// 10).
constexpr std::chrono::microseconds kKeepCore{10};

/// A number that one thread waits for and others change.
class Signal {
 public:
  void set(std::uint32_t value) {
    // Sequentially consistent, as is the other side: either this thread sees the sleeper, or the
    // sleeper sees the value.
    value_.store(value, std::memory_order_seq_cst);
    wake();
  }

  /// Wakes the waiting thread with the last one only.
  void count_down() {
    if (value_.fetch_sub(1, std::memory_order_seq_cst) == 1) wake();
  }

  template <typename Done>
  void wait(const Done& done) {
    const auto reached = [&] { return done(value_.load(std::memory_order_seq_cst)); };
    if (spin_until(reached, kKeepCore)) return;
    std::unique_lock lock(mutex_);
    asleep_.store(true, std::memory_order_seq_cst);
    changed_.wait(lock, reached);
    asleep_.store(false, std::memory_order_relaxed);
  }

 private:
  void wake() {
    if (!asleep_.load(std::memory_order_seq_cst)) return;
    { const std::lock_guard lock(mutex_); }
    changed_.notify_one();
  }

  std::atomic<std::uint32_t> value_{0};
  std::atomic<bool> asleep_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// The helpers of one thread, and what they share with it during a piece of work.
class Team {
 public:
  Team() = default;
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int limit();
  void set_limit(int threads) { limit_ = threads; }
  void run(int threads, detail::TeamPart part, const void* body);

 private:
  struct alignas(64) Helper {
    std::uint32_t calls = 0;
    Signal call;  ///< `calls`, for the helper
    std::thread thread;

    void begin() { call.set(++calls); }
  };

  void start(int helpers);
  void help(Signal& call, int thread);
  void run_part(int thread);
  void share(int helpers, detail::TeamPart part, const void* body);

  int limit_ = 0;  ///< team_threads(); 0: not asked for yet
  std::vector<std::unique_ptr<Helper>> helpers_;
  bool ending_ = false;
  detail::TeamPart part_ = nullptr;
  const void* body_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  int thrower_ = 0;
  alignas(64) Signal running_;  ///< helpers that have not finished their part
};

thread_local Team own_team;

/// While it lives, work that is called from this thread stays on it.
class OneThread {
 public:
  OneThread() : limit_(1), openmp_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(openmp_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  TeamLimit limit_;
  int openmp_;
};

Team::~Team() {
  ending_ = true;
  for (const auto& helper : helpers_) helper->begin();
  for (const auto& helper : helpers_) helper->thread.join();
}

int Team::limit() {
  if (limit_ == 0) limit_ = std::max(1, omp_get_max_threads());
  return limit_;
}

void Team::run(int threads, detail::TeamPart part, const void* body) {
  require(threads >= 1 && threads <= limit(), ErrorCode::kInvalidArgument, "work for ", threads,
          " threads was given to a team of ", limit());
  start(threads - 1);
  const OneThread one;
  if (threads == 1) return part(body, 0);
  share(threads - 1, part, body);
}

void Team::start(int helpers) {
  while (std::ssize(helpers_) < helpers) {
    auto helper = std::make_unique<Helper>();
    const int thread = static_cast<int>(helpers_.size()) + 1;
    helper->thread = start_thread(concat("part ", thread, " of a kernel"),
                                  [this, thread, &call = helper->call] { help(call, thread); });
    helpers_.push_back(std::move(helper));
  }
}

void Team::help(Signal& call, int thread) {
  const OneThread one;
  for (std::uint32_t next = 1;; ++next) {
    call.wait([next](std::uint32_t calls) { return calls == next; });
    if (ending_) return;
    run_part(thread);
    running_.count_down();
  }
}

void Team::run_part(int thread) {
  try {
    part_(body_, thread);
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    if (error_ && thrower_ < thread) return;
    thrower_ = thread;
    error_ = std::current_exception();
  }
}

void Team::share(int helpers, detail::TeamPart part, const void* body) {
  part_ = part;
  body_ = body;
  running_.set(static_cast<std::uint32_t>(helpers));
  for (int i = 0; i < helpers; ++i) helpers_[static_cast<std::size_t>(i)]->begin();
  run_part(0);
  running_.wait([](std::uint32_t left) { return left == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace

int team_threads() { return own_team.limit(); }

TeamLimit::TeamLimit(int threads) : before_(own_team.limit()) {
  require(threads >= 1, ErrorCode::kInvalidArgument, "a team needs at least one thread, got ",
          threads);
  own_team.set_limit(threads);
}

TeamLimit::~TeamLimit() { own_team.set_limit(before_); }

void detail::run_on_team(int threads, TeamPart part, const void* body) {
  own_team.run(threads, part, body);
}

}  // namespace tessera
