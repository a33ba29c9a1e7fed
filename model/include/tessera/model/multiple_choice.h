#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/named_text.h"
#include "tessera/model/gpt_scoring.h"
#include "tessera/model/tokenizer.h"

namespace tessera {

/// A question with choices, of which one is right: how the text goes on, say.
struct ChoiceQuestion {
  std::string query{};
  std::vector<std::string> choices{};
  std::size_t answer = 0;  ///< index of the right one
  std::int64_t line = 0;   ///< of the file, for errors
};

/// The questions of a file.
struct ChoiceQuestions {
  std::vector<ChoiceQuestion> questions{};
  std::vector<NamedText> identity{};  ///< of the file, wherever it lies
};

/// Reads the questions of a JSONL file, an object in each line, of at most 1 GiB. Two forms are
/// known, by their keys:
///
/// - HellaSwag's: {"activity_label": "...", "ctx_a": "...", "ctx_b": "...", "endings": [...],
///   "label": 3}, or "ctx" for ctx_a and ctx_b, and perhaps no activity_label. The texts are
///   prepared as lm-evaluation-harness does in tasks/hellaswag/utils.py: the query is
///   "activity_label: ctx_a Ctx_b", " [title]" becomes ". ", other texts in brackets go. ("ctx_b"
///   is capitalised by the simple mappings of Unicode, where Python has "Ss" for a first "ß".)
/// - {"question": "...", "choices": ["...", ...], "answer": 1}; also "query"; the choices may be
///   ARC's {"text": [...], "label": ["A", ...]}, and the answer "label", "gold" or "answerKey", an
///   index from 0 or a letter. Texts are taken as they are.
///
/// Throws Error{kNotFound, kIo} if there is no such file, and Error{kConfig} that names file, line
/// and remedy.
ChoiceQuestions read_choice_questions(const std::string& path);

/// The texts to score of a question, one for each choice: query and " " + choice, of which the
/// choice is scored. White space at the end of a query goes to the choices. Without a tokenizer
/// bytes are tokens. At most `window` + 1 tokens count, the last ones, as lm-evaluation-harness
/// has it. Throws Error{kConfig} naming the line if a choice has no tokens of its own or more than
/// `window`.
std::vector<ScoredText> encode_choices(const ChoiceQuestion& question,
                                       const std::optional<Tokenizer>& tokenizer,
                                       std::int64_t window);

/// The choices that a model takes, of a question's log-likelihoods.
struct ChosenChoices {
  std::size_t likeliest = 0;
  /// By log-likelihood for each character of the choice, which lm-evaluation-harness calls
  /// acc_norm.
  std::size_t likeliest_by_length = 0;
};

/// Among equal ones the first is taken. `log_likelihoods`: one for each choice. Throws
/// Error{kInvalidArgument} if one is not finite.
ChosenChoices choose(const ChoiceQuestion& question, std::span<const double> log_likelihoods);

}  // namespace tessera
