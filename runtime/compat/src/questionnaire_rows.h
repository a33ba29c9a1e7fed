#pragma once

#include <initializer_list>

#include "tessera/compat/questionnaire.h"

namespace tessera::questionnaire {

// Helpers for the table of questions.

using Condition = std::function<bool(const Answers&)>;

/// True if that was answered.
Condition is(const char* key, nlohmann::json value);
/// True if it was asked and the answer is another.
Condition is_other(const char* key, nlohmann::json value);
Condition both(Condition first, Condition second);

Question yes_or_no(const char* key, const char* text, bool fallback, Condition asked_if);
/// A menu of names that stand in the file; the first is what Enter means.
Question menu(const char* key, const char* text, std::initializer_list<const char*> names,
              Condition asked_if);

}  // namespace tessera::questionnaire
