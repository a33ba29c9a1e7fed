#pragma once

#include <vector>

#include "mapped_file.h"
#include "tessera/core/named_text.h"

namespace tessera::data {

/// The identity of files, wherever they lie: their names without folders, their sizes, and a
/// hash of their content; see TokenDataset::identity. Throws Error{kIo} if one was cut short.
std::vector<NamedText> identity_of(const std::vector<const MappedFile*>& files);

}  // namespace tessera::data
