#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/model/dataset.h"
#include "tessera/model/generate.h"

namespace tessera::cli {

/// Settings of the text that the trained model makes up.
std::vector<Setting> sample_settings();

/// How many tokens to make up; fills in the default, which depends on the model and the data.
std::int64_t sample_tokens(Config& config, const Model& model, const TokenDataset& dataset);

/// Why nothing is made up although nobody asked for that: the last loss is that of a model without
/// words. Empty if there is no reason, and where --sample-tokens asks for a sample.
std::string why_no_sample(const Config& config, const GptChoice& choice, double last_loss);

/// Whether a prompt has the special tokens in front that its tokenizer gives a text, such as Llama
/// 3's "<|begin_of_text|>": published models have seen them, a stream of training data has none. A
/// chat's text has its own, and is not shown.
enum class PromptKind : std::uint8_t { kPlain, kWithSpecialTokens, kChat };

/// --prompt as tokens. `tokenizer`: null where bytes are tokens.
std::vector<std::int32_t> prompt_tokens(const Config& config, const Tokenizer* tokenizer,
                                        PromptKind kind);

/// The options of --temperature, --top-k, --top-p and --seed.
GenerateOptions sampling_options(const Config& config);

/// A text that a model has written.
struct Continuation {
  std::vector<std::int32_t> tokens{};
  bool has_ended = false;  ///< by a token that ends a text, which is not among them
};
/// Writes what the model continues `prompt` with, token by token and safe to show, until there are
/// as many as asked for, one of `ends` or the tokenizer's end-of-text token comes, or `go_on` says
/// no.
Continuation write_continuation(const GenerateOptions& options,
                                std::span<const std::int32_t> prompt, const NextLogits& next_logits,
                                const Tokenizer* tokenizer, std::span<const std::int32_t> ends,
                                std::ostream& out, const std::function<bool()>& go_on);

/// In tokens; see GenerateOptions.
struct TextLength {
  std::int64_t tokens = 0, context = 0;
};
/// Writes --prompt and what the model continues it with, as write_continuation(). Draws by the
/// settings of sample_settings() and --seed.
void write_text(const Config& config, const NextLogits& next_logits, const Tokenizer* tokenizer,
                PromptKind kind, std::span<const std::int32_t> ends, const TextLength& length,
                std::ostream& out, const std::function<bool()>& go_on);

/// Continues the prompt; gives the text with the prompt, safe to show. `go_on` is asked
/// after each token whether to go on. `parameters`: values by name.
std::string make_sample(const Config& config, const GptChoice& choice, int threads,
                        const std::map<std::string, std::vector<float>>& parameters,
                        const std::function<bool()>& go_on);

}  // namespace tessera::cli
