#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/model/tokenizer.h"

namespace tessera::data {

/// Encodes a file of text a megabyte at a time: `on_tokens` gets the tokens in order, with the
/// number of bytes that they are of, and says whether to go on. Returns false if it did not.
/// Throws Error naming the file.
bool encode_file(TokenEncoder& encoder, const std::string& path,
                 const std::function<bool(std::span<const std::int32_t>, std::int64_t)>& on_tokens);

/// The token between two files: of the end of text if it is wanted and there is one, else of a
/// newline, or "[SEP]" where that has no token.
std::int32_t separator_of(const Tokenizer& tokenizer, bool end_of_text);

}  // namespace tessera::data
