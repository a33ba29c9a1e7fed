#include "tessera/model/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "file_identity.h"
#include "mapped_file.h"
#include "python_text.h"
#include "tessera/core/error.h"
#include "tessera/model/generate.h"
#include "tokenizer/white_space.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr const char* kForms =
    "write {\"question\": \"...\", \"choices\": [\"...\", ...], \"answer\": 0}, or a line of "
    "HellaSwag with \"ctx_a\", \"ctx_b\", \"endings\" and \"label\"";

/// Texts without "[...]" within a line, each the shortest that begins there.
std::string without_brackets(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = text.front() == '[' ? text.find_first_of("]\n", 1) : text.npos;
    if (end != text.npos && text[end] == ']') {
      text.remove_prefix(end + 1);
    } else {
      result += text.front();
      text.remove_prefix(1);
    }
  }
  return result;
}

/// The function preprocess of lm-evaluation-harness's tasks/hellaswag/utils.py. Brackets are left
/// over from WikiHow.
std::string prepared(std::string_view text) {
  const std::string titles = data::replaced(data::stripped(text), " [title]", ". ");
  return data::replaced(without_brackets(titles), "  ", " ");
}

const std::string& text_of(const json& line, const char* key) {
  require(line.contains(key), ErrorCode::kConfig, "has no \"", key, "\"; ", kForms);
  require(line.at(key).is_string(), ErrorCode::kConfig, "has a \"", key,
          "\" that is no text; write it in quotes");
  return line.at(key).get_ref<const std::string&>();
}

std::vector<std::string> texts_of(const json& texts, const char* key) {
  const bool are_texts =
      texts.is_array() && std::ranges::all_of(texts, [](const json& t) { return t.is_string(); });
  require(are_texts, ErrorCode::kConfig, "has \"", key,
          "\" that are no list of texts; write [\"...\", \"...\"]");
  return texts.get<std::vector<std::string>>();
}

const char* first_key_of(const json& line, std::initializer_list<const char*> keys) {
  const auto* const found =
      std::ranges::find_if(keys, [&](const char* key) { return line.contains(key); });
  return found == keys.end() ? nullptr : *found;
}

/// The index that `value` names: a number, as a text perhaps, or one of `labels`.
std::size_t index_of(const json& value, const char* key, const std::vector<std::string>& labels) {
  std::int64_t index = -1;
  const auto count = std::ssize(labels);
  if (value.is_number_integer()) index = value.get<std::int64_t>();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto label = std::ranges::find(labels, text);
    const bool is_number = !text.empty() && text.size() < 10 &&
                           text.find_first_not_of("0123456789") == std::string::npos;
    if (label != labels.end()) {
      index = label - labels.begin();
    } else if (is_number) {
      index = std::stoll(text);
    }
  }
  require(index >= 0 && index < count, ErrorCode::kConfig, "has the \"", key, "\" ", value.dump(),
          ", which is none of its ", count, " choices; give an index from 0 to ", count - 1,
          ", or a letter from ", labels.front(), " to ", labels.back(),
          value == "" ? " (questions of a test set, without answers, have no accuracy)" : "");
  return static_cast<std::size_t>(index);
}

/// A, B, C, ...; of more than 26 choices the others have no letter.
std::vector<std::string> letters(std::size_t count) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < count; ++i) {
    labels.push_back(i < 26 ? std::string(1, static_cast<char>('A' + i)) : std::to_string(i));
  }
  return labels;
}

ChoiceQuestion read_hellaswag(const json& line) {
  ChoiceQuestion question;
  std::string context = line.contains("ctx_a") ? text_of(line, "ctx_a") + " " +
                                                     data::capitalized(text_of(line, "ctx_b"))
                                               : text_of(line, "ctx");
  if (line.contains("activity_label")) context = text_of(line, "activity_label") + ": " + context;
  question.query = prepared(context);
  for (const std::string& ending : texts_of(line.at("endings"), "endings")) {
    question.choices.push_back(prepared(ending));
  }
  return question;
}

ChoiceQuestion read_plain(const json& line, std::vector<std::string>& labels) {
  const char* const query = first_key_of(line, {"question", "query"});
  ChoiceQuestion question{.query = text_of(line, query == nullptr ? "question" : query)};
  const json& choices = line.at("choices");
  const bool has_labels = choices.is_object() && choices.contains("text");
  question.choices = texts_of(has_labels ? choices.at("text") : choices, "choices");
  if (has_labels && choices.contains("label")) {
    labels = texts_of(choices.at("label"), "label");
    require(labels.size() == question.choices.size(), ErrorCode::kConfig, "has ", labels.size(),
            " labels of ", question.choices.size(), " choices; give as many");
  }
  return question;
}

