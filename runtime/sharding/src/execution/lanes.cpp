#include "execution/lanes.h"

#include <algorithm>

#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"

namespace tessera {
namespace {

/// For anything but copies to a snapshot, which are made now and then.
bool uses(std::span<const Schedule* const> schedules, Lane lane) {
  return std::ranges::any_of(schedules, [lane](const Schedule* schedule) {
    return std::ranges::any_of(schedule->actions, [&](const Action& action) {
      return action.lane == lane && !copies_to_snapshot(*schedule, action);
    });
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
             std::span<const Schedule* const> schedules)
    : device_(device),
      groups_(groups),
      options_(options),
      schedules_(schedules.begin(), schedules.end()) {
  // A rank alone waits for nobody: on the CPU a second lane would only compete for its cores.
  const bool one_stream =
      options.one_stream || (groups.control() == nullptr && device.kind() == DeviceKind::kCpu);
  for (const Lane lane : kAllLanes) {
    // A lane that reads a disk waits for it, and needs no core.
    const bool shares = (one_stream && !is_of_disk(lane)) || !uses(schedules, lane);
    if (lane != Lane::kCompute && shares) {
      lanes_[static_cast<std::size_t>(lane)] = &of(Lane::kCompute);
    } else {
      open(lane);
    }
  }
}

namespace {

StreamPriority priority_of(Lane lane, const ExecutorOptions& options) {
  if (lane == Lane::kCompute) return StreamPriority::kNormal;
  const bool leaves_room = lane == Lane::kOptimizer && options.cuda_kernels.optimizer_blocks > 0;
  return leaves_room ? StreamPriority::kBackground : StreamPriority::kUrgent;
}

}  // namespace

StreamOptions Lanes::stream_options(Lane lane) {
  // Gathers and copies one thread makes as fast as two. Reductions and norms are not copies, and
  // those of the last gradient have the cores for themselves.
  const bool copies = lane == Lane::kGather || is_copying(lane);
  StreamOptions stream{.name = std::string(to_string(lane)) + std::to_string(groups_.rank()),
                       .threads = copies ? 1 : options_.threads,
                       // A GPU that is full of products would else begin what others wait for
                       // when there is nothing left to hide it behind. The next step's forward
                       // waits for the optimizer as well, unless that leaves it room.
                       .priority = priority_of(lane, options_),
                       .on_error = [this, lane](std::string_view what) {
                         const std::string told = failure_in_words(lane, what);
                         groups_.abort(told);
                         if (options_.recorder != nullptr) options_.recorder->fail(told);
                       }};
  if (options_.before_task) {
    stream.before_task = [lane, before = options_.before_task] { before(lane); };
  }
  ActionRing* const ring = options_.recorder == nullptr ? nullptr : &options_.recorder->ring(lane);
  const bool has_pipeline = schedules_.front()->pipeline_ranks() > 1;
  if (ring != nullptr || has_pipeline) {
    Work* const running = has_pipeline ? &running_[static_cast<std::size_t>(lane)] : nullptr;
    stream.on_begin = [ring, running](const Work& work, double seconds) {
      if (running != nullptr && work.action >= 0) *running = work;
      if (ring == nullptr) return;
      if (work.action < 0) return ring->resume();
      ring->begin(work.program, work.action, work.step, seconds, work.goes_on);
    };
  }
  // The host knows of a GPU's tasks when it has issued them.
  ActionRing* const ended = device_.kind() == DeviceKind::kCpu ? ring : nullptr;
  if (options_.trace || ended != nullptr) {
    // A collective submits tasks of its own, without an action: they belong to the last one.
    stream.on_span = [this, lane, ended](const Work& work, double begin, double end) {
      if (ended != nullptr) ended->end(end);
      if (!options_.trace) return;
      const auto i = static_cast<std::size_t>(lane);
      if (work.action >= 0) current_[i] = work;
      if (current_[i].action < 0) return;
      const Work& action = current_[i];
      std::vector<ActionSpan>& spans = spans_[i];
      if (work.action < 0 && !spans.empty() && spans.back().action == action.action &&
          spans.back().step == action.step) {
        spans.back().end = end;
      } else {
        spans.push_back({action.action, lane, begin, end, action.step});
      }
    };
  }
  return stream;
}

std::string Lanes::place_of_rank() const {
  const Schedule& schedule = *schedules_.front();
  if (schedule.pipeline_ranks() == 1) return "";
  return rank_in_words(schedule, schedule.pipeline.rank) + ": ";
}

/// Says of a pipeline where, and in which action.
std::string Lanes::failure_in_words(Lane lane, std::string_view what) const {
  const Work& work = running_[static_cast<std::size_t>(lane)];
  if (work.action < 0) return place_of_rank() + std::string(what);
  const auto program = static_cast<std::size_t>(work.program);
  const Schedule& schedule = *schedules_[program];
  const Action& action = schedule.actions[static_cast<std::size_t>(work.action)];
  const int stage = stage_of(schedule, action);
  const std::string place =
      stage < 0 ? rank_in_words(schedule, schedule.pipeline.rank)
                : concat("pipeline rank ", schedule.pipeline.rank, ", stage ", stage);
  return concat(place, ", in step ", work.step + 1, ", ", work.name, ": ", what);
}

void Lanes::open(Lane lane) {
  Stream*& stream = lanes_[static_cast<std::size_t>(lane)];
  if (stream != nullptr && (lane == Lane::kCompute || stream != &of(Lane::kCompute))) return;
  stream = streams_.emplace_back(device_.create_stream(stream_options(lane))).get();
  if (auto* const cuda = dynamic_cast<CudaStream*>(stream)) {
    set_cuda_kernel_options(*cuda, options_.cuda_kernels);
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
  if (options_.recorder == nullptr) return;
  const double now = recorder_seconds();
  for (const Lane lane : kAllLanes) options_.recorder->ring(lane).settle(now);
}

bool Lanes::failed() const {
  return std::ranges::any_of(streams_, [](const auto& stream) { return stream->failed(); });
}

void Lanes::end_action(Lane lane) {
  if (!options_.trace) return;
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
