#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/core/input_file.h"

namespace tessera::pretrained {

inline std::size_t as_size(std::int64_t number) { return static_cast<std::size_t>(number); }

/// `count` numbers at an offset of a file.
template <typename T>
std::vector<T> read_array(const InputFile& file, std::int64_t offset, std::int64_t count) {
  std::vector<T> values(as_size(count));
  file.read(offset, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace tessera::pretrained
