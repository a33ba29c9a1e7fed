#include "checkpoint_saver.h"

#include <algorithm>
#include <cstring>

#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"
#include "tessera/trainer/gather.h"

namespace tessera {
namespace {

using Seconds = std::chrono::duration<double>;

/// The hashes of its ranks' files, which only this process knows.
std::string hashes_of(const std::vector<RankSave*>& saves) {
  std::string bytes;
  for (const RankSave* save : saves) {
    const auto& hashes = save->file.chunk_hashes;
    bytes.append(reinterpret_cast<const char*>(hashes.data()),
                 hashes.size() * sizeof(std::uint64_t));
  }
  return bytes;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const TrainingPlan& plan, Manifest run, RankCrew& crew,
                                 std::size_t program, Storage& storage)
    : plan_(plan), manifest_(std::move(run)), crew_(crew), program_(program), storage_(storage) {
  const World* const world = plan.options.world.get();
  const int local = world == nullptr ? plan.options.ranks : world->local_ranks();
  saves_.resize(static_cast<std::size_t>(local));
}

void CheckpointSaver::prepare() {
  crew_.run([this](RankSeat& seat) {
    seat.executor.prepare_snapshot(program_);
    if (seat.save == nullptr) seat.save = std::make_unique<RankSave>();
    saves_[static_cast<std::size_t>(seat.rank - crew_.first_rank())] = seat.save.get();
  });
}

void CheckpointSaver::begin(const std::string& folder, std::int64_t step, std::int64_t samples,
                            const std::optional<LossScalerState>& loss_scaler,
                            const std::optional<BestEvaluation>& best,
                            std::vector<Fp8History> fp8_histories) {
  require(phase_ == Phase::kNone, ErrorCode::kInvalidArgument, "a checkpoint is being written");
  prepare();
  began_ = Clock::now();
  folder_ = folder;
  record_ = {.step = step, .path = {}, .bytes = 0};
  manifest_.step = step;
  manifest_.samples = samples;
  manifest_.loss_scaler = loss_scaler;
  manifest_.best = best;
  manifest_.fp8_histories = std::move(fp8_histories);
  phase_ = Phase::kBegun;
  // The first process makes the folder, before any other writes to it.
  if (is_first()) {
    task_ = std::make_unique<SaveTask>("a checkpoint's folder", [this] {
      begin_checkpoint(storage_, folder_, record_.step, plan_.options.checkpoints.companions);
    });
    task_->wait();
  }
  if (part_of_all() == SavePart::kFailed) give_up();
  task_.reset();
}

void CheckpointSaver::copy() {
  const Clock::time_point begin = Clock::now();
  crew_.run([this](RankSeat& seat) { seat.executor.take_snapshot(program_, record_.step); });
  record_.waited_seconds = Seconds(Clock::now() - begin).count();
  write();
}

void CheckpointSaver::write() {
  phase_ = Phase::kWriting;
  crew_.run([this](RankSeat& seat) {
    seat.save->task = std::make_unique<SaveTask>(
        "a checkpoint's file", [this, &seat, path = unfinished_path(folder_, record_.step)] {
          seat.save->file = write_state(
              manifest_.parameters, plan_.layout, seat.state.options(), seat.rank,
              [&](const std::string& name) { return seat.executor.snapshot(program_, name); },
              storage_, path);
        });
  });
}

std::vector<SaveTask*> CheckpointSaver::tasks() const {
  std::vector<SaveTask*> all;
  for (const RankSave* save : saves_) {
    if (save->task != nullptr) all.push_back(save->task.get());
  }
  if (task_ != nullptr) all.push_back(task_.get());
  return all;
}

/// The value of every process.
template <typename T>
std::vector<T> CheckpointSaver::gather_processes(const T& own) {
  std::vector<T> all{own};
  const World* const world = plan_.options.world.get();
  if (world == nullptr || world->processes() == 1) return all;
  crew_.run([&](RankSeat& seat) {
    if (seat.leaders != nullptr) all = gather(*seat.leaders, own);
  });
  return all;
}

/// Failed once no process has work in flight and one has failed.
SavePart CheckpointSaver::part_of_all() {
  std::vector<SavePart> parts;
  for (const SaveTask* task : tasks()) parts.push_back(task->part());
  const auto together = [&] {
    const auto any = [&](SavePart part) { return std::ranges::find(parts, part) != parts.end(); };
    return any(SavePart::kPending)  ? SavePart::kPending
           : any(SavePart::kFailed) ? SavePart::kFailed
                                    : SavePart::kDone;
  };
  parts = gather_processes(together());
  return together();
}

void CheckpointSaver::wait() {
  for (SaveTask* task : tasks()) task->wait();
}

/// All processes are here.
void CheckpointSaver::give_up() {
  wait();
  std::string error;
  for (const SaveTask* task : tasks()) {
    if (error.empty()) error = task->error();
  }
  for (const std::string& text : gather_processes(error)) {
    if (error.empty()) error = text;
  }
  forget_tasks();
  phase_ = Phase::kNone;
  fail(ErrorCode::kIo, "the checkpoint of step ", record_.step, " was not written: ", error);
}

void CheckpointSaver::forget_tasks() {
  for (RankSave* save : saves_) save->task.reset();
  task_.reset();
}

/// By the first process, once all files of all processes are durable.
void CheckpointSaver::start_publishing() {
  const std::vector<std::string> hashes = gather_processes(hashes_of(saves_));
  forget_tasks();
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
  task_ = std::make_unique<SaveTask>("a checkpoint's manifest", [this] {
    const CheckpointOptions& options = plan_.options.checkpoints;
    record_.path = publish_checkpoint(storage_, folder_, manifest_, options.save_best);
    try {
      prune_checkpoints(storage_, folder_, record_.step, options.total_limit);
    } catch (const std::exception& error) {
      record_.note = concat("the checkpoint of step ", record_.step,
                            " is saved; an old one could not be removed: ", error.what());
    }
  });
}

std::optional<SaveRecord> CheckpointSaver::poll() {
  if (phase_ == Phase::kNone || phase_ == Phase::kBegun) return std::nullopt;
  const SavePart part = part_of_all();
  if (part == SavePart::kPending) return std::nullopt;
  wait();
  if (part == SavePart::kFailed) give_up();
  if (phase_ == Phase::kWriting) {
    start_publishing();
    return std::nullopt;
  }
  forget_tasks();
  phase_ = Phase::kNone;
  record_.seconds = Seconds(Clock::now() - began_).count();
  return record_;
}

SaveRecord CheckpointSaver::finish() {
  require(phase_ != Phase::kNone, ErrorCode::kInvalidArgument, "no checkpoint is being written");
  if (phase_ == Phase::kBegun) copy();
  for (;;) {
    wait();
    if (auto record = poll()) return *record;
  }
}

}  // namespace tessera
