#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "mapped_file.h"

namespace tessera::data {

/// Of llm.c's token files.
inline constexpr std::size_t kTokenHeaderBytes = 256 * sizeof(std::int32_t);

/// One file's tokens: little-endian unsigned numbers, one after the other.
struct TokenFile {
  MappedFile file;
  std::int64_t tokens = 0;
  std::size_t header_bytes = 0;
  std::size_t token_bytes = 1;  ///< 1, 2 or 4
  std::string format;           ///< in words: "uint16 without a header"

  /// Writes tokens [begin, begin + out.size()) of the file.
  void read(std::int64_t begin, std::span<std::uint32_t> out) const;
};

/// A text: every byte is a token.
TokenFile open_text(const std::string& path);

/// Token ids, in one of these formats:
/// - raw uint16, as nanoGPT's prepare.py writes them;
/// - llm.c (dev/data/data_common.py): 256 int32 of header, of which the first three are magic,
///   version and number of tokens; then uint16 (magic 20240520, version 1) or uint32 (20240801, 7).
/// Throws Error{kNotFound, kIo, kConfig} naming the file and the remedy; what is recognised as
/// something else is not read as raw uint16.
TokenFile open_tokens(const std::string& path);

/// Whether a file that starts with `bytes` has a header of llm.c's.
bool has_token_header(std::span<const std::byte> bytes);

}  // namespace tessera::data