/// Throws Error{kConfig} whose text goes on behind the line's place.
ChoiceQuestion read_question(const json& line) {
  require(line.is_object(), ErrorCode::kConfig, "is no JSON object; ", kForms);
  const bool is_hellaswag = line.contains("endings");
  require(is_hellaswag || line.contains("choices"), ErrorCode::kConfig,
          "has neither \"endings\" nor \"choices\"; ", kForms);
  std::vector<std::string> labels;
  ChoiceQuestion question = is_hellaswag ? read_hellaswag(line) : read_plain(line, labels);
  require(!data::stripped(question.query).empty(), ErrorCode::kConfig,
          "has an empty question; choices are scored behind one");
  require(question.choices.size() >= 2, ErrorCode::kConfig, "has ", question.choices.size(),
          " choices; give two or more");
  for (const std::string& choice : question.choices) {
    require(!choice.empty(), ErrorCode::kConfig,
            "has an empty choice, which has no likelihood; write what it says");
  }
  if (labels.empty()) labels = letters(question.choices.size());
  const char* const key = is_hellaswag
                              ? first_key_of(line, {"label"})
                              : first_key_of(line, {"answer", "answerKey", "gold", "label"});
  require(key != nullptr, ErrorCode::kConfig, "does not say which choice is right; ", kForms);
  question.answer = index_of(line.at(key), key, labels);
  return question;
}

}  // namespace

ChoiceQuestions read_choice_questions(const std::string& path) {
  const data::MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  require(bytes.size() <= kMostBytes, ErrorCode::kConfig, "'", path, "' has ", bytes.size(),
          " bytes, and questions may have ", kMostBytes, "; split the file");
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<ChoiceQuestion> questions;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      questions.push_back(read_question(json::parse(line)));
    } catch (const json::exception& error) {
      fail(ErrorCode::kConfig, "line ", number, " of '", path, "' is no JSON: ", error.what(), "; ",
           kForms);
    } catch (const Error& error) {
      fail(ErrorCode::kConfig, "line ", number, " of '", path, "' ", error.what());
    }
    questions.back().line = number;
  }
  require(!questions.empty(), ErrorCode::kConfig, "'", path, "' has no questions; ", kForms);
  return {.questions = std::move(questions), .identity = data::identity_of({&file})};
}

std::vector<ScoredText> encode_choices(const ChoiceQuestion& question,
                                       const std::optional<Tokenizer>& tokenizer,
                                       std::int64_t window) {
  const auto encode = [&](const std::string& text) {
    return tokenizer ? tokenizer->encode(text, true) : to_byte_tokens(text);
  };
  const std::string context(data::right_stripped(question.query));
  const auto before = std::ssize(encode(context));
  std::vector<ScoredText> texts;
  for (const std::string& choice : question.choices) {
    ScoredText text{.tokens = encode(question.query + " " + choice)};
    text.scored = std::ssize(text.tokens) - before;
    const auto number = std::ssize(texts);
    require(before >= 1 && text.scored >= 1, ErrorCode::kConfig, "choice ", number,
            " of the question in line ", question.line,
            " has no tokens behind the question's; the tokenizer joins them, so write either "
            "differently");
    require(text.scored <= window, ErrorCode::kConfig, "choice ", number,
            " of the question in line ", question.line, " has ", text.scored,
            " tokens, and the model's context ", window, "; shorten it or leave it out");
    const auto excess = std::ssize(text.tokens) - (window + 1);
    if (excess > 0) text.tokens.erase(text.tokens.begin(), text.tokens.begin() + excess);
    texts.push_back(std::move(text));
  }
  return texts;
}

ChosenChoices choose(const ChoiceQuestion& question, std::span<const double> log_likelihoods) {
  require(log_likelihoods.size() == question.choices.size(), ErrorCode::kInvalidArgument,
          "there are ", log_likelihoods.size(), " log-likelihoods of ", question.choices.size(),
          " choices");
  std::vector<double> by_length;
  for (std::size_t i = 0; i < log_likelihoods.size(); ++i) {
    require(std::isfinite(log_likelihoods[i]), ErrorCode::kInvalidArgument, "choice ", i,
            " of the question in line ", question.line, " has the log-likelihood ",
            log_likelihoods[i], "; the model's parameters or logits are not finite");
    by_length.push_back(log_likelihoods[i] /
                        static_cast<double>(data::character_count(question.choices[i])));
  }
  const auto first_largest = [](std::span<const double> values) {
    return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
  };
  return {.likeliest = first_largest(log_likelihoods),
          .likeliest_by_length = first_largest(by_length)};
}

}  // namespace tessera
