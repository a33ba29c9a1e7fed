#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/input_file.h"
#include "tessera/core/tensor.h"

namespace tessera {

// A safetensors file is a little-endian uint64 N, N bytes of JSON, and the tensors, which follow
// each other without holes to the end of the file: row-major, little-endian.

/// A tensor of a safetensors file.
struct SafetensorsEntry {
  std::string name{};
  std::string dtype{};     ///< by the format's names: "F32", "BF16", "F8_E4M3", ...
  Shape shape{};           ///< in elements
  std::int64_t begin = 0;  ///< offsets in the file, not in its data
  std::int64_t end = 0;
  std::int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors{};  ///< in the order of their bytes
  std::map<std::string, std::string> metadata{};
};

/// Reads and checks the header; the tensors are not touched. Memory is a small multiple of the
/// header's size, which is below 100 MB and below the file's.
///
/// Stricter than Hugging Face's reader, so that no two readers see different tensors in one file.
/// Refused besides what that one refuses: duplicate names and keys of any kind, keys that the
/// format does not have, tensors that are no JSON objects, shapes whose dimensions other than 0
/// multiply to over 2^58, over 5 dimensions, names that are empty, over 1,024 bytes long or have
/// control characters, and over a million tensors. Throws Error{kConfig} on a header that is
/// malformed, Error{kIo} on a file that is too short or too long for it; texts name the file, the
/// tensor and a remedy.
SafetensorsHeader read_safetensors_header(const InputFile& file);

/// The beginning of a file, up to the first tensor's bytes: length and JSON, padded with spaces to
/// a multiple of 8 as Hugging Face's writer does. Tensors lie in the order given; sets their
/// `begin` and `end`. If wider dtypes come first, each tensor is aligned to its element.
/// Throws Error{kInvalidArgument} on what the reader would refuse.
std::string safetensors_header(std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata = {});

/// Bits of an element; 0: there is no such dtype.
int safetensors_dtype_bits(std::string_view dtype);
/// "F32" for fp32.
std::string_view safetensors_dtype(DType dtype);

}  // namespace tessera
