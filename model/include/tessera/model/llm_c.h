#pragma once

#include <string>

#include "tessera/core/storage.h"
#include "tessera/model/pretrained.h"

namespace tessera {

/// A model file of llm.c (train_gpt2.py, write_model): magic 20240326, version 3 (fp32) or 5
/// (bf16). Rows of the token embedding beyond the vocabulary are left out.
/// Throws Error{kNotFound, kIo, kConfig}.
PretrainedGpt open_llm_c(const std::string& path);

/// Writes such a file, in fp32 or bf16; the vocabulary is padded to a multiple of 128 with zeros.
/// `path` must not exist. Throws Error{kConfig} if it does or if the format cannot hold the model
/// (a head of its own), and Error{kIo}.
PretrainedWriter write_llm_c(const std::string& path, const GptConfig& config,
                             DType dtype = DType::kFloat32, Storage& storage = disk());

}  // namespace tessera
