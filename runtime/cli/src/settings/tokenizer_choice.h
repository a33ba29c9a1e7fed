#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/compat/config.h"
#include "tessera/model/pretrained.h"
#include "tessera/model/tokenizer.h"

namespace tessera::cli {

/// The value of --tokenizer with which bytes are tokens.
inline constexpr const char* kBytes = "bytes";

/// How text becomes tokens.
struct TokenizerChoice {
  std::optional<Tokenizer> tokenizer{};  ///< none: bytes are tokens, or `no_text` says why not
  std::string path{};                    ///< of its file
  std::string no_text{};  ///< why text cannot be read; token files can be all the same
  std::string note{};     ///< that bytes are tokens of a vocabulary for others
  /// The token that ends an example, its id as `end_token_from` has it.
  std::optional<std::int32_t> end_token{};
  std::string end_token_from{};
};

/// --tokenizer: a tokenizer.json, a folder that has one, or "bytes". Without it that of the folder
/// of --init, or of --model: whatever keeps it from being used is in `no_text`. Bytes are tokens
/// without being asked for where there are no more than 256, and of a preset, which has no folder.
/// `vocab_size`: the model's; 0: not known yet, which is the tokenizer's then. `init`: null without
/// --init. Throws Error{kConfig} if what is given cannot be used.
TokenizerChoice choose_tokenizer(const Config& config, std::int64_t vocab_size,
                                 const PretrainedGpt* init);

/// Whether the model of --init gets rows for tokens that it lacks (--resize-vocabulary): then no
/// tokenizer is too large for it.
bool resizes_vocabulary(const Config& config);

/// The file of --tokenizer, if that names a file or a folder with one; "" if not.
std::string given_tokenizer(const Config& config);

}  // namespace tessera::cli
