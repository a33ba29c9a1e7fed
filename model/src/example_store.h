#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mapped_file.h"
#include "tessera/model/dataset.h"

namespace tessera::data {

/// Examples to fine-tune on, of a file with one JSON object in each line (JSONL), as tokens in
/// memory. Of {"prompt": ..., "completion": ...} the completion's tokens are targets, of {"text":
/// ...} all: as TRL's SFTTrainer takes them. Both end with the end-of-text token. Immutable; safe
/// to read from any thread.
class ExampleStore {
 public:
  /// Throws Error{kNotFound, kIo, kConfig} that names file and line, also if no example has a
  /// target within `options.sequence_length`.
  explicit ExampleStore(const DatasetOptions& options);

  std::int64_t examples() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  /// Of all examples, as far as they fit a sample.
  std::int64_t tokens() const { return static_cast<std::int64_t>(tokens_.size()); }
  const std::string& path() const { return file_.path(); }
  const std::vector<std::string>& notes() const { return notes_; }
  std::vector<NamedText> identity() const;

  /// Writes an example to inputs (L) and targets (L): behind its end inputs repeat the last token,
  /// and targets are -100, as those of prompts. Returns how many targets count. Throws
  /// Error{kConfig} on a token that is not below `vocab_size`.
  std::int64_t fill(std::int64_t example, std::int64_t vocab_size, std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets) const;
  /// Throws Error{kConfig} on the first token that is not below `vocab_size`.
  void check_vocabulary(std::int64_t vocab_size) const;

 private:
  struct Reading;
  void add_line(std::string_view line, std::int64_t number, Reading& reading);
  void add_example(std::vector<std::int32_t> tokens, std::size_t prompt, Reading& reading);
  void tell(const Reading& reading, std::int64_t length);

  MappedFile file_;
  std::vector<std::int32_t> tokens_;   ///< one example after the other
  std::vector<std::int64_t> starts_;   ///< of each in tokens_, and the end
  std::vector<std::int64_t> prompts_;  ///< tokens of each that are no targets
  std::vector<std::int64_t> lines_;    ///< of each in the file, from 1
  std::vector<std::string> notes_;
  std::string tokenizer_identity_;
};

/// Whether a path names such a file: "*.jsonl".
bool is_example_file(std::string_view path);

}  // namespace tessera::data
