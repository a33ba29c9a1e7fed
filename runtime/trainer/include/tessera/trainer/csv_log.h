#pragma once

#include <string>

#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer.h"

namespace tessera {

/// A run as a table: a heading, then a row per step, for spreadsheets. Numbers round-trip; nan and
/// infinity are spelt so. Every row is flushed before the call returns. Throws Error{kIo}.
class CsvLog {
 public:
  /// Creates or empties the file, and makes its folder.
  explicit CsvLog(std::string path);
  /// `mfu`: see model_flops_utilisation.
  void step(const StepRecord& record, double mfu);

 private:
  OutputFile file_;
};

}  // namespace tessera
