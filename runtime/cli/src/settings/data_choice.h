#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/model/chat_template.h"
#include "tessera/model/data_mixture.h"
#include "tessera/model/dataset.h"

namespace tessera::cli {

/// One of the data of --data.
struct WeightedPath {
  std::string path;
  std::optional<double> weight{};
};

/// The data that a text names: a path, or several behind each other, with commas between, each
/// with "=0.7" or without. A text that is a path is one, whatever is in it. Throws Error{kConfig}.
std::vector<WeightedPath> parse_data(const std::string& text);

/// --chat-template, or what is beside the tokenizer or in the folder of --init; nothing if there is
/// none. Its special tokens are those of the tokenizer's configuration there.
std::optional<ChatTemplateOptions> chat_template_of(const Config& config);

/// The data of --data, checked against the vocabulary. Throws Error that names the remedy.
DataMixture open_dataset(const Config& config, const GptChoice& choice);
/// The steps of --epochs, if that is given: written into `config`. Throws Error{kConfig}.
void choose_steps(Config& config, const DataMixture& dataset);
/// Says so if a step of --epochs repeats samples; "" if not.
std::string epochs_note(const Config& config, const DataMixture& dataset);
/// The data to evaluate on, in order; nothing if --eval-data is not given.
std::optional<TokenDataset> open_evaluation(const Config& config, const GptChoice& choice);
/// The number of samples that --eval-tokens asks for, or all.
std::int64_t evaluation_samples(const Config& config, const TokenDataset& dataset);

/// Describes how the data are read, a line each: formats, how full samples of examples are, the
/// token that ends them, and the shares of a mixture.
std::vector<std::string> describe_data(const DataMixture& data, const GptChoice& choice);
std::vector<std::string> describe_data(const TokenDataset& dataset, const GptChoice& choice);
/// "about 2,363 tokens".
std::string describe_tokens(const DataMixture& data);

}  // namespace tessera::cli
