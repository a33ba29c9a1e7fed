#include "tessera/core/host_work.h"

#include "tessera/core/error.h"

namespace tessera {

const char* to_string(HostTask task) {
  switch (task) {
    case HostTask::kTouchPages:
      return "taking host memory";
    case HostTask::kInitialize:
      return "initialising the training state";
    case HostTask::kLoad:
      return "loading parameters and state";
    case HostTask::kHash:
      return "hashing the parameters";
  }
  return "";
}

void HostWork::begin(HostTask task, std::int64_t bytes) {
  counts_[static_cast<std::size_t>(task)].total += bytes;
}

void HostWork::advance(HostTask task, std::int64_t bytes) {
  counts_[static_cast<std::size_t>(task)].done += bytes;
  if (!starting_ || !stop_requested_ || !stop_requested_()) return;
  fail(ErrorCode::kAborted, "the run was ended before its first step");
}

HostWork::Extent HostWork::of(HostTask task) const {
  const Count& count = counts_[static_cast<std::size_t>(task)];
  return {.task = task, .done_bytes = count.done, .total_bytes = count.total};
}

std::optional<HostWork::Extent> HostWork::current() const {
  for (int i = 0; i < kHostTasks; ++i) {
    const Extent extent = of(static_cast<HostTask>(i));
    if (!starting_ && extent.task != HostTask::kHash) continue;
    if (extent.done_bytes < extent.total_bytes) return extent;
  }
  return std::nullopt;
}

}  // namespace tessera
