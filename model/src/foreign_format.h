#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "mapped_file.h"

namespace tessera::data {

/// The likely format of a file that is neither text nor token ids.
struct ForeignFormat {
  std::string what;    ///< "a NumPy array (.npy)"
  std::string remedy;  ///< "write its numbers alone: ..."
};

/// By the magic numbers of other programs' files. `start`: the first bytes of a file.
std::optional<ForeignFormat> find_foreign_format(std::span<const std::byte> start);

/// The likely contents of a file without a known header, instead of uint16 tokens: text, another
/// program's header, or integers of 32 or 64 bits, whose upper halves are zeros. Reads at most 128
/// KiB.
std::optional<ForeignFormat> find_foreign_tokens(const MappedFile& file);

}  // namespace tessera::data
