#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

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

// Keys that more than one place names. Of the file:
inline constexpr const char* kNumMachines = "num_machines";
inline constexpr const char* kReplicate = "parallelism_config.parallelism_config_dp_replicate_size";
inline constexpr const char* kShard = "parallelism_config.parallelism_config_dp_shard_size";

// Checks for Question::check: what is wrong with an answer and what is allowed; empty if nothing.
// Accelerate's questionnaire takes these answers, and a run finds out.
std::string check_is_file(const nlohmann::json& path, const Answers& answers);
std::string check_layer_names(const nlohmann::json& names, const Answers& answers);
/// The mesh must be spread evenly over the machines, ...
std::string check_shard_size(const nlohmann::json& size, const Answers& answers);
/// ... and have a place for each process.
std::string check_processes(const nlohmann::json& processes, const Answers& answers);
std::string check_gpu_ids(const nlohmann::json& ids, const Answers& answers);

/// The shard size that makes a mesh of so many.
std::int64_t default_shard_size(const MachineFacts& machine, const Answers& answers);

}  // namespace tessera::questionnaire
