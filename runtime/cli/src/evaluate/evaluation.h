#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run/watchers.h"
#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/compat/launcher.h"
#include "tessera/model/dataset.h"
#include "tessera/trainer/multiple_choice_record.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/setting.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// The options of a session that trains nothing: a file of settings may be for a training.
TrainerOptions passes_options(const Config& config);

/// Joins the processes of an evaluation of `task` by what the model returns for `data`, all of
/// which must have been asked for the same. Returns the options of its session of forward passes.
/// Throws Error{kConfig} if --trace is given, which shows steps.
TrainerOptions begin_forward(Config& config, const Launcher& launcher, const GptChoice& choice,
                             const std::string& task, const std::vector<NamedText>& data,
                             const DumpWatch& dumps);
/// The samples of a call of its session: as many as keep all ranks busy for a few passes.
std::int64_t samples_of_a_call(const Session& session);

/// Throws Error{kIo} at once if --log is this command's and cannot be written.
void check_log(const Config& config);

/// Tells the result of an evaluation: as a line of --log, if it is this command's (a file of
/// settings may name the log of a training), and on the standard output as `json`, or as `lines`
/// below the name of the model.
void tell_evaluation(const Config& config, const GptChoice& choice, std::int64_t parameters,
                     const nlohmann::ordered_json& of_log, const nlohmann::ordered_json& json,
                     const std::vector<std::string>& lines);

/// --task and what belongs to --task multiple-choice.
std::vector<Setting> choice_settings();

/// `tessera evaluate --task multiple-choice`: scores the questions of --eval-data, and says how
/// many the model has answered. Returns the exit code.
int run_multiple_choice(Config config, const Launcher& launcher);

/// "accuracy 31.25 % ± 4.12 %, normalised by length 35.00 % ± 4.26 %, of 128 questions".
std::string describe_choices(const MultipleChoiceRecord& record);

}  // namespace tessera::cli
