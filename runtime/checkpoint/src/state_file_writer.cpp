#include "state_file_writer.h"

#include <algorithm>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

constexpr std::size_t kMostBuffered = std::size_t{1} << 20;

}  // namespace

std::string state_file_name(int rank) {
  const std::string digits = concat(rank);
  return concat("rank_", std::string(5 - std::min<std::size_t>(5, digits.size()), '0'), digits,
                ".safetensors");
}

std::string state_file_header(const std::vector<SavedParameter>& parameters,
                              const std::vector<SavedPiece>& pieces) {
  std::vector<SafetensorsEntry> entries;
  for (const SavedPiece& piece : pieces) {
    const DType dtype = state_of(parameters, piece).dtype;
    entries.push_back({.name = tensor_name(parameters, piece),
                       .dtype = std::string(safetensors_dtype(dtype)),
                       .shape = Shape{piece.elements.numel}});
  }
  return safetensors_header(entries, {{"format", "tessera-checkpoint"}});
}

struct StateFileWriter::Hash {
  Hash() { XXH3_64bits_reset(&state); }
  XXH3_state_t state;
};

StateFileWriter::StateFileWriter(Storage& storage, const std::string& folder, std::string name,
                                 std::string_view header, std::int64_t data_bytes)
    : name_(std::move(name)),
      bytes_(static_cast<std::int64_t>(header.size()) + data_bytes),
      file_(storage.create(concat(folder, "/", name_), bytes_)),
      hash_(std::make_unique<Hash>()) {
  append(std::as_bytes(std::span(header)));
  flush(place_);
}

StateFileWriter::~StateFileWriter() = default;

void StateFileWriter::end_chunk() {
  chunk_hashes_.push_back(XXH3_64bits_digest(&hash_->state));
  XXH3_64bits_reset(&hash_->state);
}

void StateFileWriter::append(std::span<const std::byte> bytes) {
  const auto all = bytes;
  const std::int64_t begin = place_;
  while (!bytes.empty()) {
    const auto room = static_cast<std::size_t>(kChunkBytes - place_ % kChunkBytes);
    const auto part = bytes.first(std::min(room, bytes.size()));
    XXH3_64bits_update(&hash_->state, part.data(), part.size());
    place_ += static_cast<std::int64_t>(part.size());
    bytes = bytes.subspan(part.size());
    if (place_ % kChunkBytes == 0) end_chunk();
  }
  if (small_.size() + all.size() > kMostBuffered) flush(begin);
  if (all.size() > kMostBuffered) return file_->write(begin, all);
  small_.insert(small_.end(), all.begin(), all.end());
}

void StateFileWriter::flush(std::int64_t end) {
  if (!small_.empty()) file_->write(end - static_cast<std::int64_t>(small_.size()), small_);
  small_.clear();
}

SavedFile StateFileWriter::finish(std::vector<SavedPiece> pieces) {
  require(place_ == bytes_, ErrorCode::kInternal, "'", name_, "' has ", bytes_, " bytes, and ",
          place_, " were written");
  if (place_ % kChunkBytes != 0) end_chunk();
  flush(place_);
  file_->sync();
  return {.name = name_,
          .bytes = bytes_,
          .chunk_hashes = std::move(chunk_hashes_),
          .pieces = std::move(pieces)};
}

}  // namespace tessera
