#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapped_file.h"
#include "tessera/model/dataset.h"

namespace tessera::data {

/// Examples to fine-tune on, of a file with one JSON object in each line (JSONL), as tokens in
/// memory. Of {"prompt": ..., "completion": ...} the completion's tokens are targets, of {"text":
/// ...} all, of {"messages": [...]} those that assistants have written: as TRL's SFTTrainer takes
/// them. Texts end with the end-of-text token, chats with what their template ends with. Immutable;
/// safe to read from any thread.
class ExampleStore {
 public:
  /// Throws Error{kNotFound, kIo, kConfig} that names file and line, also if no example has a
  /// target within `options.sequence_length`.
  explicit ExampleStore(const DatasetOptions& options);

  /// The number of examples, or with DatasetOptions::packing of the samples that they are packed
  /// into.
  std::int64_t samples() const {
    return packed_.empty() ? examples() : static_cast<std::int64_t>(packed_.size());
  }
  std::int64_t examples() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  /// The tokens of all examples, as far as they fit a sample.
  std::int64_t tokens() const { return static_cast<std::int64_t>(tokens_.size()); }
  ExampleCounts counts(std::int64_t length) const;
  const std::string& path() const { return file_.path(); }
  const std::vector<std::string>& notes() const { return notes_; }
  std::vector<NamedText> identity() const;

  /// Writes a sample to inputs (L) and targets (L): behind its end inputs repeat the last token,
  /// and targets are -100, as those of prompts. `starts` (L), if it is not empty: where the
  /// document of each place begins, an example or what is behind the last. Returns how many targets
  /// count. Throws Error{kConfig} on a token that is not below `vocab_size`.
  std::int64_t fill(std::int64_t sample, std::int64_t vocab_size, std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets, std::span<std::int32_t> starts = {}) const;
  /// Throws Error{kConfig} on the first token that is not below `vocab_size`.
  void check_vocabulary(std::int64_t vocab_size) const;

 private:
  struct Reading;
  void add_line(std::string_view line, std::int64_t number, Reading& reading);
  struct Example;
  Example read_text(const nlohmann::ordered_json& line, Reading& reading) const;
  Example read_chat(const nlohmann::ordered_json& line, Reading& reading) const;
  void add_example(Example example, Reading& reading);
  std::vector<std::vector<std::size_t>> packed(std::int64_t length) const;
  std::size_t places_of(std::size_t example) const;
  std::int64_t fill_example(std::size_t example, std::int64_t vocab_size,
                            std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  void tell(const Reading& reading, std::int64_t length);

  MappedFile file_;
  std::vector<std::int32_t> tokens_;  ///< one example after the other
  std::vector<std::int64_t> starts_;  ///< of each in tokens_, and the end
  /// Tokens that are targets, [first, second) from the beginning of each example.
  std::vector<std::pair<std::int32_t, std::int32_t>> targets_;
  std::vector<std::int64_t> target_starts_;       ///< of each example in targets_, and the end
  std::vector<std::vector<std::size_t>> packed_;  ///< examples of each sample; empty: one each
  std::vector<std::int64_t> lines_;               ///< of each in the file, from 1
  std::vector<std::string> notes_;
  std::string tokenizer_identity_, template_identity_;
  std::optional<std::int32_t> end_token_;  ///< that was put behind examples
};

/// Whether a path names such a file: "*.jsonl".
bool is_example_file(std::string_view path);

}  // namespace tessera::data
