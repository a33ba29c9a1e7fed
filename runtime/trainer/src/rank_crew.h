#pragma once

#include <sys/resource.h>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/checkpoint/state_file.h"
#include "tessera/core/memory.h"
#include "tessera/core/start_thread.h"
#include "tessera/lab/dump_writer.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/groups.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {

/// How far a part of a save is.
enum class SavePart : char { kPending, kDone, kFailed };

/// A part of a save on a thread of its own, for which its destructor waits.
class SaveTask {
 public:
  template <typename Body>
  SaveTask(const char* name, Body body)
      : thread_(start_thread(name, [this, body = std::move(body)] {
          setpriority(PRIO_PROCESS, 0, 10);  // of this thread: the ranks' work goes first
          try {
            body();
            part_ = SavePart::kDone;
          } catch (const std::exception& error) {
            error_ = error.what();
            part_ = SavePart::kFailed;
          }
        })) {}
  ~SaveTask() { wait(); }
  SaveTask(const SaveTask&) = delete;
  SaveTask& operator=(const SaveTask&) = delete;

  SavePart part() const { return part_; }
  const std::string& error() const { return error_; }  ///< once it has failed
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::string error_;
  std::atomic<SavePart> part_ = SavePart::kPending;
  std::thread thread_;  ///< last: it uses the others
};

/// A rank's part of a save. It lives with the rank, whose host memory the task reads.
struct RankSave {
  SavedFile file;
  std::unique_ptr<SaveTask> task;  ///< writes the file
};

/// One rank at work: what its thread owns. Members are destroyed in reverse order.
struct RankSeat {
  RankSeat(const TrainingPlan& plan, const std::vector<std::vector<Program>>& programs, int rank,
           ProcessGroup& world, FlightRecorder& recorder, const std::function<void()>& before_task);

  int rank;
  std::unique_ptr<Device> device;
  Memory memory;
  RankGroups groups;
  /// The ranks that speak for their processes; null where there is one process, and on the others.
  std::unique_ptr<ProcessGroup> leaders;
  TrainingState state;
  Executor executor;
  std::unique_ptr<RankSave> save;  ///< null until the first checkpoint
};

/// The ranks of this process: threads that wait for work, each at its seat.
class RankCrew {
 public:
  /// Starts them; returns when all have taken their seats. Rethrows what kept one from it.
  /// `dumps` keeps what they do.
  RankCrew(const TrainingPlan& plan, std::vector<std::vector<Program>> programs, DumpWriter& dumps);
  /// Ends them.
  ~RankCrew();
  RankCrew(const RankCrew&) = delete;
  RankCrew& operator=(const RankCrew&) = delete;

  using Job = std::function<void(RankSeat&)>;
  /// Every rank does `job`; returns when all have. If one fails, the others are stopped and the
  /// cause comes out of here; see launch_ranks. No job may follow.
  void run(const Job& job);
  /// Makes the next action of each rank fail, and whatever those of other processes wait for.
  void abort(std::string_view reason) noexcept;
  /// The first rank of this process, which speaks for it.
  int first_rank() const { return first_rank_; }
  /// By pipeline rank.
  const std::vector<std::vector<Program>>& programs() const { return programs_; }

 private:
  void serve(int rank, ProcessGroup& world);
  void fail_if_aborted();
  void note_failure(int rank);
  void wait_until_done();

  const TrainingPlan& plan_;
  const std::vector<std::vector<Program>> programs_;
  DumpWriter& dumps_;
  const int first_rank_;
  std::size_t local_ranks_ = 0;
  std::vector<std::unique_ptr<ProcessGroup>> made_;  ///< groups, unless the world's own are used
  const std::vector<std::unique_ptr<ProcessGroup>>* groups_ = nullptr;

  std::mutex mutex_;
  std::condition_variable changed_;
  const Job* job_ = nullptr;
  std::int64_t number_ = 0;  ///< of the job
  std::size_t done_ = 0;     ///< ranks that have done it
  bool failed_ = false;      ///< a rank has
  bool ending_ = false;
  bool ended_ = false;  ///< all threads have
  std::exception_ptr failure_;
  std::string reason_;  ///< of abort()
  std::atomic<bool> aborted_ = false;
  std::thread driver_;
};

}  // namespace tessera
