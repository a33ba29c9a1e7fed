#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/compat/config.h"
#include "tessera/model/gpt.h"
#include "tessera/model/pretrained.h"
#include "tessera/model/tokenizer.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// "gpt2-tiny, gpt2-124m (gpt2), ...".
std::string model_names();

/// Throws Error{kConfig} if no preset is called so: with the nearest name, or all of them and, if
/// the name has a number of parameters in it ("Llama-2-7b"), the flags of a GPT as large.
void check_model_name(const std::string& name);

bool is_folder(const std::string& path);
bool has_sizes_of(const GptConfig& a, const GptConfig& b);
/// The model of a preset's name or of a Hugging Face folder.
GptConfig named_model(const std::string& name);

/// The preset's name where the model has its sizes, else those: "GPT of 2 layers x 36, 2 heads".
std::string model_label(const std::string& preset, const GptConfig& config);

/// The value of --tokenizer with which bytes are tokens.
inline constexpr const char* kBytes = "bytes";

/// How text becomes tokens.
struct TokenizerChoice {
  std::optional<Tokenizer> tokenizer{};  ///< none: bytes are tokens, or `no_text` says why not
  std::string path{};                    ///< of its file
  std::string no_text{};  ///< why text cannot be read; token files can be all the same
  std::string note{};     ///< that bytes are tokens of a vocabulary for others
  /// The token that ends an example, its id as `end_token_from` has it.
  std::optional<std::int32_t> end_token{};
  std::string end_token_from{};
};

/// --tokenizer: a tokenizer.json, a folder that has one, or "bytes". Without it that of the folder
/// of --init, or of --model: whatever keeps it from being used is in `no_text`. Bytes are tokens
/// without being asked for where there are no more than 256, and of a preset, which has no folder.
/// `vocab_size`: the model's; 0: not known yet, which is the tokenizer's then. `init`: null without
/// --init. Throws Error{kConfig} if what is given cannot be used.
TokenizerChoice choose_tokenizer(const Config& config, std::int64_t vocab_size,
                                 const PretrainedGpt* init);

/// Whether the model of --init gets rows for tokens that it lacks (--resize-vocabulary): then no
/// tokenizer is too large for it.
bool resizes_vocabulary(const Config& config);

/// The file of --tokenizer, if that names a file or a folder with one; "" if not.
std::string given_tokenizer(const Config& config);

/// The GPT and the length of its samples.
struct GptChoice {
  std::string name;  ///< the preset's, or its sizes; see model_label
  GptConfig config;
  std::int64_t sequence_length = 0;
  /// Samples are packed, or an encoder's: their inputs are (2, B, L).
  bool has_starts = false;
  TokenizerChoice text{};                     ///< where there is data, or --tokenizer
  std::optional<PretrainedGpt> pretrained{};  ///< what --init names
  std::string model_folder{};                 ///< of --model, without --init; "": a preset
};

/// The preset with the sizes that were given and the tokenizer's vocabulary if none was, or the
/// model of --init; writes them and the preset's first name back into `config`. Throws
/// Error{kConfig} if the sequences are longer than the context, the vocabulary is smaller than the
/// tokenizer's, or --init has another model than the one that is given.
GptChoice choose_gpt(Config& config);
/// Opens the model of --init. Throws as open_pretrained().
PretrainedGpt open_model(const Config& config);
/// The model of --init with the adapters of --adapter. Throws as open_adapter().
PretrainedGpt open_adapter_of(const Config& config, const std::optional<PretrainedGpt>& base);

/// Takes --base-format, if it is given, for a model whose matrices are `stored` so. Writes what it
/// is into `config`. Throws Error{kConfig} if they would be quantised a second time.
void choose_base_format(Config& config, GptConfig& gpt, WeightFormat stored);
/// Says so if a model's quantised weights are read as what they stand for; "" if not.
std::string describe_decoding(const GptConfig& gpt, const PretrainedGpt& from,
                              std::string_view precision);

/// The model, with its FLOPs counted for the length of its samples.
Model make_model(const GptChoice& choice);

/// Gives a run the parameters of --init, if it has them; returns their identity, which must be the
/// same in all processes.
std::vector<NamedText> adopt_parameters(const GptChoice& choice, TrainerOptions& options);

/// Stands for a data set of which only the shapes matter.
class TokenShapes : public BatchSource {
 public:
  explicit TokenShapes(std::int64_t sequence_length, bool has_starts = false)
      : sequence_length_(sequence_length), has_starts_(has_starts) {}
  Shape input_shape(std::int64_t micro_batch) const override {
    if (has_starts_) return {2, micro_batch, sequence_length_};
    return {micro_batch, sequence_length_};
  }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t micro_batch) const override {
    return {micro_batch, sequence_length_};
  }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override;

 protected:
  std::int64_t sequence_length() const { return sequence_length_; }

 private:
  std::int64_t sequence_length_;
  bool has_starts_;
};

/// --task and --labels of a training.
std::vector<Setting> label_settings();

/// Gives the chosen model a head for labels, if --task classification asks for one: those of
/// --labels, or else those in --data. A model that has labels keeps them. Writes into `config` what
/// it is. Throws Error{kConfig} if they do not fit, or if there are none to be found.
void choose_labels(Config& config, GptChoice& choice);

/// Writes into `config` that an encoder without labels tells masked tokens. Throws Error{kConfig}
/// if --task asks a model for what it cannot learn.
void choose_task(Config& config, const GptConfig& gpt);

/// A note of labels in --data that are not learnt, where an encoder tells masked tokens although
/// nobody has said so; else "".
std::string unread_labels_note(const Config& config, const GptConfig& gpt);

}  // namespace tessera::cli
