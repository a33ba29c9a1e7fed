#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pretrained/read_array.h"
#include "pretrained/stored_gpt.h"
#include "tessera/core/input_file.h"
#include "tessera/core/storage.h"

namespace tessera::pretrained {

/// Reads elements [first, first + values.size()) of a part; returns the bytes.
std::int64_t read_part(const InputFile& file, const Part& place, std::int64_t first,
                       std::span<float> values);
/// Writes all elements of a part.
void write_part(Storage::File& file, const Part& place, std::span<const float> values);

}  // namespace tessera::pretrained
