#pragma once

#include <string>
#include <vector>

#include "settings/gpt_choice.h"
#include "tessera/model/data_mixture.h"

namespace tessera::cli {

/// Describes how the data are read, a line each: formats, how full samples of examples are, the
/// token that ends them, and the shares of a mixture.
std::vector<std::string> describe_data(const DataMixture& data, const GptChoice& choice);
std::vector<std::string> describe_data(const TokenDataset& dataset, const GptChoice& choice);
/// "about 2,363 tokens".
std::string describe_tokens(const DataMixture& data);

}  // namespace tessera::cli
