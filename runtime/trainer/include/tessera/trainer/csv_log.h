#pragma once

#include <optional>
#include <string>

#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer.h"

namespace tessera {

/// Refuses a file that rows cannot be added to, because it holds something with other columns.
/// Throws Error{kConfig} that names the remedy, and Error{kIo}.
void check_csv_columns(const std::string& path, bool loss_scaling = false);

/// A run as a table: a heading, then a row per step or evaluation, for spreadsheets and pandas. A
/// row leaves the cells of the other kind empty: rows of evaluations have the step and columns
/// that begin with "eval_". With loss scaling there are two more columns: loss_scale, and skipped,
/// 1 for a step that was. Numbers round-trip; nan and infinity are spelt so. Every row is flushed
/// before the call returns. Throws Error{kIo}.
class CsvLog {
 public:
  /// Makes the file and its folder. Earlier content is dealt with as `existing` says; rows are
  /// added to no table with other columns: Error{kConfig}.
  explicit CsvLog(std::string path, Existing existing = Existing::kReplace,
                  bool loss_scaling = false);
  /// `mfu`: see model_flops_utilisation. An empty cell where there is none.
  void step(const StepRecord& record, std::optional<double> mfu);
  void evaluation(const EvaluationRecord& record);

 private:
  OutputFile file_;
  bool loss_scaling_;
};

}  // namespace tessera
