#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/state_file.h"
#include "tessera/core/named_text.h"
#include "tessera/model/companion_files.h"
#include "tessera/model/gpt.h"
#include "tessera/model/gpt_sampler.h"

namespace tessera {

/// A GPT's parameters in files, of ours or another program (hugging_face.h, llm_c.h), by our names
/// and in our shapes. The files stay open and are read when a parameter is asked for. Copies share
/// them. Thread-safe.
class PretrainedGpt {
 public:
  struct Files;
  explicit PretrainedGpt(std::shared_ptr<const Files> files) : files_(std::move(files)) {}

  /// The folder or file.
  const std::string& path() const;
  /// Its dropout is 0: a folder says with which one it was trained, not with which to go on.
  const GptConfig& config() const;
  /// In a sentence's end: "a Hugging Face folder: 28 tensors, F32".
  const std::string& format() const;
  /// How bitsandbytes has quantised the matrices of its blocks; kNone: it has not. config() has no
  /// base_format then: adapters that are added give it one. Everything but load() into a state of
  /// that base_format reads the weights that codes and scales stand for.
  WeightFormat stored_format() const;
  /// The matrices among those that are not quantised.
  std::vector<std::string> unquantized() const;
  /// Whether it is a checkpoint of ours.
  bool is_checkpoint() const;
  /// The dtype of most of its elements that are not quantised; of a checkpoint, which has fp32
  /// masters, that of the folder that its run began with. fp32 if there is none.
  DType dtype() const;
  /// The files beside the weights of a Hugging Face folder, or of a checkpoint of it; a file of
  /// llm.c has none. Its config.json names dtype(). Throws Error{kIo}.
  CompanionFiles companion_files() const;
  /// Sizes and a hash of the files' content, for processes that must all start from the same; see
  /// TokenDataset::identity.
  std::vector<NamedText> identity() const;

  /// Writes a parameter's values in row-major order, in fp32; beyond them it takes a few MB.
  /// Throws Error{kNotFound} on another name, Error{kInvalidArgument} on a wrong number of values
  /// and Error{kIo} if a file cannot be read any more.
  void read(std::string_view name, std::span<float> values) const;

  /// Fills a rank's parameters and master weights, for TrainerOptions::initial_parameters. Reads
  /// the elements that the rank has, in blocks of 16 MiB, and returns the bytes that were read.
  /// Read besides: of a transposed matrix (Conv1D in a Hugging Face folder) the rest of a block's
  /// first and last row; of a checkpoint the rest of each chunk, for its hash. What is replicated
  /// is read whole by every rank. Throws as read(), and Error{kConfig, kNotFound} on a state of
  /// another model.
  std::int64_t load(TrainingState& state, Stream& stream) const;

  /// For GptSampler.
  ReadParameter reader() const;
  /// For Session::set_parameters. Keeps one parameter in fp32 for each thread that calls it: a
  /// result is valid until the same thread's next call.
  std::function<std::span<const float>(const std::string& name)> values() const;

  /// For those who add to it.
  const Files& files() const { return *files_; }

 private:
  std::shared_ptr<const Files> files_;
};

/// A checkpoint of ours, or the newest of a folder of them: the parameters alone. Throws
/// Error{kNotFound, kIo, kConfig}; read() also throws Error{kConfig} where a hash does not match.
PretrainedGpt open_checkpoint(const std::string& folder);

/// Opens what `path` is: a folder as open_checkpoint or open_hugging_face, a file as open_llm_c.
/// Throws Error{kNotFound, kIo, kConfig} that names the file, the key or tensor, and the remedy.
PretrainedGpt open_pretrained(const std::string& path);

/// Writes a GPT's parameters as another program reads them, one by one in any order, so that they
/// need not be in memory together. Everything is written under temporary names beside the target;
/// finish() makes it durable and gives it its name, and without finish() it is removed.
class PretrainedWriter {
 public:
  struct Target;
  explicit PretrainedWriter(std::unique_ptr<Target> target);
  PretrainedWriter(PretrainedWriter&&) noexcept;
  ~PretrainedWriter();

  /// A parameter of make_gpt, by our name and in our row-major order; one that the format leaves
  /// out, as an adapter's folder does with frozen ones, is passed over. Throws Error{kNotFound} on
  /// another name, Error{kInvalidArgument} on a wrong number of values or a second time, and
  /// Error{kIo}.
  void write(std::string_view name, std::span<const float> values);
  /// Instead: codes and scales of a parameter that `from` has as the target is to have them. False
  /// if it has not, and then nothing is done.
  bool copy(std::string_view name, const PretrainedGpt& from);
  /// Throws Error{kInvalidArgument} naming a parameter that was not written, and Error{kIo}.
  void finish();

 private:
  std::unique_ptr<Target> target_;
};

}  // namespace tessera
