#include "tessera/compat/questionnaire.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "document.h"
#include "tessera/core/error.h"

namespace tessera::questionnaire {
namespace {

using nlohmann::json;

/// An answer, or what is wrong with it.
struct Reading {
  json value{};
  std::string problem{};
};

bool read_double(const std::string& text, double& number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return result.ec == std::errc{} && result.ptr == end && std::isfinite(number);
}

/// An integer may be written as 1e8: that is how the default is shown.
Reading read_integer(const Question& question, const std::string& text) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const bool bounded = question.maximum != std::numeric_limits<std::int64_t>::max();
  const std::string problem = bounded ? concat("Please enter an integer from ", question.minimum,
                                               " to ", question.maximum, ", not '", text, "'.")
                                      : concat("Please enter an integer of at least ",
                                               question.minimum, ", not '", text, "'.");
  double number = 0;
  if (!read_double(text, number) || number != std::floor(number) || std::abs(number) > kExact) {
    return {{}, problem};
  }
  const auto integer = static_cast<std::int64_t>(number);
  if (integer < question.minimum || integer > question.maximum) return {{}, problem};
  return {integer};
}

/// Such as an arrow key leaves in a line: no reader of files takes them.
bool has_control(const std::string& text) {
  return std::ranges::any_of(text, [](unsigned char c) { return std::iscntrl(c) != 0; });
}

Reading read(const Question& question, const std::string& text) {
  switch (question.kind) {
    case AnswerKind::kYesNo: {
      const auto answer = answered_yes(text);
      return answer ? Reading{*answer} : Reading{{}, "Please enter yes or no."};
    }
    case AnswerKind::kInteger:
      return read_integer(question, text);
    case AnswerKind::kNumber: {
      double number = 0;
      if (read_double(text, number) && number >= 0) return {number};
      return {{}, concat("Please enter a number of at least 0, not '", text, "'.")};
    }
    case AnswerKind::kText:
      if (has_control(text)) return {{}, "Please enter plain text, without control characters."};
      break;
    case AnswerKind::kMenu:
      break;
  }
  return {text};
}

/// The question with its default as Accelerate shows it.
std::string prompt(const Question& question, const json& fallback) {
  if (question.kind == AnswerKind::kYesNo) {
    return question.text + (fallback == json(true) ? " [YES/no]: " : " [yes/NO]: ");
  }
  if (fallback.is_null()) return question.text + ": ";
  return question.text + " [" + plain_text(fallback) + "]: ";
}

Reading ask_menu(const Question& question, const json& fallback, const Answers& answers,
                 Prompter& prompter) {
  const std::vector<Choice> choices =
      question.choices_from ? question.choices_from(answers) : question.choices;
  std::vector<std::string> names;
  std::size_t chosen = 0;
  for (const Choice& choice : choices) {
    if (choice.value == fallback) chosen = names.size();
    names.push_back(choice.name);
  }
  return {choices[prompter.choose(question.text, names, chosen)].value};
}

Reading ask_line(const Question& question, const json& fallback, Prompter& prompter) {
  const std::string text = prompter.type(prompt(question, fallback));
  if (!text.empty()) return read(question, text);
  return {fallback, fallback.is_null() ? "An answer is needed here." : ""};
}

/// `earlier`: the answer before the person went back; null: none.
json ask_until_right(const Question& question, const Answers& answers, const json& earlier,
                     Prompter& prompter) {
  const json fallback = !earlier.is_null()       ? earlier
                        : question.fallback_from ? question.fallback_from(answers)
                                                 : question.fallback;
  if (!question.note.empty()) prompter.say(question.note);
  if (prompter.is_person() && !question.person_choices.empty()) {
    const Question menu{
        .key = question.key, .text = question.person_text, .choices = question.person_choices};
    json chosen = ask_menu(menu, fallback, answers, prompter).value;
    if (!chosen.is_null()) return chosen;
  }
  for (;;) {
    Reading reading = question.kind == AnswerKind::kMenu
                          ? ask_menu(question, fallback, answers, prompter)
                          : ask_line(question, fallback, prompter);
    if (reading.problem.empty() && question.check) {
      reading.problem = question.check(reading.value, answers);
    }
    if (reading.problem.empty()) return reading.value;
    prompter.say(reading.problem);
  }
}

}  // namespace

std::optional<bool> answered_yes(std::string text) {
  return compat::as_flag({.text = std::move(text)});
}

Answers ask(const std::vector<Question>& questions, Prompter& prompter) {
  Answers answers;
  std::vector<json> earlier(questions.size());
  std::vector<std::pair<std::size_t, Answers>> asked;  // with the answers before each
  for (std::size_t i = 0; i < questions.size();) {
    const Question& question = questions[i];
    if (question.asked_if && !question.asked_if(answers)) {
      ++i;
      continue;
    }
    try {
      const Answers before = answers;
      earlier[i] = ask_until_right(question, answers, earlier[i], prompter);
      answers[question.key] = earlier[i];
      asked.emplace_back(i++, before);
    } catch (const WentBack&) {
      if (asked.empty()) continue;
      i = asked.back().first;
      answers = asked.back().second;
      asked.pop_back();
    }
  }
  return answers;
}

}  // namespace tessera::questionnaire
