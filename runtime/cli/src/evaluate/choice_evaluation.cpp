#include "evaluate/evaluation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "commands.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "run/watchers.h"
#include "settings/gpt_choice.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_scoring.h"
#include "tessera/model/multiple_choice.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/session.h"

namespace tessera::cli {
namespace {

/// The questions of --eval-data, the first ones of --questions.
ChoiceQuestions open_questions(const Config& config) {
  require(!config.is_null("eval_data"), ErrorCode::kConfig,
          "no questions to score: give --eval-data a .jsonl file of them");
  require(!config.is_typed("eval_tokens"), ErrorCode::kConfig,
          "--eval-tokens is for a loss; --questions N takes the first N questions");
  ChoiceQuestions all;
  try {
    all = read_choice_questions(config.get<std::string>("eval_data"));
  } catch (const Error& error) {
    fail(error.code() == ErrorCode::kIo ? ErrorCode::kConfig : error.code(),
         "--eval-data: ", error.what());
  }
  if (!config.is_null("questions")) {
    const auto most = static_cast<std::size_t>(config.get<std::int64_t>("questions"));
    if (most < all.questions.size()) all.questions.resize(most);
  }
  return all;
}

/// A question's texts are scored together.
using Texts = std::vector<std::vector<ScoredText>>;

Texts encode(const std::vector<ChoiceQuestion>& questions, const GptChoice& choice,
             const std::string& path) {
  require(choice.text.no_text.empty(), ErrorCode::kConfig, choice.text.no_text);
  const std::int64_t most = choice.config.context_length - choice.config.adapter.prompt_tokens();
  Texts texts;
  for (const ChoiceQuestion& question : questions) {
    try {
      texts.push_back(encode_choices(question, choice.text.tokenizer, most));
    } catch (const Error& error) {
      fail(error.code(), "--eval-data '", path, "': ", error.what());
    }
  }
  return texts;
}

/// Inputs of the longest text.
std::int64_t window_of(const Texts& texts) {
  std::int64_t longest = 0;
  for (const auto& of_question : texts) {
    for (const ScoredText& text : of_question) {
      longest = std::max<std::int64_t>(longest, std::ssize(text.tokens) - 1);
    }
  }
  return longest;
}

MultipleChoiceRecord score(const std::vector<ChoiceQuestion>& questions, const Texts& texts,
                           const GptScoring& gpt, Session& session, bool shows) {
  const std::int64_t wanted = samples_of_a_call(session);
  LiveLine progress;
  MultipleChoiceRecord record{.questions = std::ssize(questions)};
  for (std::size_t first = 0; first < questions.size();) {
    std::vector<ScoredText> batch;
    std::size_t end = first;
    while (end < questions.size() && std::ssize(batch) < wanted) {
      batch.insert(batch.end(), texts[end].begin(), texts[end].end());
      ++end;
    }
    const std::vector<double> scores =
        gpt.log_likelihoods(batch, [&](const TensorView& inputs, const TensorView& targets) {
          return session.forward(inputs, targets).values;
        });
    for (auto of_question = scores.begin(); first < end; ++first) {
      const ChoiceQuestion& question = questions[first];
      const auto count = std::ssize(question.choices);
      const ChosenChoices chosen = choose(question, {of_question, of_question + count});
      record.choices += count;
      record.correct += chosen.likeliest == question.answer ? 1 : 0;
      record.correct_by_length += chosen.likeliest_by_length == question.answer ? 1 : 0;
      of_question += count;
    }
    if (!shows) continue;
    progress.show(concat("scored ", with_commas(static_cast<std::int64_t>(first)), " of ",
                         with_commas(record.questions), " questions"),
                  first == questions.size());
  }
  return record;
}

}  // namespace

std::vector<Setting> choice_settings() {
  return in_group(
      "Evaluation",
      {{.name = "task",
        .fallback = "loss",
        .help = "loss: of the tokens of --eval-data; multiple-choice: how many questions of it "
                "the model answers, a .jsonl file of HellaSwag's lines (ctx_a, ctx_b, endings, "
                "label) or of {\"question\": ..., \"choices\": [...], \"answer\": 0}; "
                "classification: of a model with labels, accuracy and F1 of the texts of it, "
                "lines of {\"text\": ..., \"label\": ...}; masked-lm: loss and accuracy of "
                "masked tokens, by an encoder [loss; classification of a model with labels; "
                "masked-lm of other encoders]",
        .choices = {"loss", "multiple-choice", "classification", "masked-lm"},
        .other_spellings = {{"text", "loss"}}},
       {.name = "questions",
        .type = SettingType::kInteger,
        .help = "of --task multiple-choice: take the first so many questions [all]",
        .minimum = 1}});
}

std::string describe_choices(const MultipleChoiceRecord& record) {
  const auto with_error = [&](double share) {
    const std::optional<double> error = record.standard_error(share);
    return concat(fixed(100.0 * share, 2), " %",
                  error ? concat(" ± ", fixed(100.0 * *error, 2), " %") : "");
  };
  return concat("accuracy ", with_error(record.accuracy()), ", normalised by length ",
                with_error(record.normalised_accuracy()), ", of ",
                counted(record.questions, "question"));
}

int run_multiple_choice(Config config, const Launcher& launcher) {
  const ChoiceQuestions from = open_questions(config);
  const GptChoice choice = choose_gpt(config);
  const Texts texts = encode(from.questions, choice, config.get<std::string>("eval_data"));
  const GptScoring gpt(choice.config, window_of(texts));
  const DumpWatch dumps;
  std::vector<NamedText> same = from.identity;
  if (choice.text.tokenizer) same.push_back({"tokenizer", choice.text.tokenizer->identity()});
  const TrainerOptions options =
      begin_forward(config, launcher, choice, "multiple-choice", same, dumps);
  const bool is_first = launcher.process == 0;
  Session session(gpt.model(), gpt, options);
  const MultipleChoiceRecord record = score(from.questions, texts, gpt, session, is_first);
  if (!is_first) return kExitGood;
  const nlohmann::ordered_json json = to_json(record);
  tell_evaluation(config, choice, parameter_count(gpt.model()), json, json,
                  {describe_choices(record)});
  return kExitGood;
}

}  // namespace tessera::cli
