#pragma once

#include <string>

namespace tessera {

/// The tokenizer.json of a folder, or `path` itself if it is no folder; "" if the folder has none.
std::string find_tokenizer(const std::string& path);

/// "eos_token", "bos_token", ... of a folder, in the spelling of the vocabulary, as its
/// tokenizer_config.json or else its special_tokens_map.json has it; "" if neither has. Throws
/// Error{kIo, kConfig} naming the file if it cannot be read.
std::string special_token_of(const std::string& folder, const std::string& name);

}  // namespace tessera
