#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include "output/run_report.h"
#include "output/terminal.h"
#include "run/work_report.h"
#include "tessera/core/host_work.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// Shows a training run on stderr: one line that rewrites itself in a terminal (under `tessera
/// launch`, in the launcher's: see kBarTerminal), else a plain line for the first step, the last,
/// and every tenth of the way (verbose: for every step, always).
class Progress {
 public:
  /// `patience`: see TrainerOptions.
  Progress(std::int64_t steps, std::int64_t patience, bool quiet, bool verbose);
  /// Ends the line, so that what comes next starts on its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Safe from any thread.
  void show(const StepRecord& record);
  /// On a line of its own.
  void note(const std::string& text);
  void evaluation(const EvaluationRecord& record);
  void checkpoint(const SaveRecord& record);
  /// Shows the work of the host outside of steps; see WorkReport.
  using Clock = WorkReport::Clock;
  void work(const HostWork& work, Clock::time_point now);

 private:
  void draw(const StepRecord& record);
  void print(const StepRecord& record);
  void end_line();
  void draw_work(const WorkReport::Shown& shown);

  std::int64_t steps_, patience_;
  bool quiet_;
  bool verbose_;
  std::FILE* bar_;  ///< where the line that rewrites itself is drawn
  Terminal terminal_;
  std::chrono::steady_clock::time_point last_drawn_{};
  std::int64_t shown_ = 0;  ///< steps so far, of this run
  double seconds_ = 0.0;    ///< of all but the first
  SpeedRates rates_{};      ///< smoothed
  bool line_open_ = false;
  WorkReport work_;
  bool work_bar_open_ = false;
  std::mutex mutex_;  ///< of all of it
};

}  // namespace tessera::cli
