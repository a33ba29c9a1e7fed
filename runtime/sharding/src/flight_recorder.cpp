#include "tessera/sharding/flight_recorder.h"

#include <algorithm>
#include <chrono>

namespace tessera {
namespace {

constexpr double kRuns = -1.0;  // the end of what has not ended

}  // namespace

double recorder_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string_view to_string(HostPhase phase) {
  switch (phase) {
    case HostPhase::kOutside:
      return "outside";
    case HostPhase::kReads:
      return "reads";
    case HostPhase::kIssues:
      return "issues";
    case HostPhase::kWaits:
      return "waits";
    case HostPhase::kMeets:
      return "meets";
  }
  return "unknown";
}

ActionRing::ActionRing() : slots_(kSlots) {}

/// A reader that sees any store to a slot sees the count that was there before: all are releases,
/// which cost nothing on x86.
void ActionRing::begin(int program, int action, std::int64_t step, double seconds, bool goes_on) {
  const std::uint64_t number = count_.load(std::memory_order_relaxed);
  Slot& next = slot(number);
  next.program.store(program, std::memory_order_release);
  next.action.store(action, std::memory_order_release);
  next.step.store(step, std::memory_order_release);
  next.begin.store(seconds, std::memory_order_release);
  next.end.store(kRuns, std::memory_order_release);
  count_.store(number + 1, std::memory_order_release);
  goes_on_ = goes_on;
}

void ActionRing::resume() {
  if (!goes_on_) return;
  slot(count_.load(std::memory_order_relaxed) - 1).end.store(kRuns, std::memory_order_release);
}

void ActionRing::end(double seconds) {
  const std::uint64_t count = count_.load(std::memory_order_relaxed);
  if (count == 0) return;
  std::atomic<double>& end = slot(count - 1).end;
  if (goes_on_ || end.load(std::memory_order_relaxed) == kRuns) {
    end.store(seconds, std::memory_order_release);
  }
}

void ActionRing::settle(double seconds) {
  const std::uint64_t count = count_.load(std::memory_order_relaxed);
  for (std::uint64_t n = std::max(settled_, count < kSlots ? 0 : count - kSlots); n < count; ++n) {
    std::atomic<double>& end = slot(n).end;
    if (end.load(std::memory_order_relaxed) == kRuns) end.store(seconds, std::memory_order_release);
  }
  settled_ = count;
  goes_on_ = false;
}

std::vector<ActionRecord> ActionRing::records() const {
  const std::uint64_t count = count_.load(std::memory_order_acquire);
  const std::uint64_t first = count < kRecords ? 0 : count - kRecords;
  std::vector<ActionRecord> all;
  all.reserve(count - first);
  for (std::uint64_t n = first; n < count; ++n) {
    const Slot& from = slots_[n & (kSlots - 1)];
    ActionRecord record{.program = from.program.load(std::memory_order_acquire),
                        .action = from.action.load(std::memory_order_acquire),
                        .step = from.step.load(std::memory_order_acquire),
                        .begin = from.begin.load(std::memory_order_acquire)};
    const double end = from.end.load(std::memory_order_acquire);
    if (end != kRuns) record.end = end;
    all.push_back(record);
  }
  // The record of this number may be in the making, in the slot of an older one.
  const std::uint64_t now = count_.load(std::memory_order_acquire);
  const std::uint64_t kept = now < kSlots ? 0 : now - kSlots + 1;
  const std::uint64_t lost = kept > first ? std::min(kept - first, count - first) : 0;
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(lost));
  return all;
}

void FlightRecorder::begin_phase(HostPhase phase, std::size_t program, std::int64_t step) {
  const double now = recorder_seconds();
  host_.end(now);
  host_.begin(static_cast<int>(program), static_cast<int>(phase), step, now);
}

void FlightRecorder::fail(std::string_view what) noexcept {
  try {
    Failure failure{recorder_seconds(), std::string(what)};
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
    }
    if (on_failure_) on_failure_(failure);
  } catch (...) {  // NOLINT: what has failed matters, not that it could not be kept
  }
}

std::optional<FlightRecorder::Failure> FlightRecorder::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace tessera
