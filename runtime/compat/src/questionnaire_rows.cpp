#include "questionnaire_rows.h"

#include <utility>

#include "tessera/compat/questionnaire_document.h"

namespace tessera::questionnaire {

using nlohmann::json;

Condition is(const char* key, json value) {
  return [key, value = std::move(value)](const Answers& answers) {
    return answer_or(answers, key, json()) == value;
  };
}

Condition is_other(const char* key, json value) {
  return [key, value = std::move(value)](const Answers& answers) {
    return answers.contains(key) && answers.find(key)->second != value;
  };
}

Condition both(Condition first, Condition second) {
  return [first = std::move(first), second = std::move(second)](const Answers& answers) {
    return first(answers) && second(answers);
  };
}

Question yes_or_no(const char* key, const char* text, bool fallback, Condition asked_if) {
  return {.key = key,
          .text = text,
          .kind = AnswerKind::kYesNo,
          .fallback = fallback,
          .asked_if = std::move(asked_if)};
}

Question menu(const char* key, const char* text, std::initializer_list<const char*> names,
              Condition asked_if) {
  std::vector<Choice> choices;
  for (const char* name : names) choices.push_back({name, name});
  return {.key = key,
          .text = text,
          .kind = AnswerKind::kMenu,
          .choices = std::move(choices),
          .fallback = *names.begin(),
          .asked_if = std::move(asked_if)};
}

}  // namespace tessera::questionnaire
