#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "settings/tokenizer_choice.h"
#include "tessera/compat/config.h"
#include "tessera/model/chat_template.h"
#include "tessera/model/dataset.h"
#include "tessera/model/gpt.h"
#include "tessera/model/pretrained.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

/// Settings of the model and of how it reads its data.
std::vector<Setting> model_settings();
/// Settings of where the data is.
std::vector<Setting> data_settings();

/// The GPT and the length of its samples.
struct GptChoice {
  std::string name;  ///< the preset's, or its sizes; see model_label
  GptConfig config;
  std::int64_t sequence_length = 0;
  bool packing = false;                       ///< samples are packed: their inputs are (2, B, L)
  TokenizerChoice text{};                     ///< where there is data, or --tokenizer
  std::optional<PretrainedGpt> pretrained{};  ///< what --init names
  std::string model_folder{};                 ///< of --model, without --init; "": a preset
};

/// The preset with the sizes that were given and the tokenizer's vocabulary if none was, or the
/// model of --init; writes them and the preset's first name back into `config`. Throws
/// Error{kConfig} if the sequences are longer than the context, the vocabulary is smaller than the
/// tokenizer's, or --init has another model than the one that is given.
GptChoice choose_gpt(Config& config);
/// What --init names. Throws as open_pretrained().
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

/// --chat-template, or what is beside the tokenizer or in the folder of --init; nothing if there is
/// none. Its special tokens are those of the tokenizer's configuration there.
std::optional<ChatTemplateOptions> chat_template_of(const Config& config);

/// The data set, checked against the vocabulary. Throws Error that names the remedy.
TokenDataset open_dataset(const Config& config, const GptChoice& choice);
/// The steps of --epochs, if that is given: written into `config`. Throws Error{kConfig}.
void choose_steps(Config& config, const TokenDataset& dataset);
/// What to know of --epochs: that a step repeats samples. "" if there is nothing.
std::string epochs_note(const Config& config, const TokenDataset& dataset);
/// What to evaluate on, in order; nothing if --eval-data is not given.
std::optional<TokenDataset> open_evaluation(const Config& config, const GptChoice& choice);
/// As many as --eval-tokens asks for, or all.
std::int64_t evaluation_samples(const Config& config, const TokenDataset& dataset);

/// Stands for a data set of which only the shapes matter.
class TokenShapes : public BatchSource {
 public:
  explicit TokenShapes(std::int64_t sequence_length, bool packing = false)
      : sequence_length_(sequence_length), packing_(packing) {}
  Shape input_shape(std::int64_t micro_batch) const override {
    if (packing_) return {2, micro_batch, sequence_length_};
    return {micro_batch, sequence_length_};
  }
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t micro_batch) const override {
    return {micro_batch, sequence_length_};
  }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override;

 private:
  std::int64_t sequence_length_;
  bool packing_;
};

}  // namespace tessera::cli
