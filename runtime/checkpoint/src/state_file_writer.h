#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/core/storage.h"

namespace tessera {

/// "rank_00003.safetensors".
std::string state_file_name(int rank);

/// The file up to its data.
std::string state_file_header(const std::vector<SavedParameter>& parameters,
                              const std::vector<SavedPiece>& pieces);

/// Writes a file of a checkpoint from its beginning to its end, and hashes its chunks on the way.
class StateFileWriter {
 public:
  /// Creates the file, of the header and `data_bytes` behind it.
  StateFileWriter(Storage& storage, const std::string& folder, std::string name,
                  std::string_view header, std::int64_t data_bytes);
  ~StateFileWriter();
  StateFileWriter(const StateFileWriter&) = delete;
  StateFileWriter& operator=(const StateFileWriter&) = delete;

  void append(std::span<const std::byte> bytes);
  /// Makes it durable, once all its bytes are there.
  SavedFile finish(std::vector<SavedPiece> pieces);

 private:
  struct Hash;
  void end_chunk();
  /// Writes what is buffered, which ends at `end` in the file.
  void flush(std::int64_t end);

  std::string name_;
  std::int64_t bytes_;
  std::unique_ptr<Storage::File> file_;
  std::int64_t place_ = 0;        ///< up to which it has been given
  std::vector<std::byte> small_;  ///< what is given in small parts is written in larger ones
  std::unique_ptr<Hash> hash_;    ///< of the chunk that is not whole yet
  std::vector<std::uint64_t> chunk_hashes_;
};

}  // namespace tessera
