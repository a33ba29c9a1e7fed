#include "lanes.h"

#include <algorithm>

#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

bool uses(std::span<const Schedule* const> schedules, Lane lane) {
  return std::ranges::any_of(schedules, [lane](const Schedule* schedule) {
    return std::ranges::find(schedule->actions, lane, &Action::lane) != schedule->actions.end();
  });
}

}  // namespace

bool is_consequence(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kAborted;
  } catch (...) {
    return false;
  }
}

Lanes::Lanes(Device& device, RankGroups& groups, const ExecutorOptions& options,
             std::span<const Schedule* const> schedules) {
  traced_ = options.trace;
  recorder_ = options.recorder;
  // A rank alone waits for nobody: on the CPU a second lane would only compete for its cores.
  const bool one_stream = groups.control() == nullptr && device.kind() == DeviceKind::kCpu;
  for (const Lane lane : kAllLanes) {
    const auto i = static_cast<std::size_t>(lane);
    if (lane != Lane::kCompute && (one_stream || !uses(schedules, lane))) {
      lanes_[i] = &of(Lane::kCompute);
      continue;
    }
    // Gathers are copies, which one thread makes as fast as two. Reductions and norms are not, and
    // those of the last gradient have the cores for themselves.
    StreamOptions stream{.name = std::string(to_string(lane)) + std::to_string(groups.rank()),
                         .threads = lane == Lane::kGather ? 1 : options.threads,
                         // A GPU that is full of products would else begin what others wait for
                         // when there is nothing left to hide it behind. The next step's forward
                         // waits for the optimizer as well.
                         .urgent = lane != Lane::kCompute,
                         .on_error = [this, &groups](std::string_view what) {
                           groups.abort(what);
                           if (recorder_ != nullptr) recorder_->fail(what);
                         }};
    if (options.before_task) {
      stream.before_task = [lane, before = options.before_task] { before(lane); };
    }
    ActionRing* const ring = recorder_ == nullptr ? nullptr : &recorder_->ring(lane);
    if (ring != nullptr) {
      stream.on_begin = [ring](const Work& work, double seconds) {
        if (work.action < 0) return ring->resume();
        ring->begin(work.program, work.action, work.step, seconds, work.goes_on);
      };
    }
    // Of a GPU's tasks the host knows when it has issued them.
    ActionRing* const ended = device.kind() == DeviceKind::kCpu ? ring : nullptr;
    if (options.trace || ended != nullptr) {
      // A collective submits tasks of its own, without an action: they belong to the last one.
      stream.on_span = [this, lane, i, ended](const Work& work, double begin, double end) {
        if (ended != nullptr) ended->end(end);
        if (!traced_) return;
        if (work.action >= 0) current_[i] = work;
        if (current_[i].action < 0) return;
        spans_[i].push_back({current_[i].action, lane, begin, end, current_[i].step});
      };
    }
    lanes_[i] = streams_.emplace_back(device.create_stream(std::move(stream))).get();
    if (auto* const cuda = dynamic_cast<CudaStream*>(lanes_[i])) {
      set_cuda_kernel_options(*cuda, options.cuda_kernels);
    }
  }
}

void Lanes::synchronize() {
  std::exception_ptr failure;
  for (const auto& stream : streams_) {
    try {
      stream->synchronize();
    } catch (...) {
      if (!failure || is_consequence(failure)) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  if (recorder_ == nullptr) return;
  const double now = recorder_seconds();
  for (const Lane lane : kAllLanes) recorder_->ring(lane).settle(now);
}

bool Lanes::failed() const {
  return std::ranges::any_of(streams_, [](const auto& stream) { return stream->failed(); });
}

void Lanes::end_action(Lane lane) {
  if (!traced_) return;
  const bool shares = &of(lane) == &of(Lane::kCompute);
  const auto i = static_cast<std::size_t>(shares ? Lane::kCompute : lane);
  of(lane).submit({.name = "data of the host"}, [this, i] { current_[i].action = -1; });
}

std::vector<ActionSpan> Lanes::take_spans() {
  std::vector<ActionSpan> out;
  for (auto& spans : spans_) {
    out.insert(out.end(), spans.begin(), spans.end());
    spans.clear();
  }
  return out;
}

}  // namespace tessera
