#include "thread/rendezvous.h"

#include <utility>

#include "tessera/core/spin_wait.h"

namespace tessera {

void Counter::raise(std::uint64_t value) {
  // Sequentially consistent, as is the other side: either this thread sees the sleeper, or the
  // sleeper sees the value.
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake();
}

Counter::Wait Counter::wait(std::uint64_t target, SteadyTime deadline,
                            const std::atomic<bool>& aborted,
                            std::chrono::nanoseconds yield_after) {
  const auto reached = [&] { return value_.load(std::memory_order_acquire) >= target; };
  if (spin_until([&] { return reached() || aborted.load(std::memory_order_acquire); },
                 yield_after)) {
    return reached() ? Wait::kReached : Wait::kAborted;
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  Wait result = Wait::kReached;
  while (value() < target) {
    if (aborted.load(std::memory_order_seq_cst)) {
      result = Wait::kAborted;
      break;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      result = Wait::kTimeout;
      break;
    }
    raised_.wait_until(lock, deadline);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return result;
}

void Counter::wake() {
  { const std::lock_guard lock(mutex_); }
  raised_.notify_all();
}

void Family::add(std::weak_ptr<Wakeable> member) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [](const auto& old) { return old.expired(); });
  members_.push_back(std::move(member));
}

void Family::abort(std::string_view reason) noexcept {
  std::vector<std::weak_ptr<Wakeable>> members;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return;
    reason_ = reason;
    aborted_.store(true, std::memory_order_seq_cst);
    members.swap(members_);  // who joins from here on sees the flag before it sleeps
  }
  // Without the lock: a member takes its own, under which it may call add().
  for (const auto& member : members) {
    if (const auto alive = member.lock()) alive->wake_all();
  }
}

std::string Family::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

}  // namespace tessera
