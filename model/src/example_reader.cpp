#include "example_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "example_labels.h"
#include "tessera/core/error.h"

namespace tessera::data {
namespace {

using nlohmann::ordered_json;

/// Text as tokens, with what a tokenizer puts around a text.
std::vector<std::int32_t> encode(const std::string& text, const std::optional<Tokenizer>& tokenizer,
                                 bool special_tokens) {
  if (tokenizer) return tokenizer->encode(text, special_tokens);
  std::vector<std::int32_t> bytes;
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

constexpr const char* kPrompts = "prompts";
constexpr const char* kTexts = "texts";
constexpr const char* kMessages = "messages";
constexpr const char* kMessagePrompts = "prompts of messages";

/// The kind of an example. Throws Error{kConfig} if it is not known.
std::string kind_of(const ordered_json& object) {
  require(object.is_object(), ErrorCode::kConfig, "is no JSON object");
  if (object.contains("messages")) return kMessages;
  if (object.contains("prompt") && object.contains("completion")) {
    return object.at("prompt").is_array() ? kMessagePrompts : kPrompts;
  }
  require(object.contains("text"), ErrorCode::kConfig,
          "has neither \"prompt\" and \"completion\" nor \"text\" nor \"messages\"");
  return kTexts;
}

void check_masked(const std::string& kind) {
  require(kind == kTexts, ErrorCode::kConfig, "has ", kind,
          ", and tokens are hidden in texts; write {\"text\": \"...\"}");
}

void check_messages(const ordered_json& messages, const char* key) {
  const auto is_message = [](const ordered_json& message) {
    return message.is_object() && message.contains("role") && message.at("role").is_string();
  };
  require(messages.is_array() && !messages.empty() && std::ranges::all_of(messages, is_message),
          ErrorCode::kConfig, "has \"", key,
          "\" that are no messages; write [{\"role\": \"user\", \"content\": \"...\"}, ...]");
}

}  // namespace

ExampleReader::ExampleReader(const DatasetOptions& options, const ordered_json& first)
    : options_(options),
      kind_(options.labels.empty() ? kind_of(first) : kTexts),
      end_(options.end_token) {
  if (options_.tokenizer && !end_) end_ = options_.tokenizer->end_of_text();
  if (is_masked()) check_masked(kind_);
  if (!is_chat()) return;
  require(options_.chat_template.has_value(), ErrorCode::kConfig,
          "has messages, which need a chat template; give `chat_template` FILE, or write texts as "
          "\"prompt\" and \"completion\"");
  chat_template_.emplace(*options_.chat_template);
}

bool ExampleReader::is_chat() const { return kind_ == kMessages || kind_ == kMessagePrompts; }

std::vector<NamedText> ExampleReader::identity() const {
  std::vector<NamedText> all;
  if (is_labelled()) all.push_back({"labels", nlohmann::json(options_.labels).dump()});
  if (chat_template_) all.push_back({"chat template", "hash " + chat_template_->identity()});
  if (options_.tokenizer) {
    all.push_back({"tokenizer", "hash " + options_.tokenizer->identity()});
  }
  return all;
}

Example ExampleReader::read(const ordered_json& object) const {
  if (is_labelled()) return read_labelled(object);
  if (is_masked()) return read_masked(object);
  const std::string kind = kind_of(object);
  require(kind == kind_, ErrorCode::kConfig, "has ", kind, ", and those before it have ", kind_);
  return cut(is_chat() ? read_chat(object) : read_text(object));
}

Example ExampleReader::read_text(const ordered_json& object) const {
  const auto text_of = [&](const char* key) -> std::string {
    require(object.at(key).is_string(), ErrorCode::kConfig, "has a \"", key, "\" that is no text");
    return object.at(key).get<std::string>();
  };
  const bool has_prompt = kind_ == kPrompts;
  const std::string prompt = has_prompt ? text_of("prompt") : "";
  Example example;
  std::size_t prompt_tokens = 0;
  const std::string text = has_prompt ? prompt + text_of("completion") : text_of("text");
  try {
    example.tokens = encode(text, options_.tokenizer, true);
    if (has_prompt) {
      const std::vector<std::int32_t> begin = encode(prompt, options_.tokenizer, true);
      prompt_tokens = begin.size();
      const bool agrees = begin.size() <= example.tokens.size() &&
                          std::equal(begin.begin(), begin.end(), example.tokens.begin());
      example.across = !agrees;
    }
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "cannot be tokenised: ", error.what());
  }
  if (end_ && (example.tokens.empty() || example.tokens.back() != *end_)) {
    example.tokens.push_back(*end_);
  }
  example.targets.emplace_back(prompt_tokens, example.tokens.size());
  return example;
}

/// A text's tokens with what the tokenizer puts around them; of a longer one the first that fit a
/// sample, and what is behind a text.
Example ExampleReader::read_whole(const std::string& text) const {
  Example example;
  std::size_t behind = 0;  // tokens that the tokenizer puts behind a text
  try {
    example.tokens = encode(text, options_.tokenizer, true);
    const auto most = static_cast<std::size_t>(options_.sequence_length);
    example.truncated = example.tokens.size() > most;
    if (example.truncated && options_.tokenizer) {
      const std::vector<std::int32_t> own = options_.tokenizer->encode(text, false);
      const auto found = std::ranges::search(example.tokens, own);
      if (!found.empty()) behind = static_cast<std::size_t>(example.tokens.end() - found.end());
      behind = std::min(behind, most);
    }
    if (example.truncated) {
      const auto from = example.tokens.begin();
      example.tokens.erase(from + static_cast<std::ptrdiff_t>(most - behind),
                           example.tokens.end() - static_cast<std::ptrdiff_t>(behind));
    }
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "cannot be tokenised: ", error.what());
  }
  return example;
}

