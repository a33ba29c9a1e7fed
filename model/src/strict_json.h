#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::data {

/// JSON of another program. Stricter than nlohmann's own reading, which passes over keys that
/// repeat, a byte order mark and whatever follows a NUL: those are refused, and so are values
/// nested too deep. Throws Error{kConfig} that names the file `path`, and
/// `remedy` if it is not JSON.
nlohmann::json parse_strict_json(std::string_view text, const std::string& path,
                                 std::string_view remedy = "copy or download it again");

/// Reads a file of at most `most_bytes`. Throws Error{kNotFound, kIo, kConfig}.
nlohmann::json read_strict_json(const std::string& path, std::int64_t most_bytes);

}  // namespace tessera::data
