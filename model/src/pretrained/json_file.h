#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::pretrained {

/// A JSON file of another program. Stricter than nlohmann's own reading, which passes over keys
/// that repeat, a byte order mark and whatever follows a NUL: those are refused, and so are files
/// over `most_bytes` and values nested too deep. Throws Error{kNotFound, kIo, kConfig} that names
/// the file.
nlohmann::json read_json_file(const std::string& path, std::int64_t most_bytes);

}  // namespace tessera::pretrained
