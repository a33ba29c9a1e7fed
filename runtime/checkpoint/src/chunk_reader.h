#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/core/input_file.h"

namespace tessera {

/// Where a file's elements begin.
std::int64_t data_begin(const Manifest& manifest, const SavedFile& file);

/// Elements as fp32, exactly: `bytes` themselves, which are aligned, or in `copy`.
std::span<const float> as_floats(std::span<const std::byte> bytes, DType dtype,
                                 std::vector<float>& copy);

/// Reads chunks of one file, and compares their hashes.
class ChunkReader {
 public:
  /// Throws Error{kConfig} unless the file has its size. All outlive the reader but `folder`.
  ChunkReader(const Manifest& manifest, const SavedFile& file, const std::string& folder);

  /// Valid until the next call. Throws Error{kConfig} that names file, chunk and tensors if it
  /// cannot be read or does not match its hash.
  std::span<const std::byte> read(std::int64_t chunk);

 private:
  const Manifest& manifest_;
  const SavedFile& file_;
  InputFile input_;
  std::vector<std::byte> buffer_;
};

}  // namespace tessera
