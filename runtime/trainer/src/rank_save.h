#pragma once

#include <sys/resource.h>

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "tessera/checkpoint/state_file.h"
#include "tessera/core/start_thread.h"

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

}  // namespace tessera
