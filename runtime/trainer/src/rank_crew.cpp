#include "rank_crew.h"

#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/segment_pool.h"
#include "tessera/core/start_thread.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_binding.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
namespace {

/// The rank whose process has another one to tell something: the first of each.
std::unique_ptr<ProcessGroup> split_leaders(const TrainerOptions& options, int rank) {
  const World* const world = options.world.get();
  if (world == nullptr || world->processes() == 1) return nullptr;
  const bool leads = rank == world->first_rank();
  ProcessGroup& seat = *world->groups()[static_cast<std::size_t>(rank - world->first_rank())];
  auto group = seat.split(leads ? 0 : 1, rank);
  return leads ? std::move(group) : nullptr;
}

ExecutorOptions executor_options_of(const TrainingPlan& plan, FlightRecorder& recorder,
                                    const std::function<void()>& before_task) {
  ExecutorOptions options = executor_options(plan.options);
  options.before_task = [before_task](Lane /*lane*/) { before_task(); };
  options.recorder = &recorder;
  options.cuda_kernels.gemm_table = plan.gemm_table;
  return options;
}

/// Host memory of offloaded state and snapshots, as a pool cuts it, and a page for what the host
/// writes and reads in every step: tokens and scalars.
std::int64_t pinned_bytes(const TrainingPlan& plan, int rank) {
  const auto p = static_cast<std::size_t>(plan.pipeline_rank_of(rank));
  const RankCosts& costs = plan.stages[p];
  std::int64_t bytes = costs.host_memory.total + costs.snapshot_bytes;
  bytes += static_cast<std::int64_t>(SegmentPool::kPageBytes);
  for (const ScheduleBuffer& buffer : plan.snapshot.ranks[p].buffers) {
    if (buffer.tier == Tier::kHost) bytes += static_cast<std::int64_t>(SegmentPool::kAlignment);
  }
  return bytes;
}

std::vector<const Schedule*> schedules_of(const std::vector<std::vector<Program>>& programs) {
  std::vector<const Schedule*> schedules;
  for (const std::vector<Program>& of_rank : programs) {
    for (const Program& program : of_rank) schedules.push_back(program.schedule);
  }
  return schedules;
}

const std::vector<Program>& programs_of_rank(const TrainingPlan& plan,
                                             const std::vector<std::vector<Program>>& programs,
                                             int rank) {
  return programs[static_cast<std::size_t>(plan.pipeline_rank_of(rank))];
}

}  // namespace

/// In a catch.
void RankCrew::note_failure(int rank) {
  try {
    throw;
  } catch (const std::exception& error) {
    dumps_.recorder(rank).fail(error.what());
  } catch (...) {
    dumps_.recorder(rank).fail("an unknown exception");
  }
}

RankSeat::RankSeat(const TrainingPlan& plan, const std::vector<std::vector<Program>>& programs,
                   int number, ProcessGroup& world, FlightRecorder& recorder,
                   const std::function<void()>& before_task)
    : rank(number),
      device(make_rank_device(plan.options, rank, pinned_bytes(plan, rank))),
      memory(*device, plan.options.memory_limit_bytes),
      groups(RankGroups::split_from(world, schedules_of(programs))),
      leaders(split_leaders(plan.options, rank)),
      state(plan.layout, state_options(*programs_of_rank(plan, programs, rank).front().schedule),
            rank, memory, disk_options(plan.options), plan.options.host_work.get()),
      executor(state, plan.inputs.model, programs_of_rank(plan, programs, rank), groups, memory,
               executor_options_of(plan, recorder, before_task)) {}

RankCrew::RankCrew(const TrainingPlan& plan, std::vector<std::vector<Program>> programs,
                   DumpWriter& dumps)
    : plan_(plan),
      programs_(std::move(programs)),
      dumps_(dumps),
      first_rank_(dumps.first_rank()),
      made_(make_groups(plan.options)),
      groups_(made_.empty() ? &plan.options.world->groups() : &made_) {
  local_ranks_ = groups_->size();
  driver_ = start_thread("a training session", [this] {
    std::exception_ptr failure;
    try {
      launch_ranks(*groups_, [this](int rank, ProcessGroup& world) {
        try {
          serve(rank, world);
        } catch (...) {
          note_failure(rank);
          std::lock_guard lock(mutex_);
          failed_ = true;
          changed_.notify_all();
          throw;
        }
      });
    } catch (...) {
      failure = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    failure_ = failure;
    ended_ = true;
    changed_.notify_all();
  });
  try {
    wait_until_done();  // at their seats
  } catch (...) {
    driver_.join();
    throw;
  }
}

RankCrew::~RankCrew() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (driver_.joinable()) driver_.join();
}

void RankCrew::serve(int rank, ProcessGroup& world) {
  bind_rank(plan_.options, rank);  // first: what it starts and touches is bound with it
  RankSeat seat(plan_, programs_, rank, world, dumps_.recorder(rank),
                [this] { fail_if_aborted(); });
  for (std::int64_t next = 1;; ++next) {
    std::unique_lock lock(mutex_);
    if (++done_ == local_ranks_) changed_.notify_all();
    changed_.wait(lock, [&] { return failed_ || ending_ || number_ == next; });
    require(!failed_, ErrorCode::kAborted, "another rank failed");
    if (number_ != next) return;
    const Job& job = *job_;
    lock.unlock();
    job(seat);
  }
}

void RankCrew::wait_until_done() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_ || (!failed_ && done_ == local_ranks_); });
  if (!ended_) return;
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  fail(ErrorCode::kInvalidArgument, "the session has ended");
}

void RankCrew::run(const Job& job) {
  {
    std::lock_guard lock(mutex_);
    job_ = &job;
    done_ = 0;
    ++number_;
    changed_.notify_all();
  }
  wait_until_done();
}

void RankCrew::fail_if_aborted() {
  if (!aborted_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  fail(ErrorCode::kAborted, reason_);
}

void RankCrew::abort(std::string_view reason) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
    aborted_.store(true, std::memory_order_relaxed);
  }
  for (const auto& group : *groups_) group->abort(reason);
  if (plan_.options.world == nullptr) return;
  for (const auto& seat : plan_.options.world->groups()) seat->abort(reason);
}

}  // namespace tessera
