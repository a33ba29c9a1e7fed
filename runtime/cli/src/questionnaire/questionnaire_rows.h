#pragma once

#include <initializer_list>
#include <vector>

#include "questionnaire/questionnaire.h"

namespace tessera::cli {

// What the tables of questions are written with.

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

/// How to shard, and over which mesh.
std::vector<Question> fsdp_questions();
std::vector<Question> mesh_questions(const MachineFacts& machine);
/// The ranks of the mesh; 1 if there is none.
std::int64_t mesh_size(const Answers& answers);
/// What is wrong with a number of ranks for the mesh; empty if nothing.
std::string check_mesh(std::int64_t ranks, const Answers& answers);

}  // namespace tessera::cli
