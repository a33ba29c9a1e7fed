#pragma once

#include "settings/gpt_choice.h"

namespace tessera::cli {

/// --task, --labels and --mlm-probability of a training.
std::vector<Setting> label_settings();

/// Gives the chosen model a head for labels, if --task classification asks for one: those of
/// --labels, or else those in --data. A model that has labels keeps them. Writes into `config` what
/// it is. Throws Error{kConfig} if they do not fit, or if there are none to be found.
void choose_labels(Config& config, GptChoice& choice);

/// Writes into `config` that an encoder without labels tells masked tokens. Throws Error{kConfig}
/// if
/// --task asks a model for what it cannot learn.
void choose_task(Config& config, const GptConfig& gpt);

}  // namespace tessera::cli
