#pragma once

#include <fstream>
#include <string>

#include "tessera/trainer/trainer.h"

namespace tessera {

/// A run as a table: a heading, then a row per step, for spreadsheets. Numbers round-trip; nan and
/// infinity are spelt so. Every row is flushed before the call returns. Throws Error{kIo}.
class CsvLog {
 public:
  /// Creates or empties the file, and creates its folder.
  explicit CsvLog(std::string path);
  /// `mfu`: see model_flops_utilisation.
  void step(const StepRecord& record, double mfu);

 private:
  void write(const std::string& row);

  std::string path_;
  std::ofstream file_;
};

}  // namespace tessera
