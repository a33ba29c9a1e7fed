#include "example_store.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "file_identity.h"
#include "tessera/core/error.h"

namespace tessera::data {
namespace {

using nlohmann::ordered_json;

constexpr std::int32_t kIgnored = -100;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

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

/// The kind of a line; "" if it is not known.
std::string kind_of(const ordered_json& line) {
  if (line.contains("messages")) return kMessages;
  if (line.contains("prompt") && line.contains("completion")) {
    return line.at("prompt").is_array() ? kMessagePrompts : kPrompts;
  }
  return line.contains("text") ? kTexts : "";
}

void check_messages(const ordered_json& messages, const char* key) {
  const auto is_message = [](const ordered_json& message) {
    return message.is_object() && message.contains("role") && message.at("role").is_string();
  };
  require(messages.is_array() && !messages.empty() && std::ranges::all_of(messages, is_message),
          ErrorCode::kConfig, "has \"", key,
          "\" that are no messages; write [{\"role\": \"user\", \"content\": \"...\"}, ...]");
}

std::string count_of(std::int64_t count, const char* what) {
  return concat(count, count == 1 ? " example " : " examples ", what);
}

}  // namespace

/// The example of one line.
struct ExampleStore::Example {
  std::vector<std::int32_t> tokens{};
  std::vector<std::pair<std::size_t, std::size_t>> targets{};  ///< tokens [first, second)
};

/// The state of reading that lines share, and the findings on the way.
struct ExampleStore::Reading {
  const DatasetOptions& options;
  std::optional<std::int32_t> end{};
  std::string kind{};  ///< of the first line
  std::optional<ChatTemplate> chat_template{};
  std::int64_t line = 0;
  std::int64_t truncated = 0;  ///< whose end did not fit
  std::int64_t without = 0;    ///< left out: no target fits
  std::int64_t across = 0;     ///< whose tokens cross from prompt to completion
};

bool is_example_file(std::string_view path) { return path.ends_with(".jsonl"); }

ExampleStore::ExampleStore(const DatasetOptions& options)
    : file_(options.path), starts_{0}, target_starts_{0} {
  const std::span<const std::byte> bytes = file_.bytes();
  require(bytes.size() <= kMostBytes, ErrorCode::kConfig, "'", options.path, "' has ", bytes.size(),
          " bytes, and examples of at most ", kMostBytes, " are kept in memory; split the file");
  require(options.tokenizer || options.no_text.empty(), ErrorCode::kConfig, "'", options.path,
          "' is text: ", options.no_text);
  Reading reading{.options = options, .end = options.end_token};
  if (options.tokenizer) {
    tokenizer_identity_ = options.tokenizer->identity();
    if (!reading.end) reading.end = options.tokenizer->end_of_text();
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      add_line(line, number, reading);
    }
  }
  require(
      examples() > 0, ErrorCode::kConfig, "'", options.path, "' has ",
      reading.without == 0 ? "no examples" : "no example with a target within the sequence length",
      "; each line must be an object such as {\"prompt\": \"...\", \"completion\": \"...\"}");
  if (reading.chat_template) template_identity_ = reading.chat_template->identity();
  tell(reading, options.sequence_length);
  const bool are_chats = reading.kind == kMessages || reading.kind == kMessagePrompts;
  if (!are_chats) end_token_ = reading.end;
  if (options.packing) packed_ = packed(options.sequence_length);
}

