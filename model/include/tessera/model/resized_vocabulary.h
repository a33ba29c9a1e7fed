#pragma once

#include <cstdint>

#include "tessera/model/pretrained.h"

namespace tessera {

/// `base` with rows for so many tokens in all: the embedding and a head of its own get rows behind
/// theirs, each the mean of those that are there; the bias of masked tokens' logits gets zeros.
/// transformers' resize_token_embeddings draws such rows from a normal distribution about that
/// mean, whose deviation is 3e-5 of theirs. Reads these matrices once. Throws Error{kConfig} if the
/// base is a checkpoint or has adapters, or if it has more tokens.
PretrainedGpt with_vocabulary(const PretrainedGpt& base, std::int64_t tokens);

}  // namespace tessera
