#pragma once

#include "settings/gpt_choice.h"

namespace tessera::cli {

/// --task and --labels of a training.
std::vector<Setting> label_settings();

/// Gives the chosen model a head for labels, if --task classification asks for one: those of
/// --labels, or else those in --data. A model that has labels keeps them. Writes into `config` what
/// it is. Throws Error{kConfig} if they do not fit, or if there are none to be found.
void choose_labels(Config& config, GptChoice& choice);

}  // namespace tessera::cli
