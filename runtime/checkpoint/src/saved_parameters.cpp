#include <algorithm>
#include <cstring>

#include "chunk_reader.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/error.h"

namespace tessera {

/// A file, and the chunk of it that was read last.
class SavedParameters::File {
 public:
  File(const Manifest& manifest, const SavedFile& file, const std::string& folder)
      : reader_(manifest, file, folder) {}
  void read(std::int64_t begin, std::span<std::byte> out) {
    while (!out.empty()) {
      const std::int64_t chunk = begin / kChunkBytes;
      if (chunk != chunk_) bytes_ = reader_.read(chunk);
      chunk_ = chunk;
      const auto from = static_cast<std::size_t>(begin - chunk * kChunkBytes);
      const std::size_t count = std::min(bytes_.size() - from, out.size());
      std::memcpy(out.data(), bytes_.data() + from, count);
      out = out.subspan(count);
      begin += static_cast<std::int64_t>(count);
    }
  }

 private:
  ChunkReader reader_;
  std::span<const std::byte> bytes_;
  std::int64_t chunk_ = -1;
};

SavedParameters::SavedParameters(std::string folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {
  files_.resize(manifest_.files.size());
}
SavedParameters::~SavedParameters() = default;

std::vector<float> SavedParameters::read(const std::string& name, const std::string& state) {
  const auto found = std::ranges::find(manifest_.parameters, name, &SavedParameter::name);
  require(found != manifest_.parameters.end(), ErrorCode::kNotFound, "the checkpoint '", folder_,
          "' has no parameter '", name, "'");
  const auto of = std::ranges::find(found->states, state, &SavedState::name);
  require(of != found->states.end(), ErrorCode::kNotFound, "the checkpoint '", folder_, "' has no ",
          state, " of '", name, "'");
  const auto parameter = static_cast<int>(found - manifest_.parameters.begin());
  const auto number = static_cast<int>(of - found->states.begin());
  std::vector<float> values(static_cast<std::size_t>(numel_of(*found, *of)));
  for_each_piece(parameter, number, [&](const SavedPiece& piece, std::span<const std::byte> raw) {
    std::vector<float> copy;
    std::ranges::copy(as_floats(raw, of->dtype, copy), values.begin() + piece.elements.begin);
  });
  return values;
}

std::vector<std::byte> SavedParameters::read_bytes(const std::string& name) {
  const auto found = std::ranges::find(manifest_.parameters, name, &SavedParameter::name);
  require(found != manifest_.parameters.end() && !found->states.empty() &&
              found->states.front().dtype == DType::kUInt8,
          ErrorCode::kNotFound, "the checkpoint '", folder_, "' has no quantised parameter '", name,
          "'");
  std::vector<std::byte> bytes(static_cast<std::size_t>(found->shape.numel()));
  const auto parameter = static_cast<int>(found - manifest_.parameters.begin());
  for_each_piece(parameter, 0, [&](const SavedPiece& piece, std::span<const std::byte> raw) {
    std::ranges::copy(raw, bytes.begin() + piece.elements.begin);
  });
  return bytes;
}

void SavedParameters::for_each_piece(int parameter, int state, const ReceivePiece& receive) {
  for (std::size_t f = 0; f < files_.size(); ++f) {
    const SavedFile& file = manifest_.files[f];
    std::int64_t place = data_begin(manifest_, file);
    for (const SavedPiece& piece : file.pieces) {
      const std::int64_t bytes = bytes_of(manifest_.parameters, piece);
      if (piece.parameter == parameter && piece.state == state) {
        if (files_[f] == nullptr) files_[f] = std::make_unique<File>(manifest_, file, folder_);
        std::vector<std::byte> raw(static_cast<std::size_t>(bytes));
        files_[f]->read(place, raw);
        receive(piece, raw);
      }
      place += bytes;
    }
  }
}

std::int64_t verify_files(const Manifest& manifest, const std::string& folder,
                          const std::function<void(std::int64_t)>& on_progress) {
  std::int64_t total = 0;
  for (const SavedFile& file : manifest.files) {
    ChunkReader reader(manifest, file, folder);
    for (std::size_t chunk = 0; chunk < file.chunk_hashes.size(); ++chunk) {
      total += static_cast<std::int64_t>(reader.read(static_cast<std::int64_t>(chunk)).size());
      if (on_progress) on_progress(total);
    }
    const std::string path = concat(folder, "/", file.name);
    const SafetensorsHeader header = read_safetensors_header(InputFile(path));
    std::int64_t place = data_begin(manifest, file);
    for (std::size_t i = 0; i < file.pieces.size(); ++i) {
      const SavedPiece& piece = file.pieces[i];
      const std::string name = tensor_name(manifest.parameters, piece);
      const bool same =
          header.tensors.size() == file.pieces.size() && header.tensors[i].name == name &&
          header.tensors[i].begin == place &&
          header.tensors[i].bytes() == bytes_of(manifest.parameters, piece) &&
          header.tensors[i].dtype == safetensors_dtype(state_of(manifest.parameters, piece).dtype);
      require(same, ErrorCode::kConfig, "'", path, "' has other tensors than its checkpoint's ",
              "manifest says: tensor ", i, " is not '", name, "'");
      place += bytes_of(manifest.parameters, piece);
    }
  }
  return total;
}

}  // namespace tessera
