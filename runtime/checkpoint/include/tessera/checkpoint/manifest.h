#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/dtype.h"
#include "tessera/core/named_text.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/loss_scaler.h"
#include "tessera/sharding/histories.h"
#include "tessera/sharding/layout.h"

namespace tessera {

/// One kind of state that goes with parameters element by element: "parameter", the values that are
/// trained; "first-moment" and the like; "rounded-parameter", what bf16 passes use where it cannot
/// be had from the values by rounding to the nearest. Or one that has an element for each block of
/// the parameter's, or for each row and column.
struct SavedState {
  std::string name;
  DType dtype = DType::kFloat32;
  std::int64_t block = 1;    ///< kFactoredBlock: it has `numbers` elements
  std::int64_t numbers = 0;  ///< of rows and columns
  bool operator==(const SavedState&) const = default;
};

/// A parameter, and which states are saved of it.
struct SavedParameter {
  std::string name;
  Shape shape;
  std::vector<SavedState> states;
};

/// Elements of a parameter, in row-major order, in one state; blocks, if it is of blocks.
struct SavedPiece {
  int parameter = 0;  ///< index in Manifest::parameters
  int state = 0;      ///< index in its states
  Range elements;
  bool operator==(const SavedPiece&) const = default;
};

/// One file: safetensors, with a tensor (numel) of each piece, in their order, and nothing between
/// them. A tensor is named as the parameter, and "NAME:STATE" in states other than "parameter".
struct SavedFile {
  std::string name;  ///< within the checkpoint's folder
  std::int64_t bytes = 0;
  /// XXH3 (64 bits) of each kChunkBytes of the file; the last one is shorter.
  std::vector<std::uint64_t> chunk_hashes;
  std::vector<SavedPiece> pieces;
};

/// The lowest loss of a run's evaluations so far.
struct BestEvaluation {
  double loss = 0.0;      ///< finite
  std::int64_t step = 0;  ///< finished steps then
  /// Evaluations since the last that was better by as much as the run asks for.
  std::int64_t without_improvement = 0;
  bool operator==(const BestEvaluation&) const = default;
};

/// Multiple of every element's size, so that no element lies in two.
inline constexpr std::int64_t kChunkBytes = std::int64_t{16} << 20;

/// The content of a checkpoint, and where its elements lie. Written last: a folder without it is no
/// checkpoint.
struct Manifest {
  std::int64_t step = 0;     ///< optimizer steps done
  std::int64_t samples = 0;  ///< of the run's endless sequence that were read: where it goes on
  /// Set by a run that scales its loss, or has skipped steps; its scale is above 0 and finite.
  std::optional<LossScalerState> loss_scaler{};
  std::optional<BestEvaluation> best{};  ///< of a run that compares its evaluations
  /// The histories of a run with delayed scaling, in order of names, without the zeros that each
  /// begins with.
  std::vector<Fp8History> fp8_histories{};
  // The rest of what the next step depends on; each must be the same in a run that goes on, or be
  // changed on purpose.
  std::vector<NamedText> model;      ///< what it was made of
  std::vector<NamedText> data;       ///< BatchSource::identity or a hash of samples; the seed
  std::vector<NamedText> optimizer;  ///< name, hyperparameters, schedule of the learning rate
  std::vector<NamedText> run;        ///< what does not change its bits: ranks, strategy, ...
  std::vector<SavedParameter> parameters;
  std::vector<SavedFile> files;
};

inline constexpr std::string_view kManifestName = "manifest.json";

std::uint64_t hash_of(std::string_view bytes);

/// The state that a piece is of.
const SavedState& state_of(const std::vector<SavedParameter>& parameters, const SavedPiece& piece);
/// Elements that a state has of a parameter.
std::int64_t numel_of(const SavedParameter& parameter, const SavedState& state);
/// The tensor of a piece in its file.
std::string tensor_name(const std::vector<SavedParameter>& parameters, const SavedPiece& piece);
/// Bytes of a piece's elements, and of all of them.
std::int64_t bytes_of(const std::vector<SavedParameter>& parameters, const SavedPiece& piece);
std::int64_t bytes_of(const std::vector<SavedParameter>& parameters,
                      const std::vector<SavedPiece>& pieces);

/// Histories as a text of a manifest has them, and back.
std::string to_text(const std::vector<Fp8History>& histories);
std::vector<Fp8History> parse_histories(std::string_view text);

/// JSON, with a hash of itself.
std::string to_text(const Manifest& manifest);
/// Throws Error{kConfig} that names `path` and what is wrong: another format or a newer version,
/// a hash that does not match, a file whose size is not what its pieces need, an element that no
/// file has or two have.
Manifest parse_manifest(std::string_view text, const std::string& path);
/// Reads the manifest of the checkpoint in a folder. Throws Error{kNotFound} if there is none.
Manifest read_manifest(const std::string& folder);

}  // namespace tessera
