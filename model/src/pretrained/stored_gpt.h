#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/derived_parameters.h"
#include "prompt_encoder.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/input_file.h"
#include "tessera/core/storage.h"
#include "tessera/model/pretrained.h"

namespace tessera {

namespace pretrained {

/// How a file stores an element.
enum class Format : std::uint8_t { kFloat32, kFloat16, kBFloat16 };

/// A byte of one of several files.
struct Location {
  std::size_t file = 0;
  std::int64_t offset = 0;
};

/// The tensors beside a tensor of codes.
struct StoredScales {
  WeightFormat format = WeightFormat::kNone;  ///< kNone: the tensor has values
  Location scales{};                          ///< fp32, or their codes
  Location groups{};                          ///< where scales have codes: fp32
  float mean = 0.0F;                          ///< the same
  // Where more is to be written: offsets.
  std::int64_t description = 0;
  std::int64_t table = 0;
  std::int64_t map = 0;
};

/// A tensor in a file: some of a parameter's rows.
struct Part {
  Shape shape;              ///< ours
  std::size_t file = 0;     ///< index
  std::int64_t offset = 0;  ///< of its first byte
  Format format = Format::kFloat32;
  bool transposed = false;  ///< a matrix whose columns are our rows
  StoredScales quantized{};
};

/// A parameter in files: parts that follow each other along the first dimension, and new rows.
struct Place {
  Shape shape;
  std::vector<Part> parts{};
  WeightFormat format = WeightFormat::kNone;  ///< in a checkpoint
  std::vector<std::int64_t> joined{};         ///< the same: ParameterSpec::joined
  std::vector<float> new_row{};               ///< each row behind the parts; empty: there are none
};
using Places = std::map<std::string, Place, std::less<>>;

std::int64_t size_of(Format format);

/// Whether Hugging Face's Conv1D has this parameter, whose matrix is (inputs, outputs).
bool is_conv1d(std::string_view name);

/// A folder's path without slashes behind it, so that a name beside it can be made.
std::string without_slash(std::string path);

/// Refuses a target that is there.
void require_absent(const std::string& path);

/// Whether it is a matrix of a block, which bitsandbytes may quantise.
bool is_block_matrix(const ParameterSpec& spec);

/// The parameters of all layers.
std::vector<ParameterSpec> parameters_of(const GptConfig& config);

/// The shape of a part's tensor.
Shape stored_shape(const Part& part);

/// Where the part lies, if the tensor is what the folder's `config_file` says; else Error{kConfig}.
/// `file`: its index, for Part; `path`: its path, for errors.
Part found_part(Part part, std::size_t file, const SafetensorsEntry& entry, const std::string& path,
                std::string_view config_file);

}  // namespace pretrained

struct PretrainedGpt::Files {
  std::string path;
  std::string format;
  GptConfig config;
  std::vector<InputFile> files;
  pretrained::Places places;
  /// The format of the matrices of blocks; single ones may be stored otherwise.
  WeightFormat stored_format = WeightFormat::kNone;
  /// Adapters that are in no file: they start as a new model's do.
  std::set<std::string, std::less<>> fresh{};
  /// Derives values of adapters from the base's weights; null: there are none.
  std::unique_ptr<adapter::DerivedParameters> derived{};
  /// Instead of `files`: one of our own, whose reader is one thread's at a time.
  std::unique_ptr<SavedParameters> checkpoint{};
  mutable std::mutex mutex{};
};

namespace pretrained {

/// Elements of a parameter from `first` on, of a base without adapters that is no checkpoint.
void read_base(const PretrainedGpt& base, std::string_view name, std::int64_t first,
               std::span<float> values);

/// Gives the configuration of a model that gets adapters the format in which `files` have it.
void keep_stored_format(PretrainedGpt::Files& files);

}  // namespace pretrained

struct PretrainedWriter::Target {
  Storage& storage;
  std::string path;
  std::string temporary;  ///< of the same kind, file or folder
  std::unique_ptr<Storage::File> file;
  bool is_folder = false;
  pretrained::Places places;  ///< Part::file is not used
  /// Parameters of the model that the target has no place for, and does not need.
  std::set<std::string, std::less<>> left_out{};
  std::set<std::string, std::less<>> missing{};
  /// Makes the tensors of the file of parameters that have none there.
  std::unique_ptr<gpt::PromptFold> fold{};
  bool finished = false;
};

}  // namespace tessera
