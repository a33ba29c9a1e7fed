#include "generate/sample.h"

#include <algorithm>
#include <optional>
#include <ostream>
#include <sstream>
#include <utility>

#include "output/terminal.h"
#include "tessera/core/error.h"
#include "tessera/model/generate.h"
#include "tessera/model/gpt_sampler.h"
#include "tessera/model/hugging_face.h"

namespace tessera::cli {
namespace {

// Every token of a sample runs the model once: by default only where that takes seconds.
constexpr std::int64_t kSmallModel = 20'000'000;
constexpr std::int64_t kDefaultTokens = 200;
// The loss per byte at which a model puts short words together. English whose letters are drawn by
// their frequency has about 3.
constexpr double kLossWithWords = 2.0;

void check_above_zero(const nlohmann::json& value) {
  require(value.get<double>() > 0.0, ErrorCode::kConfig, value.dump(),
          " is out of range; it must be above 0 and at most 1");
}

}  // namespace

std::vector<Setting> sample_settings() {
  using enum SettingType;
  return in_group(
      "Sample",
      {
          {.name = "sample_tokens",
           .type = kInteger,
           .help = "length of the text that the trained model makes up; 0: none [200 for a "
                   "model of up to 20 M parameters, if data is text or a tokenizer is given]",
           .minimum = 0,
           .maximum = 1 << 20},
          {.name = "prompt",
           .fallback = "\n",
           .help = "the text that the sample continues",
           .must_agree = MustAgree::kNone},
          {.name = "temperature",
           .type = kNumber,
           .fallback = 0.8,
           .help = "divides the logits; 0 takes the likeliest token",
           .minimum = 0,
           .maximum = 100,
           .must_agree = MustAgree::kNone},
          {.name = "top_k",
           .type = kInteger,
           .fallback = 0,
           .help = "draw from the k likeliest tokens; 0: from all",
           .minimum = 0,
           .maximum = 1 << 24,
           .must_agree = MustAgree::kNone},
          {.name = "top_p",
           .type = kNumber,
           .fallback = 1.0,
           .help =
               "draw from the fewest likeliest tokens whose probabilities sum to this; 1: from all",
           .minimum = 0,
           .maximum = 1,
           .check = check_above_zero,
           .must_agree = MustAgree::kNone},
      });
}

std::int64_t sample_tokens(Config& config, const Model& model, const TokenDataset& dataset) {
  if (!dataset.options().labels.empty() || dataset.options().masking) {
    require(config.is_null("sample_tokens") || config.get<std::int64_t>("sample_tokens") == 0,
            ErrorCode::kConfig,
            "--sample-tokens is for models that write text, and this one tells ",
            dataset.options().masking ? "masked tokens" : "labels", "; leave it out");
    config.set_effective("sample_tokens", 0);
    return 0;
  }
  const bool has_words = dataset.kind() != DataKind::kTokens || dataset.options().tokenizer;
  if (config.is_null("sample_tokens")) {
    const bool small = parameter_count(model) <= kSmallModel;
    config.set_effective("sample_tokens", has_words && small ? kDefaultTokens : 0);
  }
  const auto tokens = config.get<std::int64_t>("sample_tokens");
  require(tokens == 0 || has_words, ErrorCode::kConfig,
          "--sample-tokens needs text as data, or a tokenizer: what the ids of a token file mean "
          "is not "
          "known here; give --tokenizer FILE or --sample-tokens 0");
  require(tokens == 0 || !config.get<std::string>("prompt").empty(), ErrorCode::kConfig,
          "--prompt is empty; a sample begins with at least one character");
  return tokens;
}

std::string why_no_sample(const Config& config, const GptChoice& choice, double last_loss) {
  // A tokenizer's tokens are words already.
  if (config.given("sample_tokens")) return "";
  if (choice.pretrained && !config.given("prompt")) {
    return "left out: a fine-tune continues what it was trained to continue;\n          give it a "
           "--prompt, or ask it with 'tessera generate'";
  }
  if (choice.text.tokenizer) return "";
  if (last_loss <= kLossWithWords) return "";
  return concat("left out: at a loss of ", fixed(last_loss, 2),
                " per byte a model writes no words yet (below ", fixed(kLossWithWords, 1),
                " it\n          does); train longer, or see it with --sample-tokens ",
                config.get<std::int64_t>("sample_tokens"));
}

namespace {

/// Shows tokens as they come. Of bytes those of a character that is not whole yet wait.
class TextStream {
 public:
  TextStream(const Tokenizer* tokenizer, std::ostream& out) : out_(out) {
    if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
  }
  void add(std::int32_t token) {
    constexpr std::int32_t kAscii = 0x80, kLead = 0xc0;
    constexpr std::size_t kLongest = 4;
    if (decoder_) return show(to_byte_tokens(decoder_->add(token)));
    if (token >= kLead) flush();
    waiting_.push_back(token);
    if (token < kAscii || waiting_.size() >= kLongest) flush();
  }
  void finish() {
    if (decoder_) show(to_byte_tokens(decoder_->finish()));
    flush();
  }

