#pragma once

#include <string>
#include <vector>

#include "settings/gpt_settings.h"
#include "tessera/model/dataset.h"

namespace tessera::cli {

/// What the data were taken for, a line each: formats, how full samples of examples are, and the
/// token that ends them.
std::vector<std::string> describe_data(const TokenDataset& dataset, const GptChoice& choice);

}  // namespace tessera::cli
