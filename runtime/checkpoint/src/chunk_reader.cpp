#include "chunk_reader.h"

#include <algorithm>
#include <cstring>

#include "tessera/core/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

/// "h.0.ln_1.weight, h.0.ln_1.bias and 12 more": what a chunk has.
std::string tensors_in_chunk(const Manifest& manifest, const SavedFile& file, std::int64_t chunk) {
  std::int64_t place = data_begin(manifest, file);
  std::string text = chunk == 0 ? "its header" : "";
  int count = 0;
  for (const SavedPiece& piece : file.pieces) {
    const std::int64_t end = place + bytes_of(manifest.parameters, piece);
    if (place < (chunk + 1) * kChunkBytes && end > chunk * kChunkBytes && ++count <= 3) {
      text += concat(text.empty() ? "" : ", ", tensor_name(manifest.parameters, piece));
    }
    place = end;
  }
  return count > 3 ? concat(text, " and ", count - 3, " more") : text;
}

}  // namespace

std::int64_t data_begin(const Manifest& manifest, const SavedFile& file) {
  return file.bytes - bytes_of(manifest.parameters, file.pieces);
}

std::span<const float> as_floats(std::span<const std::byte> bytes, DType dtype,
                                 std::vector<float>& copy) {
  const std::size_t count = bytes.size() / size_of(dtype);
  if (dtype == DType::kFloat32) return {reinterpret_cast<const float*>(bytes.data()), count};
  require(is_compute_dtype(dtype), ErrorCode::kConfig, "elements are ", to_string(dtype),
          ", not fp32, bf16 or fp16");
  copy.resize(count);
  const auto widen = [&](auto value) {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      copy[i] = static_cast<float>(value);
    }
  };
  dtype == DType::kFloat16 ? widen(float16()) : widen(bfloat16());
  return copy;
}

ChunkReader::ChunkReader(const Manifest& manifest, const SavedFile& file, const std::string& folder)
    : manifest_(manifest), file_(file), input_(concat(folder, "/", file.name)) {
  require(input_.size() == file.bytes, ErrorCode::kConfig, "'", input_.path(), "' has ",
          input_.size(), " bytes, not the ", file.bytes,
          " that its checkpoint's manifest says: the file was cut or changed");
}

std::span<const std::byte> ChunkReader::read(std::int64_t chunk) {
  const std::int64_t begin = chunk * kChunkBytes;
  buffer_.resize(static_cast<std::size_t>(std::min(kChunkBytes, file_.bytes - begin)));
  try {
    input_.read(begin, buffer_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    fail(ErrorCode::kConfig, "'", input_.path(), "' is damaged: chunk ", chunk, " with ",
         tensors_in_chunk(manifest_, file_, chunk), " cannot be read: ", error.what());
  }
  require(XXH3_64bits(buffer_.data(), buffer_.size()) ==
              file_.chunk_hashes[static_cast<std::size_t>(chunk)],
          ErrorCode::kConfig, "'", input_.path(), "' is damaged: chunk ", chunk, " (bytes ", begin,
          " to ", begin + static_cast<std::int64_t>(buffer_.size()) - 1, ", with ",
          tensors_in_chunk(manifest_, file_, chunk),
          ") does not match its hash; take another checkpoint");
  return buffer_;
}

}  // namespace tessera