 private:
  void flush() { show(std::exchange(waiting_, {})); }
  void show(const std::vector<std::int32_t>& bytes) {
    if (!bytes.empty()) out_ << printable(bytes) << std::flush;
  }

  std::ostream& out_;
  std::optional<TokenDecoder> decoder_;
  std::vector<std::int32_t> waiting_;
};

}  // namespace

std::vector<std::int32_t> prompt_tokens(const Config& config, const Tokenizer* tokenizer,
                                        PromptKind kind) {
  const auto text = config.get<std::string>("prompt");
  if (tokenizer == nullptr) return to_byte_tokens(text);
  return tokenizer->encode(text, kind == PromptKind::kWithSpecialTokens);
}

GenerateOptions sampling_options(const Config& config) {
  return {.temperature = config.get<float>("temperature"),
          .top_k = config.get<int>("top_k"),
          .top_p = config.get<float>("top_p"),
          .seed = config.get<std::uint64_t>("seed")};
}

namespace {

/// Adds what follows `prompt` to the stream, and returns it.
Continuation continue_in(TextStream& stream, const GenerateOptions& options,
                         std::span<const std::int32_t> prompt, const NextLogits& next_logits,
                         const Tokenizer* tokenizer, std::span<const std::int32_t> ends,
                         const std::function<bool()>& go_on) {
  Continuation text;
  generate(options, prompt, next_logits, [&](std::int32_t token) {
    text.has_ended = (tokenizer != nullptr && token == tokenizer->end_of_text()) ||
                     std::ranges::find(ends, token) != ends.end();
    if (text.has_ended) return false;
    text.tokens.push_back(token);
    stream.add(token);
    return go_on();
  });
  stream.finish();
  return text;
}

}  // namespace

Continuation write_continuation(const GenerateOptions& options,
                                std::span<const std::int32_t> prompt, const NextLogits& next_logits,
                                const Tokenizer* tokenizer, std::span<const std::int32_t> ends,
                                std::ostream& out, const std::function<bool()>& go_on) {
  TextStream stream(tokenizer, out);
  return continue_in(stream, options, prompt, next_logits, tokenizer, ends, go_on);
}

void write_text(const Config& config, const NextLogits& next_logits, const Tokenizer* tokenizer,
                PromptKind kind, std::span<const std::int32_t> ends, const TextLength& length,
                std::ostream& out, const std::function<bool()>& go_on) {
  GenerateOptions options = sampling_options(config);
  options.tokens = length.tokens;
  options.context_length = length.context;
  const std::vector<std::int32_t> prompt = prompt_tokens(config, tokenizer, kind);
  TextStream stream(tokenizer, out);
  if (kind != PromptKind::kChat) {
    for (const std::int32_t token : prompt_tokens(config, tokenizer, PromptKind::kPlain)) {
      stream.add(token);
    }
  }
  continue_in(stream, options, prompt, next_logits, tokenizer, ends, go_on);
}

std::string make_sample(const Config& config, const GptChoice& choice, int threads,
                        const std::map<std::string, std::vector<float>>& parameters,
                        const std::function<bool()>& go_on) {
  GptSampler sampler(choice.config, read_from(parameters), {.threads = threads});
  const auto next_logits = [&](std::span<const std::int32_t> context) {
    return sampler.next_logits(context);
  };
  std::vector<std::int32_t> ends;
  if (choice.pretrained) ends = end_tokens_of(choice.pretrained->path());
  if (choice.text.end_token) ends.push_back(*choice.text.end_token);
  std::ostringstream text;
  // Positions beyond were never trained.
  write_text(
      config, next_logits, choice.text.tokenizer ? &*choice.text.tokenizer : nullptr,
      PromptKind::kPlain, ends,
      {.tokens = config.get<std::int64_t>("sample_tokens"), .context = choice.sequence_length},
      text, go_on);
  return text.str();
}

}  // namespace tessera::cli
