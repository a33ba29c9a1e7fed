#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/dataset.h"

namespace tessera::data {

/// An example as tokens, as far as they fit a sample.
struct Example {
  std::vector<std::int32_t> tokens{};
  /// Tokens that are targets, or may be hidden, [first, second); none: no target fits.
  std::vector<std::pair<std::int32_t, std::int32_t>> targets{};
  bool truncated = false;  ///< its end did not fit
  bool across = false;     ///< a token crosses from prompt to completion
};

/// Makes tokens of an object: of {"prompt": ..., "completion": ...} the completion's are targets,
/// of {"text": ...} all, of {"messages": [...]} those that assistants have written: as TRL's
/// SFTTrainer takes them. With DatasetOptions::labels the label is the one target, as if it were
/// the token behind the text; with DatasetOptions::masking all of a text that is not special may be
/// hidden. Texts end with the end-of-text token, chats with what their template
/// ends with. Immutable; safe to use from any thread.
class ExampleReader {
 public:
  /// For examples of the kind that `first` is. Throws Error{kConfig} if it is of none, and whatever
  /// opening the chat template throws, if there are messages.
  ExampleReader(const DatasetOptions& options, const nlohmann::ordered_json& first);

  /// Throws Error{kConfig} whose text follows the example's place: "has no \"text\"...".
  Example read(const nlohmann::ordered_json& object) const;

  /// Put behind each example that does not end with it.
  std::optional<std::int32_t> end_token() const {
    return is_chat() || is_labelled() || is_masked() ? std::nullopt : end_;
  }
  /// The hashes of tokenizer and chat template, as far as they decide what tokens examples have.
  std::vector<NamedText> identity() const;

 private:
  bool is_chat() const;
  bool is_labelled() const { return !options_.labels.empty(); }
  bool is_masked() const { return options_.masking.has_value(); }
  Example read_text(const nlohmann::ordered_json& object) const;
  Example read_labelled(const nlohmann::ordered_json& object) const;
  Example read_masked(const nlohmann::ordered_json& object) const;
  Example read_whole(const std::string& text) const;
  Example read_chat(const nlohmann::ordered_json& object) const;
  Example cut(Example example) const;

  DatasetOptions options_;
  std::string kind_;
  std::optional<std::int32_t> end_;
  std::optional<ChatTemplate> chat_template_;
};

}  // namespace tessera::data
