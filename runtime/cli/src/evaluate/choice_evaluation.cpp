#include "evaluate/choice_evaluation.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <utility>

#include "commands.h"
#include "evaluate/evaluation_output.h"
#include "evaluate/forward_options.h"
#include "evaluate/question_progress.h"
#include "launch/same_run.h"
#include "output/json_output.h"
#include "output/terminal.h"
#include "run/dump_watch.h"
#include "settings/gpt_choice.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt_scoring.h"
#include "tessera/model/multiple_choice.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer_settings.h"

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

/// Scores as many questions at a time as keep all ranks busy for a few passes.
MultipleChoiceRecord score(const std::vector<ChoiceQuestion>& questions, const Texts& texts,
                           const GptScoring& gpt, Session& session, bool shows) {
  constexpr std::int64_t kPasses = 8;
  const std::int64_t wanted =
      kPasses * evaluation_division(session.plan().options).samples_per_step();
  std::optional<QuestionProgress> progress;
  if (shows) progress.emplace(std::ssize(questions));
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
    if (progress) progress->show(static_cast<std::int64_t>(first));
  }
  return record;
}

}  // namespace

std::vector<Setting> choice_settings() {
  return {{.name = "task",
           .fallback = "loss",
           .help = "loss: of the tokens of --eval-data; multiple-choice: how many questions of it "
                   "the model answers, a .jsonl file of HellaSwag's lines (ctx_a, ctx_b, endings, "
                   "label) or of {\"question\": ..., \"choices\": [...], \"answer\": 0}; "
                   "classification: of a model with labels, accuracy and F1 of the texts of it, "
                   "lines of {\"text\": ..., \"label\": ...}; masked-lm: loss and accuracy of "
                   "masked tokens, by an encoder [loss; classification of a model with labels; "
                   "masked-lm of other encoders]",
           .group = "Evaluation",
           .choices = {"loss", "multiple-choice", "classification", "masked-lm"},
           .other_spellings = {{"text", "loss"}}},
          {.name = "questions",
           .type = SettingType::kInteger,
           .help = "of --task multiple-choice: take the first so many questions [all]",
           .group = "Evaluation",
           .minimum = 1}};
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
  TrainerOptions options = forward_options(config, "multiple-choice");
  options.dump_requests = dumps.requests();
  std::vector<NamedText> same = adopt_parameters(choice, options);
  same.insert(same.end(), from.identity.begin(), from.identity.end());
  if (choice.text.tokenizer) same.push_back({"tokenizer", choice.text.tokenizer->identity()});
  join_world(launcher, config, options);
  require_same_run(config, options, same);
  const bool is_first = launcher.process == 0;
  Session session(gpt.model(), gpt, options);
  const MultipleChoiceRecord record = score(from.questions, texts, gpt, session, is_first);
  if (!is_first) return kExitGood;
  write_log(config, parameter_count(gpt.model()),
            [&](RunLog& log) { log.multiple_choice(record); });
  if (config.get<std::string>("format") == "json") {
    write_json(std::cout, to_json(record));
    return kExitGood;
  }
  print_model(std::cout, choice, config);
  std::cout << describe_choices(record) << "\n";
  return kExitGood;
}

}  // namespace tessera::cli
