#pragma once

#include <string>
#include <vector>

#include "tessera/compat/config.h"
#include "tessera/compat/launcher.h"
#include "tessera/trainer/multiple_choice_record.h"
#include "tessera/trainer/setting.h"

namespace tessera::cli {

/// --task and what belongs to --task multiple-choice.
std::vector<Setting> choice_settings();

/// `tessera evaluate --task multiple-choice`: scores the questions of --eval-data, and says how
/// many the model has answered. Returns the exit code.
int run_multiple_choice(Config config, const Launcher& launcher);

/// "accuracy 31.25 % ± 4.12 %, normalised by length 35.00 % ± 4.26 %, of 128 questions".
std::string describe_choices(const MultipleChoiceRecord& record);

}  // namespace tessera::cli
