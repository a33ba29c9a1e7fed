#include "checkpoint_saver.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "gather.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/core/start_thread.h"

namespace tessera {
namespace {

using Seconds = std::chrono::duration<double>;

/// What only the others of a process's ranks know of its files.
std::string hashes_of(const std::vector<SavedFile>& files) {
  std::string bytes;
  for (const SavedFile& file : files) {
    bytes.append(reinterpret_cast<const char*>(file.chunk_hashes.data()),
                 file.chunk_hashes.size() * sizeof(std::uint64_t));
  }
  return bytes;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const TrainingPlan& plan, Manifest run, RankCrew& crew,
                                 Storage& storage)
    : plan_(plan), manifest_(std::move(run)), crew_(crew), storage_(storage) {
  const World* const world = plan.options.world.get();
  const int local = world == nullptr ? plan.options.ranks : world->local_ranks();
  snapshots_.resize(static_cast<std::size_t>(local));
  files_.resize(snapshots_.size());
}

CheckpointSaver::~CheckpointSaver() { join(); }

void CheckpointSaver::prepare() {
  crew_.run([this](RankSeat& seat) {
    auto& snapshot = snapshots_[static_cast<std::size_t>(seat.rank - crew_.first_rank())];
    if (snapshot == nullptr) {
      snapshot = std::make_unique<Snapshot>(manifest_.parameters, seat.state, *seat.device);
    }
  });
}

template <typename Body>
void CheckpointSaver::start(const char* name, Body body) {
  workers_.push_back(std::make_unique<Worker>());
  Worker& worker = *workers_.back();
  worker.thread = start_thread(name, [&worker, body = std::move(body)] {
    setpriority(PRIO_PROCESS, 0, 10);  // of this thread: the ranks' work goes first
    try {
      body();
      worker.part = Part::kDone;
    } catch (const std::exception& error) {
      worker.error = error.what();
      worker.part = Part::kFailed;
    }
  });
}

void CheckpointSaver::begin(const std::string& folder, std::int64_t step, std::int64_t samples) {
  require(phase_ == Phase::kNone, ErrorCode::kInvalidArgument, "a checkpoint is being written");
  prepare();
  began_ = Clock::now();
  folder_ = folder;
  record_ = {.step = step, .path = {}, .bytes = 0};
  manifest_.step = step;
  manifest_.samples = samples;
  phase_ = Phase::kWriting;
  // The first process makes the folder, before any other writes to it.
  if (is_first()) {
    start("a checkpoint's folder",
          [this] { unfinished_ = begin_checkpoint(storage_, folder_, record_.step); });
    workers_.back()->thread.join();
  }
  if (part_of_all() == Part::kFailed) give_up();
  workers_.clear();
  unfinished_ = concat(folder_, "/step_", step, ".tmp");
  crew_.run([this](RankSeat& seat) {
    seat.executor.run_apart([&](Stream& stream) {
      snapshots_[static_cast<std::size_t>(seat.rank - crew_.first_rank())]->take(stream);
    });
  });
  record_.copy_seconds = Seconds(Clock::now() - began_).count();
  for (std::size_t i = 0; i < snapshots_.size(); ++i) {
    start("a checkpoint's file",
          [this, i] { files_[i] = snapshots_[i]->write(storage_, unfinished_); });
  }
}

CheckpointSaver::Part CheckpointSaver::own_part() const {
  Part part = Part::kDone;
  for (const auto& worker : workers_) {
    if (worker->part == Part::kPending) return Part::kPending;
    if (worker->part == Part::kFailed) part = Part::kFailed;
  }
  return part;
}

/// Failed as soon as no process has work in flight and one has failed.
CheckpointSaver::Part CheckpointSaver::part_of_all() {
  Part all = own_part();
  const World* const world = plan_.options.world.get();
  if (world == nullptr || world->processes() == 1) return all;
  crew_.run([&](RankSeat& seat) {
    if (seat.leaders == nullptr) return;
    const auto parts = gather_bytes(*seat.leaders, all);
    const auto any = [&](Part part) { return std::ranges::find(parts, part) != parts.end(); };
    all = any(Part::kPending) ? Part::kPending : any(Part::kFailed) ? Part::kFailed : Part::kDone;
  });
  return all;
}

void CheckpointSaver::join() {
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

/// All processes are here.
void CheckpointSaver::give_up() {
  join();
  std::string error;
  for (const auto& worker : workers_) {
    if (error.empty()) error = worker->error;
  }
  const World* const world = plan_.options.world.get();
  if (world != nullptr && world->processes() > 1) {
    crew_.run([&](RankSeat& seat) {
      if (seat.leaders == nullptr) return;
      for (const std::string& text : gather_strings(*seat.leaders, error)) {
        if (error.empty()) error = text;
      }
    });
  }
  workers_.clear();
  phase_ = Phase::kNone;
  fail(ErrorCode::kIo, "the checkpoint of step ", record_.step, " was not written: ", error);
}

/// By the first process, once all files of all processes are durable.
void CheckpointSaver::start_publishing() {
  std::vector<std::string> hashes{hashes_of(files_)};
  const World* const world = plan_.options.world.get();
  if (world != nullptr && world->processes() > 1) {
    crew_.run([&](RankSeat& seat) {
      if (seat.leaders == nullptr) return;
      hashes = gather_strings(*seat.leaders, hashes_of(files_));
    });
  }
  workers_.clear();
  phase_ = Phase::kPublishing;
  if (!is_first()) return;
  std::string all;
  for (const std::string& text : hashes) all += text;
  manifest_.files.clear();
  const StateOptions state = plan_options(plan_.options).state();
  std::size_t place = 0;
  for (int rank = 0; rank < plan_.options.ranks; ++rank) {
    SavedFile file = describe_file(manifest_.parameters, plan_.layout, state, rank);
    const std::size_t bytes = file.chunk_hashes.size() * sizeof(std::uint64_t);
    std::memcpy(file.chunk_hashes.data(), all.data() + place, bytes);
    place += bytes;
    record_.bytes += file.bytes;
    manifest_.files.push_back(std::move(file));
  }
  start("a checkpoint's manifest", [this] {
    record_.path = publish_checkpoint(storage_, folder_, manifest_);
    if (const std::int64_t keep = plan_.options.checkpoints.total_limit; keep > 0) {
      prune_checkpoints(storage_, folder_, record_.step, keep);
    }
  });
}

std::optional<SaveRecord> CheckpointSaver::poll() {
  if (phase_ == Phase::kNone) return std::nullopt;
  const Part part = part_of_all();
  if (part == Part::kPending) return std::nullopt;
  join();
  if (part == Part::kFailed) give_up();
  if (phase_ == Phase::kWriting) {
    start_publishing();
    return std::nullopt;
  }
  workers_.clear();
  phase_ = Phase::kNone;
  record_.seconds = Seconds(Clock::now() - began_).count();
  return record_;
}

SaveRecord CheckpointSaver::finish() {
  require(phase_ != Phase::kNone, ErrorCode::kInvalidArgument, "no checkpoint is being written");
  for (;;) {
    join();
    if (auto record = poll()) return *record;
  }
}

}  // namespace tessera
