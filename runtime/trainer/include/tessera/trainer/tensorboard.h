#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer.h"

namespace tessera {

/// The event files in a folder, whoever wrote them. TensorBoard shows those of one folder as one
/// run.
std::vector<std::string> event_files(const std::string& folder);

/// Whether the event file is one of ours: what else is in a folder is not for us to remove.
bool is_our_event_file(const std::string& path);

/// Writes one event file that TensorBoard reads. Every call is flushed before it returns.
///
/// The format: records of TFRecord (length, masked CRC-32C of the length, data, masked CRC-32C of
/// the data), each an Event protocol buffer, as tensorflow/core/util/event.proto and
/// framework/summary.proto define them.
class TensorBoardLog {
 public:
  /// Makes the folder if need be, and in it a file with a name of its own. Throws Error{kIo}.
  explicit TensorBoardLog(const std::string& folder);

  /// Values of one step, by tag ("train/loss").
  void scalars(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& values);
  /// "eval/loss" and "eval/perplexity".
  void evaluation(const EvaluationRecord& record);
  /// A text that TensorBoard shows as Markdown.
  void text(std::string_view tag, std::string_view markdown);

  const std::string& path() const { return file_.path(); }

 private:
  void write_event(std::int64_t step, std::string_view message);
  void write_record(std::string_view data);

  OutputFile file_;
};

}  // namespace tessera