/// The label follows the text's tokens, as a target that the last of them predicts.
Example ExampleReader::read_labelled(const ordered_json& object) const {
  const std::int32_t label = class_of(object, options_.labels);
  Example example = read_whole(labelled_text(object));
  const auto size = static_cast<std::int32_t>(example.tokens.size());
  example.tokens.push_back(label);
  if (size > 0) example.targets.emplace_back(size, size + 1);
  return example;
}

/// The last token, which is written twice, stands where others have what is a target alone.
Example ExampleReader::read_masked(const ordered_json& object) const {
  check_masked(kind_of(object));
  require(object.at("text").is_string(), ErrorCode::kConfig, "has a \"text\" that is no text");
  Example example = read_whole(object.at("text").get<std::string>());
  const auto size = static_cast<std::int32_t>(example.tokens.size());
  for (std::int32_t i = 0; i < size; ++i) {
    if (!options_.masking->may_hide(example.tokens[static_cast<std::size_t>(i)])) continue;
    if (example.targets.empty() || example.targets.back().second != i) {
      example.targets.emplace_back(i, i);
    }
    example.targets.back().second = i + 1;
  }
  if (size > 0) example.tokens.push_back(example.tokens.back());
  return example;
}

/// A token is a target if any of its text is what an assistant has written.
Example ExampleReader::read_chat(const ordered_json& object) const {
  const auto messages_of = [&](const char* key) -> const ordered_json& {
    check_messages(object.at(key), key);
    return object.at(key);
  };
  const ordered_json tools = object.contains("tools") ? object.at("tools") : ordered_json(nullptr);
  const bool is_whole = kind_ == kMessages;
  const ordered_json& messages = messages_of(is_whole ? "messages" : "prompt");
  ChatTemplate::Chat whole;
  try {
    whole = is_whole ? chat_template_->chat(messages, tools)
                     : chat_template_->completed(messages, messages_of("completion"), tools);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "cannot be rendered: ", error.what());
  }
  Tokenizer::Placed placed;
  if (options_.tokenizer) {
    placed = options_.tokenizer->encode_with_ends(whole.text);
  } else {
    placed.tokens = encode(whole.text, std::nullopt, false);
    for (std::size_t i = 1; i <= placed.tokens.size(); ++i) placed.ends.push_back(i);
  }
  Example example{.tokens = std::move(placed.tokens)};
  for (const auto& [begin, end] : whole.written) {
    const auto first = std::ranges::upper_bound(placed.ends, begin) - placed.ends.begin();
    auto last = std::ranges::lower_bound(placed.ends, end) - placed.ends.begin();
    // The token that holds the span's last byte, if that is not where another ends.
    if (end > begin && last < std::ssize(placed.ends)) ++last;
    if (end > begin) example.targets.emplace_back(first, last);
  }
  return example;
}

/// Cuts off what does not fit a sample, which has one token more than it has places.
Example ExampleReader::cut(Example example) const {
  const auto most = static_cast<std::size_t>(options_.sequence_length) + 1;
  example.truncated = example.tokens.size() > most;
  if (example.truncated) example.tokens.resize(most);
  const auto size = static_cast<std::int32_t>(example.tokens.size());
  for (auto& [first, second] : example.targets) {
    first = std::max(first, 1);  // nothing predicts the first token
    second = std::min(second, size);
  }
  std::erase_if(example.targets, [](const auto& span) { return span.first >= span.second; });
  return example;
}

}  // namespace tessera::data
