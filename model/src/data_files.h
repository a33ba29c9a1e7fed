#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/model/dataset.h"

namespace tessera::data {

/// The files that a data set is made of, in reading order.
struct DataFiles {
  DataKind kind = DataKind::kText;  ///< kText or kTokens
  std::vector<std::string> paths;   ///< sorted bytewise
  std::vector<std::string> notes;   ///< what was left out, and why
};

/// Finds the files that DatasetOptions::path names. Throws Error{kNotFound, kIo, kConfig}.
DataFiles find_data_files(const DatasetOptions& options);

/// The files of examples that DatasetOptions::path names, in reading order; none if it names
/// something else. Throws Error{kNotFound, kIo, kConfig}.
std::vector<std::string> find_example_files(const DatasetOptions& options);

/// True for bytes without NUL and with few control characters.
bool looks_like_text(std::span<const std::byte> bytes);

}  // namespace tessera::data
