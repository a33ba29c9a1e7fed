#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "settings/tokenizer_choice.h"
#include "tessera/compat/config.h"
#include "tessera/model/gpt.h"
#include "tessera/model/pretrained.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::cli {

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

 private:
  std::int64_t sequence_length_;
  bool has_starts_;
};

}  // namespace tessera::cli
