#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/checkpoint/safetensors.h"

namespace tessera::safetensors {

inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // by the format
inline constexpr std::size_t kMostTensors = 1'000'000;
inline constexpr std::size_t kLongestName = 1024;
inline constexpr std::string_view kMetadata = "__metadata__";
inline constexpr const char* kFetchAgain = "copy or download it again";

/// Parses the JSON. The result's offsets count from the start of the data, and each tensor's fit
/// its shape; nothing is known of them together, nor of names that repeat.
SafetensorsHeader parse_header(const std::string& path, const std::string& text);

/// The fault in the name of a tensor; "" if there is none.
std::string problem_of(std::string_view name);

/// Bytes that a tensor of this dtype and shape takes. Throws Error{kInvalidArgument} that says what
/// is wrong, without the tensor's name.
std::int64_t bytes_of(const SafetensorsEntry& tensor);

/// A name of a file's, in quotes, safe to show: anything may be in it.
std::string shown(std::string_view name);

}  // namespace tessera::safetensors
