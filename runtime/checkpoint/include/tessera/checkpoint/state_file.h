#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/core/device.h"
#include "tessera/core/storage.h"
#include "tessera/sharding/training_state.h"

// Training state in the files of a checkpoint. Every rank writes one: the elements that are its own
// if all states are sharded over all axes. So what is replicated is written once, evenly by all
// that have it, and no file depends on how the state was placed.

namespace tessera {

/// Entries that are saved of a model's parameters. `stochastic_rounding`: as OptimizerOptions has
/// it.
std::vector<SavedParameter> saved_parameters(const ModelLayout& layout, const StateOptions& options,
                                             bool stochastic_rounding);

/// The pieces that `rank` writes, in the order of its file.
std::vector<SavedPiece> pieces_of_rank(const std::vector<SavedParameter>& parameters,
                                       const ModelLayout& layout, const StateOptions& options,
                                       int rank);

/// In host memory, a rank's part of a state tensor, by its name, if all axes shard it: (numel).
using HostParts = std::function<TensorView(const std::string& state_tensor)>;

/// Writes the rank's file to `folder`, and makes it durable. `parameters` as saved_parameters()
/// gives them.
SavedFile write_state(const std::vector<SavedParameter>& parameters, const ModelLayout& layout,
                      const StateOptions& options, int rank, const HostParts& parts,
                      Storage& storage, const std::string& folder);

/// The file that `rank` writes, without a state: its hashes are zeros.
SavedFile describe_file(const std::vector<SavedParameter>& parameters, const ModelLayout& layout,
                        const StateOptions& options, int rank);

/// Parts that are taken from a checkpoint.
enum class LoadedState : std::uint8_t {
  kAll,
  kValues,  ///< the fp32 values of the parameters; bf16 parameters are rounded from them
};

/// Fills the rank's state from a checkpoint's files: reads each chunk that has an element of it
/// once, and compares its hash before the elements are used. The optimizer's tensors that the
/// checkpoint has not stay as they are. Throws
/// Error{kConfig} that names the file, the chunk and the tensors where a hash does not match, and
/// Error{kIo}. Returns the bytes that were read.
std::int64_t load_state(const Manifest& manifest, const std::string& folder, TrainingState& state,
                        Stream& stream, LoadedState loaded = LoadedState::kAll);

/// Throws Error{kConfig} unless the checkpoint has every parameter of the layout with its shape,
/// and no other.
void require_same_parameters(const Manifest& manifest, const ModelLayout& layout,
                             const std::string& folder);

/// The states of a checkpoint's parameters, whole: for programs without ranks. Each chunk's hash is
/// compared before its elements are used. Used by one thread at a time.
class SavedParameters {
 public:
  /// Throws as read_manifest().
  explicit SavedParameters(std::string folder);
  ~SavedParameters();
  SavedParameters(const SavedParameters&) = delete;
  SavedParameters& operator=(const SavedParameters&) = delete;

  const Manifest& manifest() const { return manifest_; }
  /// The values of a parameter, row-major. Throws Error{kNotFound} if there is none of that name.
  std::vector<float> read(const std::string& name, const std::string& state = "parameter");
  /// The bytes of a quantised one. Throws the same.
  std::vector<std::byte> read_bytes(const std::string& name);

 private:
  class File;
  using ReceivePiece =
      std::function<void(const SavedPiece& piece, std::span<const std::byte> bytes)>;
  /// Reads the pieces of a parameter's state.
  void for_each_piece(int parameter, int state, const ReceivePiece& receive);
  std::string folder_;
  Manifest manifest_;
  std::vector<std::unique_ptr<File>> files_;  ///< those that were read from
};

/// Reads all files and compares all hashes, and their headers with the manifest; returns the bytes
/// that were read. `on_progress` is told after each chunk how many there have been.
std::int64_t verify_files(const Manifest& manifest, const std::string& folder,
                          const std::function<void(std::int64_t bytes)>& on_progress = {});

}  // namespace tessera
