#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/storage.h"
#include "tessera/model/companion_files.h"
#include "tessera/model/pretrained.h"

namespace tessera {

/// A folder with a model of one of gpt_families() as Hugging Face's transformers writes it and as
/// the hub has it: config.json of version 4 or 5, and model.safetensors, or
/// model.safetensors.index.json with the files that it names; tensors with or without the family's
/// prefix, in F32, F16 or BF16. Matrices of Conv1D, which lie there as (inputs, outputs), are
/// transposed; query, key and value, and gate and up, are joined where they lie apart; causal masks
/// and rotary frequencies are left out. Everything but the values is checked here, before memory is
/// taken for them. Throws Error{kNotFound, kIo, kConfig}: another architecture, a key of
/// config.json that changes what is computed, a tensor that is missing, unknown or of another shape
/// or dtype.
///
/// Matrices may be quantised by bitsandbytes (`quantization_config`: nf4 and fp4, with coded scales
/// or without, and int8; which single modules are left out is seen by their tensors). Beside
/// adapters those of the blocks keep their codes and scales; all else reads what they stand for.
/// Another method, a tensor of a quantised matrix that is missing or of another shape, blocks of
/// another size and other tables are refused by name.
PretrainedGpt open_hugging_face(const std::string& folder);

/// The configuration of such a folder; its weights need not be there. Throws as open_hugging_face.
GptConfig hugging_face_config_of(const std::string& folder);

/// The tokens that end a text of the folder's model: eos_token_id, one or several, of
/// generation_config.json, or else of config.json; none if neither says so. Throws Error{kConfig}
/// if they are no ids.
std::vector<std::int32_t> end_tokens_of(const std::string& folder);

/// How such a folder is written.
struct HuggingFaceOptions {
  /// The format of the matrices of blocks. Another than kNone: they are quantised as bitsandbytes
  /// does it, one at a time, unless config.unquantized names them.
  WeightFormat format = WeightFormat::kNone;
  DType dtype = DType::kFloat32;  ///< of all else: fp32, bf16 or fp16, rounded to the nearest
  /// Those of the model that it was made of. Its config.json changes where the new model differs.
  CompanionFiles files{};
};

/// The token that ends the texts of a model of which nothing says so: of GPT-2's vocabulary, padded
/// or not, its one special token; none of others.
std::optional<std::int32_t> usual_end_token(const GptConfig& config);

/// A config.json for a model that comes from no folder. `end_token`: which begins and ends its
/// texts, if one does.
std::string new_hugging_face_config(const GptConfig& config, std::optional<std::int32_t> end_token);

/// Writes such a folder: model.safetensors, the companion files and, if there is none among them,
/// config.json. `folder` must not exist. Throws Error{kConfig} if it does, Error{kIo}, and at a
/// value that fp16 does not have Error{kConfig}.
PretrainedWriter write_hugging_face(const std::string& folder, const GptConfig& config,
                                    Storage& storage = disk(),
                                    const HuggingFaceOptions& options = {});

}  // namespace tessera