void ExampleStore::add_line(std::string_view line, std::int64_t number, Reading& reading) {
  const auto refuse = [&](const auto&... what) {
    fail(ErrorCode::kConfig, "line ", number, " of '", file_.path(), "' ", what...);
  };
  ordered_json example;
  try {
    example = ordered_json::parse(line);
  } catch (const ordered_json::parse_error& error) {
    refuse("is no JSON: ", error.what());
  }
  if (!example.is_object()) refuse("is no JSON object");
  const std::string kind = kind_of(example);
  if (kind.empty()) {
    refuse("has neither \"prompt\" and \"completion\" nor \"text\" nor \"messages\"");
  }
  if (reading.kind.empty()) reading.kind = kind;
  if (reading.kind != kind) refuse("has ", kind, ", and those before it have ", reading.kind);
  reading.line = number;
  try {
    const bool is_chat = kind == kMessages || kind == kMessagePrompts;
    add_example(is_chat ? read_chat(example, reading) : read_text(example, reading), reading);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

ExampleStore::Example ExampleStore::read_text(const ordered_json& line, Reading& reading) const {
  const auto text_of = [&](const char* key) -> std::string {
    require(line.at(key).is_string(), ErrorCode::kConfig, "has a \"", key, "\" that is no text");
    return line.at(key).get<std::string>();
  };
  const bool has_prompt = reading.kind == kPrompts;
  const std::string prompt = has_prompt ? text_of("prompt") : "";
  const std::optional<Tokenizer>& tokenizer = reading.options.tokenizer;
  Example example;
  std::size_t prompt_tokens = 0;
  const std::string text = has_prompt ? prompt + text_of("completion") : text_of("text");
  try {
    example.tokens = encode(text, tokenizer, true);
    if (has_prompt) {
      const std::vector<std::int32_t> begin = encode(prompt, tokenizer, true);
      prompt_tokens = begin.size();
      const bool agrees = begin.size() <= example.tokens.size() &&
                          std::equal(begin.begin(), begin.end(), example.tokens.begin());
      if (!agrees) ++reading.across;
    }
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "cannot be tokenised: ", error.what());
  }
  if (reading.end && (example.tokens.empty() || example.tokens.back() != *reading.end)) {
    example.tokens.push_back(*reading.end);
  }
  example.targets.emplace_back(prompt_tokens, example.tokens.size());
  return example;
}

/// A token is a target if any of its text is what an assistant has written.
ExampleStore::Example ExampleStore::read_chat(const ordered_json& line, Reading& reading) const {
  const bool has_template = reading.options.chat_template.has_value();
  require(has_template, ErrorCode::kConfig,
          "has messages, which need a chat template; give `chat_template` FILE, or write texts as "
          "\"prompt\" and \"completion\"");
  if (!reading.chat_template) reading.chat_template.emplace(*reading.options.chat_template);
  const auto messages_of = [&](const char* key) -> const ordered_json& {
    check_messages(line.at(key), key);
    return line.at(key);
  };
  const ordered_json tools = line.contains("tools") ? line.at("tools") : ordered_json(nullptr);
  const ChatTemplate& chat = *reading.chat_template;
  const bool is_whole = reading.kind == kMessages;
  const ordered_json& messages = messages_of(is_whole ? "messages" : "prompt");
  ChatTemplate::Chat whole;
  try {
    whole = is_whole ? chat.chat(messages, tools)
                     : chat.completed(messages, messages_of("completion"), tools);
  } catch (const Error& error) {
    fail(ErrorCode::kConfig, "cannot be rendered: ", error.what());
  }
  Tokenizer::Placed placed;
  if (reading.options.tokenizer) {
    placed = reading.options.tokenizer->encode_with_ends(whole.text);
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

void ExampleStore::add_example(Example example, Reading& reading) {
  const auto most = static_cast<std::size_t>(reading.options.sequence_length) + 1;
  std::vector<std::int32_t>& tokens = example.tokens;
  if (tokens.size() > most) {
    tokens.resize(most);
    ++reading.truncated;
  }
  for (auto& [first, second] : example.targets) {
    first = std::max<std::size_t>(first, 1);  // nothing predicts the first token
    second = std::min(second, tokens.size());
  }
  std::erase_if(example.targets, [](const auto& span) { return span.first >= span.second; });
  if (example.targets.empty()) {
    ++reading.without;
    return;
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  starts_.push_back(static_cast<std::int64_t>(tokens_.size()));
  for (const auto& [first, second] : example.targets) {
    targets_.emplace_back(static_cast<std::int32_t>(first), static_cast<std::int32_t>(second));
  }
  target_starts_.push_back(static_cast<std::int64_t>(targets_.size()));
  lines_.push_back(reading.line);
}

void ExampleStore::tell(const Reading& reading, std::int64_t length) {
  if (reading.truncated > 0) {
    notes_.push_back(concat(count_of(reading.truncated, "of '"), file_.path(),
                            "' cut off at the sequence length ", length));
  }
  if (reading.without > 0) {
    notes_.push_back(concat(count_of(reading.without, "of '"), file_.path(),
                            "' left out: no target is within the sequence length ", length));
  }
  if (reading.across > 0) {
    notes_.push_back(
        concat(count_of(reading.across, "of '"), file_.path(),
               "' whose prompt has other tokens alone than before its completion; end prompts "
               "where words end"));
  }
}

std::vector<NamedText> ExampleStore::identity() const {
  std::vector<NamedText> all = identity_of({&file_});
  all.insert(all.begin(), {"kind of data", std::string(to_string(DataKind::kExamples))});
  if (!template_identity_.empty()) {
    all.push_back({"chat template", "hash " + template_identity_});
  }
  if (!tokenizer_identity_.empty()) all.push_back({"tokenizer", "hash " + tokenizer_identity_});
  return all;
}

std::int64_t ExampleStore::fill(std::int64_t sample, std::int64_t vocab_size,
                                std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                                std::span<std::int32_t> starts) const {
  const auto s = static_cast<std::size_t>(sample);
  const std::vector<std::size_t> examples = packed_.empty() ? std::vector{s} : packed_[s];
  std::ranges::fill(targets, kIgnored);
  std::int64_t counted = 0;
  std::size_t begin = 0;
  for (const std::size_t e : examples) {
    const std::size_t places = places_of(e);
    if (!starts.empty()) {
      std::ranges::fill(starts.subspan(begin, places), static_cast<std::int32_t>(begin));
    }
    counted += fill_example(e, vocab_size, inputs.subspan(begin), targets.subspan(begin));
    begin += places;
  }
  if (!starts.empty()) {
    std::ranges::fill(starts.subspan(begin), static_cast<std::int32_t>(begin));
  }
  return counted;
}

/// An example takes a place less than it has tokens: the last is a target alone.
std::size_t ExampleStore::places_of(std::size_t example) const {
  return static_cast<std::size_t>(starts_[example + 1] - starts_[example]) - 1;
}

std::int64_t ExampleStore::fill_example(std::size_t e, std::int64_t vocab_size,
                                        std::span<std::int32_t> inputs,
                                        std::span<std::int32_t> targets) const {
  const std::span<const std::int32_t> tokens =
      std::span(tokens_).subspan(static_cast<std::size_t>(starts_[e]), places_of(e) + 1);
  const std::size_t used = tokens.size() - 1;
  std::copy_n(tokens.begin(), used, inputs.begin());
  std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(used), inputs.end(), tokens.back());
  std::int64_t counted = 0;
  for (auto span = target_starts_[e]; span < target_starts_[e + 1]; ++span) {
    const auto [first, second] = targets_[static_cast<std::size_t>(span)];
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(second); ++i) {
      targets[i - 1] = tokens[i];
    }
    counted += second - first;
  }
  const std::int32_t largest = std::ranges::max(tokens);
  if (vocab_size > 0 && largest >= vocab_size) check_vocabulary(vocab_size);
  return counted;
}

/// Best fit: from the longest example to the shortest, each goes where it leaves the least room.
std::vector<std::vector<std::size_t>> ExampleStore::packed(std::int64_t length) const {
  std::vector<std::vector<std::size_t>> samples;
  std::vector<std::size_t> order(static_cast<std::size_t>(examples()));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t e) { return places_of(e); });
  std::set<std::pair<std::size_t, std::size_t>> room;  // of each sample, and its number
  for (const std::size_t e : order) {
    const std::size_t places = places_of(e);
    auto best = room.lower_bound({places, 0});
    if (best == room.end()) {
      best = room.emplace(static_cast<std::size_t>(length), samples.size()).first;
      samples.emplace_back();
    }
    const auto [left, sample] = *best;
    samples[sample].push_back(e);
    room.erase(best);
    room.emplace(left - places, sample);
  }
  return samples;
}

ExampleCounts ExampleStore::counts(std::int64_t length) const {
  ExampleCounts counts{.examples = examples(),
                       .tokens = tokens(),
                       .samples = samples(),
                       .positions = samples() * length,
                       .filled = tokens() - examples(),
                       .end_token = end_token_};
  for (const auto& [first, second] : targets_) counts.targets += second - first;
  counts.packed_samples = packed_.empty() ? std::ssize(packed(length)) : samples();
  return counts;
}

void ExampleStore::check_vocabulary(std::int64_t vocab_size) const {
  if (vocab_size <= 0) return;
  const auto outside = std::ranges::find_if(tokens_, [&](auto t) { return t >= vocab_size; });
  if (outside == tokens_.end()) return;
  const auto after = std::ranges::upper_bound(starts_, outside - tokens_.begin());
  const auto example = static_cast<std::size_t>(after - starts_.begin()) - 1;
  fail(ErrorCode::kConfig, "line ", lines_[example], " of '", file_.path(), "' has the token ",
       *outside, ", outside of the model's vocabulary of ", vocab_size,
       "; set the vocabulary to the tokenizer's size, at least ", std::ranges::max(tokens_) + 1);
}

}  // namespace tessera::data
