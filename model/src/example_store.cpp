#include "example_store.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "file_identity.h"
#include "tessera/core/error.h"

namespace tessera::data {
namespace {

using nlohmann::json;

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

std::string count_of(std::int64_t count, const char* what) {
  return concat(count, count == 1 ? " example " : " examples ", what);
}

}  // namespace

/// What lines have in common, and what was found on the way.
struct ExampleStore::Reading {
  const DatasetOptions& options;
  std::optional<std::int32_t> end{};
  bool is_first = true;
  bool has_prompts = false;
  std::int64_t line = 0;
  std::int64_t truncated = 0;  ///< whose end did not fit
  std::int64_t without = 0;    ///< left out: no target fits
  std::int64_t across = 0;     ///< whose tokens cross from prompt to completion
};

bool is_example_file(std::string_view path) { return path.ends_with(".jsonl"); }

ExampleStore::ExampleStore(const DatasetOptions& options) : file_(options.path), starts_{0} {
  const std::span<const std::byte> bytes = file_.bytes();
  require(bytes.size() <= kMostBytes, ErrorCode::kConfig, "'", options.path, "' has ", bytes.size(),
          " bytes, and examples of at most ", kMostBytes, " are kept in memory; split the file");
  Reading reading{.options = options};
  if (options.tokenizer) {
    tokenizer_identity_ = options.tokenizer->identity();
    reading.end = options.end_token ? options.end_token : options.tokenizer->end_of_text();
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
  tell(reading, options.sequence_length);
}

void ExampleStore::add_line(std::string_view line, std::int64_t number, Reading& reading) {
  const auto refuse = [&](const auto&... what) {
    fail(ErrorCode::kConfig, "line ", number, " of '", file_.path(), "' ", what...);
  };
  json example;
  try {
    example = json::parse(line);
  } catch (const json::parse_error& error) {
    refuse("is no JSON: ", error.what());
  }
  if (!example.is_object()) refuse("is no JSON object");
  const bool has_prompt = example.contains("prompt") && example.contains("completion");
  if (!has_prompt && !example.contains("text")) {
    refuse(example.contains("messages")
               ? "has \"messages\", which need a chat template; write them as \"prompt\" and "
                 "\"completion\""
               : "has neither \"prompt\" and \"completion\" nor \"text\"");
  }
  if (!reading.is_first && has_prompt != reading.has_prompts) {
    refuse("has ", has_prompt ? "a prompt, and those before it have none"
                              : "no prompt, and those before it have one");
  }
  reading.is_first = false;
  reading.has_prompts = has_prompt;
  reading.line = number;
  const auto text_of = [&](const char* key) -> std::string {
    if (!example.at(key).is_string()) refuse("has a \"", key, "\" that is no text");
    return example.at(key).get<std::string>();
  };
  const std::string prompt = has_prompt ? text_of("prompt") : "";
  const std::optional<Tokenizer>& tokenizer = reading.options.tokenizer;
  std::vector<std::int32_t> tokens;
  std::size_t prompt_tokens = 0;
  try {
    tokens = encode(has_prompt ? prompt + text_of("completion") : text_of("text"), tokenizer, true);
    if (has_prompt) {
      const std::vector<std::int32_t> begin = encode(prompt, tokenizer, true);
      prompt_tokens = begin.size();
      const bool agrees =
          begin.size() <= tokens.size() && std::equal(begin.begin(), begin.end(), tokens.begin());
      if (!agrees) ++reading.across;
    }
  } catch (const Error& error) {
    refuse("cannot be tokenised: ", error.what());
  }
  if (reading.end && (tokens.empty() || tokens.back() != *reading.end)) {
    tokens.push_back(*reading.end);
  }
  add_example(std::move(tokens), prompt_tokens, reading);
}

void ExampleStore::add_example(std::vector<std::int32_t> tokens, std::size_t prompt,
                               Reading& reading) {
  const auto most = static_cast<std::size_t>(reading.options.sequence_length) + 1;
  if (tokens.size() > most) {
    tokens.resize(most);
    ++reading.truncated;
  }
  // The first token is never a target: nothing predicts it.
  if (tokens.size() <= std::max<std::size_t>(prompt, 1)) {
    ++reading.without;
    return;
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  starts_.push_back(static_cast<std::int64_t>(tokens_.size()));
  prompts_.push_back(static_cast<std::int64_t>(std::max<std::size_t>(prompt, 1)));
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
  if (!tokenizer_identity_.empty()) all.push_back({"tokenizer", "hash " + tokenizer_identity_});
  return all;
}

std::int64_t ExampleStore::fill(std::int64_t example, std::int64_t vocab_size,
                                std::span<std::int32_t> inputs,
                                std::span<std::int32_t> targets) const {
  const auto e = static_cast<std::size_t>(example);
  const std::span<const std::int32_t> tokens = std::span(tokens_).subspan(
      static_cast<std::size_t>(starts_[e]), static_cast<std::size_t>(starts_[e + 1] - starts_[e]));
  const std::size_t used = tokens.size() - 1;
  std::copy_n(tokens.begin(), used, inputs.begin());
  std::fill(inputs.begin() + static_cast<std::ptrdiff_t>(used), inputs.end(), tokens.back());
  std::ranges::fill(targets, kIgnored);
  const auto prompt = static_cast<std::size_t>(prompts_[e]);
  for (std::size_t i = prompt; i < tokens.size(); ++i) targets[i - 1] = tokens[i];
  const std::int32_t largest = std::ranges::max(tokens);
  if (vocab_size > 0 && largest >= vocab_size) check_vocabulary(vocab_size);
  return static_cast<std::int64_t>(tokens.size() - prompt);
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
