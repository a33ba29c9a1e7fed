#pragma once

#include <string>

#include "tessera/core/storage.h"
#include "tessera/model/pretrained.h"

namespace tessera {

/// `base` with adapters that start as `adapter` says. Throws Error{kConfig} if the base is a
/// checkpoint of ours, which is to be converted first, or has adapters already.
PretrainedGpt with_adapter(const PretrainedGpt& base, const AdapterConfig& adapter);

/// `base` with the adapters of a folder as PEFT writes it: adapter_config.json, and
/// adapter_model.safetensors with F32, F16 or BF16. Every tensor of it must belong to a module that
/// adapter_config.json names, and every such module must be there. `path` may also be an
/// adapter_config.json alone, or a folder without weights: then as with_adapter. Of an adapter that
/// classifies (task_type SEQ_CLS) a base without labels gets numbered_labels. Throws
/// Error{kNotFound, kIo, kConfig}.
PretrainedGpt open_adapter(const PretrainedGpt& base, const std::string& path);
/// Whether open_adapter finds weights there.
bool has_adapter_weights(const std::string& path);

/// Writes such a folder: the parameters of `config` that are trained, adapters in F32. `base`: what
/// the base model is called, for whoever loads the folder. Of `files`, those of the tokenizer are
/// written beside them. `folder` must not exist. Throws Error{kConfig} if it does, and Error{kIo}.
PretrainedWriter write_adapter(const std::string& folder, const GptConfig& config,
                               const std::string& base, const CompanionFiles& files = {},
                               Storage& storage = disk());

/// Writes W + scale * B A of each module with LoRA adapters, W and bias times the vectors of IA3,
/// and all else as it is, one parameter after the other: the same function without adapters.
/// `target` is for the model's configuration without them. Throws Error{kConfig} that names a
/// parameter that is not finite then, and on a tuned prompt.
void write_merged(const PretrainedGpt& adapted, PretrainedWriter& target);

}  // namespace tessera
