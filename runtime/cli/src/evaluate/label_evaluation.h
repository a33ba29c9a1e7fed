#pragma once

#include <string>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/compat/launcher.h"
#include "tessera/model/classification.h"
#include "tessera/model/dataset.h"

namespace tessera::cli {

/// `tessera evaluate` of a model with labels: how many of the texts of `data` get theirs. Returns
/// the exit code.
int run_classification(Config config, const Launcher& launcher, const GptChoice& choice,
                       const TokenDataset& data);

/// "loss 0.405465, accuracy 87.50 %, F1 88.89 % of 'positive', macro F1 87.30 %, on 8 texts"; F1 of
/// the second of two labels is scikit-learn's average="binary".
std::string describe_classification(const Confusion& confusion, double loss,
                                    const std::vector<std::string>& labels);

}  // namespace tessera::cli
