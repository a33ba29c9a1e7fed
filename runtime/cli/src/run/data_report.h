#pragma once

#include <string>
#include <vector>

#include "settings/gpt_choice.h"
#include "tessera/model/dataset.h"

namespace tessera::cli {

/// Describes how the data are read, a line each: formats, how full samples of examples are, and the
/// token that ends them.
std::vector<std::string> describe_data(const TokenDataset& dataset, const GptChoice& choice);

}  // namespace tessera::cli
