#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pretrained/quantized_part.h"
#include "pretrained/stored_gpt.h"

// Tensors of an encoder's folder that other programs name otherwise, or that the model lacks.
namespace tessera::pretrained {

/// The name of the matrix that gives logits of tokens, of any family.
std::string_view head_matrix(const GptConfig& config);

/// The tensor of that name, or what else a folder may call it: norms have gamma and beta in old
/// files, and the bias of masked tokens' logits has two names.
std::string tensor_name(const StoredTensors& tensors, const GptConfig& config, std::string name);

/// Whether a tensor of an encoder's folder is left out: the head that tells whether a sentence
/// follows another, positions that are their own numbers, a second name of a bias, and beside a
/// head for masked tokens the pooler.
bool is_beside_encoder(const GptConfig& config, std::string_view name);

/// Whether a parameter begins as a new model's, because the folder is that of an encoder without a
/// head: `has_head` says that it has one.
bool begins_anew(const GptConfig& config, std::string_view parameter, bool has_head);

/// The pooler's parameters, which a folder with a head for masked tokens may have; those of a
/// classifier with the same sizes.
std::vector<ParameterSpec> pooler_of(const GptConfig& config);

}  // namespace tessera::pretrained
