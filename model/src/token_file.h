#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mapped_file.h"
#include "tessera/model/tokenizer.h"

namespace tessera::data {

/// The header of llm.c's token files: 256 int32, of which the first three are magic, version and
/// number of tokens.
inline constexpr std::size_t kTokenHeaderBytes = 256 * sizeof(std::int32_t);
struct TokenHeaderFormat {
  std::int32_t magic;
  std::int32_t version;
  std::size_t token_bytes;
};
inline constexpr std::array<TokenHeaderFormat, 2> kTokenHeaderFormats{
    {{20240520, 1, 2}, {20240801, 7, 4}}};

/// One file's tokens: little-endian unsigned numbers, one after the other.
struct TokenFile {
  MappedFile file;
  std::int64_t tokens = 0;
  std::size_t header_bytes = 0;
  std::size_t token_bytes = 1;           ///< 1, 2 or 4
  std::string format;                    ///< in words: "uint16 without a header"
  std::vector<std::uint32_t> encoded{};  ///< of a text that a tokenizer has read; then no bytes are

  /// Writes tokens [begin, begin + out.size()) of the file.
  void read(std::int64_t begin, std::span<std::uint32_t> out) const;
};

/// A text: every byte is a token.
TokenFile open_text(const std::string& path);
/// A text, tokenised now and held in memory. Throws Error{kConfig} naming the file if it is not
/// UTF-8.
TokenFile encode_text(const std::string& path, TokenEncoder& encoder);

/// Token ids, in one of these formats:
/// - raw uint16, as nanoGPT's prepare.py writes them;
/// - with the header of llm.c (dev/data/data_common.py), by its format uint16 or uint32.
/// Throws Error{kNotFound, kIo, kConfig} naming the file and the remedy; what is recognised as
/// something else is not read as raw uint16.
TokenFile open_tokens(const std::string& path);

/// Whether a file that starts with `bytes` has a header of llm.c's.
bool has_token_header(std::span<const std::byte> bytes);

}  // namespace tessera::data
