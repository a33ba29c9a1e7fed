#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "speed.h"
#include "terminal.h"
#include "tessera/trainer/trainer.h"

namespace tessera::cli {

/// Shows a training run on stderr: one line that rewrites itself in a terminal (under `tessera
/// launch`, in the launcher's: see kBarTerminal), else a plain line for the first step, the last,
/// and every tenth of the way (verbose: for every step, always).
class Progress {
 public:
  Progress(std::int64_t steps, bool quiet, bool verbose);
  /// Ends the line, so that what comes next starts on its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const StepRecord& record);
  /// On a line of its own.
  void note(const std::string& text);
  void evaluation(const EvaluationRecord& record);
  void checkpoint(const SaveRecord& record);

 private:
  void draw(const StepRecord& record);
  void print(const StepRecord& record);
  void end_line();

  std::int64_t steps_;
  bool quiet_;
  bool verbose_;
  std::FILE* bar_;  ///< where the line that rewrites itself is drawn
  Terminal terminal_;
  std::chrono::steady_clock::time_point last_drawn_{};
  std::int64_t shown_ = 0;  ///< steps so far, of this run
  double seconds_ = 0.0;    ///< of all but the first
  SpeedRates rates_{};      ///< smoothed
  bool line_open_ = false;
};

}  // namespace tessera::cli
