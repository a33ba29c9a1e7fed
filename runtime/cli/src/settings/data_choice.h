#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/model/chat_template.h"
#include "tessera/model/data_mixture.h"
#include "tessera/model/dataset.h"

namespace tessera::cli {

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

}  // namespace tessera::cli
