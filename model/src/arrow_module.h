#pragma once

#include <memory>
#include <string>

#include "record_file.h"

namespace tessera::data {

/// The rows of a table: .parquet, .arrow or .feather, the latter two in Arrow's format of files or
/// of streams. Columns "text", "prompt", "completion", "messages" and "tools" are the keys of a
/// record; others are left out. Parquet and what is compressed is kept in memory, other Arrow in
/// its file. By the module that Arrow's C++ library is linked to. Throws Error{kUnavailable} that
/// says what to install if that was not built, and Error{kIo, kConfig} that names the file.
std::unique_ptr<const RecordFile> open_arrow_records(const std::string& path);

/// Whether a path is of such a table, by its end.
bool is_arrow_file(const std::string& path);

}  // namespace tessera::data
