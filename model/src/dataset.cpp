#include "tessera/model/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "data_files.h"
#include "example_source.h"
#include "hidden_tokens.h"
#include "tessera/core/error.h"
#include "token_stream.h"

namespace tessera {
namespace {

constexpr std::array kKinds{DataKind::kAuto, DataKind::kText, DataKind::kTokens,
                            DataKind::kExamples};

/// How much of `all` is the training part, which comes first.
std::int64_t training_part(const DatasetOptions& options, std::int64_t all) {
  const double held_out = std::round(options.validation_fraction * static_cast<double>(all));
  return all - std::min(static_cast<std::int64_t>(held_out), all);
}

/// How many tokens of a stream a sample does not share with the next.
std::int64_t tokens_of_stream(const DatasetOptions& options) {
  if (!options.masking) return options.sequence_length;
  return options.sequence_length - std::ssize(options.masking->before) -
         std::ssize(options.masking->after);
}

void check_options(const DatasetOptions& options) {
  require(options.sequence_length > 0, ErrorCode::kConfig, "sequence length ",
          options.sequence_length, " is not positive");
  require(options.validation_fraction >= 0.0 && options.validation_fraction < 1.0,
          ErrorCode::kConfig, "validation fraction ", options.validation_fraction,
          " is not in [0, 1)");
  require(options.vocab_size >= 0, ErrorCode::kConfig, "vocabulary of ", options.vocab_size,
          " tokens is negative");
  if (!options.masking) return;
  require(options.labels.empty(), ErrorCode::kInvalidArgument,
          "a sample's targets are labels or hidden tokens, not both");
  const double probability = options.masking->probability;
  require(probability > 0.0 && probability < 1.0, ErrorCode::kConfig,
          "tokens are hidden with "
          "probability ",
          probability, ", which is not between 0 and 1");
  std::vector<std::int32_t> put = options.masking->before;
  put.insert(put.end(), options.masking->after.begin(), options.masking->after.end());
  put.push_back(options.masking->mask_token);
  require(options.vocab_size == 0 || (std::ranges::max(put) < options.vocab_size &&
                                      options.masking->vocab_size <= options.vocab_size),
          ErrorCode::kConfig, "tokens are hidden behind others of a vocabulary of ",
          options.masking->vocab_size, ", and the model's is ", options.vocab_size,
          "; give the model's tokenizer");
  require(tokens_of_stream(options) > 0, ErrorCode::kConfig, "a sequence length of ",
          options.sequence_length, " has no room between the ",
          options.sequence_length - tokens_of_stream(options), " tokens around a sample; raise it");
}

/// Tokens that a sample of a stream shares with the next: its last target, but of masks none.
std::int64_t shared_tokens(const DatasetOptions& options) { return options.masking ? 0 : 1; }

/// How many samples `tokens` of a stream hold; at least one.
std::int64_t count_samples(const DatasetOptions& options, std::string_view part,
                           std::int64_t tokens) {
  const std::int64_t shared = shared_tokens(options), own = tokens_of_stream(options);
  const std::int64_t samples = (tokens - shared) / own;
  if (tokens > 0 && samples > 0) return samples;
  std::string remedy = "; use more data";
  if (tokens > shared) {
    const std::int64_t around = options.sequence_length - own;
    remedy += concat(", or a sequence length of at most ", tokens - shared + around);
  }
  if (options.validation_fraction > 0.0) remedy += ", or another validation fraction";
  fail(ErrorCode::kConfig, "the ", part, " part of '", options.path, "' has ", tokens,
       tokens == 1 ? " token" : " tokens", ", but a sample of sequence length ",
       options.sequence_length, " takes ",
       static_cast<std::uint64_t>(own) + static_cast<std::uint64_t>(shared), remedy);
}

/// Counts examples, a sample each.
std::int64_t count_examples(const DatasetOptions& options, std::string_view part,
                            std::int64_t examples) {
  require(examples > 0, ErrorCode::kConfig, "the ", part, " part of '", options.path,
          "' has no examples; use more data, or another validation fraction");
  return examples;
}

void check_view(const TensorView& view, const Shape& shape, std::string_view what) {
  require(view.dtype == DType::kInt32 && view.shape == shape && view.is_contiguous(),
          ErrorCode::kInvalidArgument, "the ", what, " of a batch must be contiguous int32 ", shape,
          ", not ", to_string(view.dtype), " ", view.shape);
}

}  // namespace

std::string_view to_string(DataKind kind) {
  switch (kind) {
    case DataKind::kAuto:
      return "auto";
    case DataKind::kText:
      return "text";
    case DataKind::kTokens:
      return "tokens";
    case DataKind::kExamples:
      return "examples";
  }
  return "unknown";
}

DataKind parse_data_kind(std::string_view name) {
  for (const DataKind kind : kKinds) {
    if (name == to_string(kind)) return kind;
  }
  fail(ErrorCode::kConfig, "unknown data kind '", name, "'; choose auto, text, tokens or examples");
}

std::int64_t TokenDataset::Source::size() const {
  return examples != nullptr ? examples->units() : stream->tokens();
}

TokenDataset::Source TokenDataset::open(const DatasetOptions& options) {
  check_options(options);
  const std::vector<std::string> examples = data::find_example_files(options);
  if (!examples.empty()) return {.examples = data::open_examples(options, examples)};
  require(
      options.labels.empty(), ErrorCode::kConfig, "'", options.path,
      "' has no labels: a classifier is trained on .jsonl, .parquet or .arrow files of examples "
      "such as {\"text\": \"...\", \"label\": 0}");
  require(!options.packing, ErrorCode::kConfig, "packing is for examples (.jsonl), and '",
          options.path, "' is a stream of tokens, whose samples are full");
  return {.stream = std::make_shared<const data::TokenStream>(options)};
}

TokenDataset::TokenDataset(DatasetOptions options, Source source, std::int64_t begin,
                           std::int64_t end)
    : options_(std::move(options)),
      source_(std::move(source)),
      begin_(begin),
      end_(end),
      order_(source_.examples != nullptr
                 ? count_examples(options_, begin == 0 ? "training" : "validation", end - begin)
                 : count_samples(options_, begin == 0 ? "training" : "validation", end - begin),
             options_.seed),
      samples_(source_.examples != nullptr ? source_.examples->samples_of(end - begin)
                                           : order_.samples()) {
  require(samples_ > 0, ErrorCode::kConfig, "the ", begin == 0 ? "training" : "validation",
          " part of '", options_.path, "' has ", end - begin,
          " examples, too few to be packed; use more data, or another validation fraction");
}

TokenDataset::TokenDataset(DatasetOptions options)
    : TokenDataset([&] {
        Source source = open(options);
        const std::int64_t end = training_part(options, source.size());
        return TokenDataset(std::move(options), std::move(source), 0, end);
      }()) {}

TokenDataset TokenDataset::validation() const {
  require(options_.validation_fraction > 0.0, ErrorCode::kConfig, "nothing of '", options_.path,
          "' is held out; set a validation fraction, such as 0.1");
  const std::int64_t begin = training_part(options_, source_.size());
  return TokenDataset(options_, source_, begin, source_.size());
}

Shape TokenDataset::input_shape(std::int64_t micro_batch) const {
  if (has_starts()) return {2, micro_batch, options_.sequence_length};
  return {micro_batch, options_.sequence_length};
}

Shape TokenDataset::target_shape(std::int64_t micro_batch) const {
  return {micro_batch, options_.sequence_length};
}

std::int64_t TokenDataset::fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                                TensorView targets) const {
  require(first >= 0 && micro_batch >= 0 &&
              first <= std::numeric_limits<std::int64_t>::max() - micro_batch,
          ErrorCode::kInvalidArgument, "there are no samples [", first, ", +", micro_batch, ")");
  check_view(inputs, input_shape(micro_batch), "inputs");
  check_view(targets, target_shape(micro_batch), "targets");
  const auto length = static_cast<std::size_t>(options_.sequence_length);
  const auto row_of = [&](const TensorView& view, std::int64_t row) {
    return std::span(view.as<std::int32_t>() + row * options_.sequence_length, length);
  };
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < micro_batch; ++row) {
    std::span<std::int32_t> starts;
    if (has_starts()) starts = row_of(inputs, micro_batch + row);
    counted += fill_sample(first + row, row_of(inputs, row), row_of(targets, row), starts);
  }
  return counted;
}

std::int64_t TokenDataset::fill_sample(std::int64_t number, std::span<std::int32_t> inputs,
                                       std::span<std::int32_t> targets,
                                       std::span<std::int32_t> starts) const {
  if (source_.examples != nullptr) {
    const data::ExampleSource::Part part{begin_, order_, options_.shuffle};
    const TokenMasking* const masking = options_.masking ? &*options_.masking : nullptr;
    return source_.examples->fill(part, number, options_.vocab_size,
                                  {inputs, targets, starts, options_.encoder, masking,
                                   data::key_of_masks(options_.seed, number)});
  }
  const std::int64_t position = number % samples_;
  const std::int64_t index =
      options_.shuffle ? order_.index(number / samples_, position) : position;
  // Without a vocabulary to keep to, a token must still fit an int32.
  const std::uint64_t limit = options_.vocab_size > 0
                                  ? static_cast<std::uint64_t>(options_.vocab_size)
                                  : std::uint64_t{1} << 31;
  const auto own = static_cast<std::size_t>(tokens_of_stream(options_));
  std::vector<std::uint32_t> sample(own + static_cast<std::size_t>(shared_tokens(options_)));
  const std::int64_t begin = begin_ + index * tokens_of_stream(options_);
  source_.stream->read(begin, sample);
  const auto outside = std::ranges::find_if(sample, [&](auto token) { return token >= limit; });
  if (outside != sample.end()) {
    source_.stream->fail_vocabulary(begin + (outside - sample.begin()), *outside,
                                    std::ranges::max(sample), static_cast<std::int64_t>(limit));
  }
  std::ranges::fill(starts, 0);
  if (options_.masking) return hide(sample, number, inputs, targets);
  std::copy_n(sample.begin(), own, inputs.begin());
  std::copy_n(sample.begin() + 1, own, targets.begin());
  return options_.sequence_length;
}

std::int64_t TokenDataset::hide(std::span<const std::uint32_t> tokens, std::int64_t sample,
                                std::span<std::int32_t> inputs,
                                std::span<std::int32_t> targets) const {
  const TokenMasking& masking = *options_.masking;
  const auto text = std::ranges::copy(masking.before, inputs.begin()).out;
  std::ranges::copy(masking.after, std::ranges::copy(tokens, text).out);
  std::ranges::fill(targets, -100);
  std::vector<std::size_t> may_be_hidden;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::size_t place = masking.before.size() + i;
    if (masking.may_hide(inputs[place])) may_be_hidden.push_back(place);
  }
  return data::hide_tokens(masking, data::key_of_masks(options_.seed, sample), may_be_hidden,
                           inputs, targets);
}

std::vector<NamedText> TokenDataset::identity() const {
  const bool of_examples = source_.examples != nullptr;
  std::vector<NamedText> all =
      of_examples ? source_.examples->identity() : source_.stream->identity();
  all.push_back(
      {"order of samples",
       concat("length ", options_.sequence_length,
              of_examples ? concat(", ", source_.examples->unit_name(), " ") : ", tokens ", begin_,
              " to ", end_ - 1,
              options_.shuffle ? concat(", seed ", options_.seed) : ", not shuffled")});
  if (options_.masking) {
    all.push_back({"hidden tokens", concat("probability ", options_.masking->probability, ", seed ",
                                           options_.seed)});
  }
  return all;
}

void TokenDataset::check_vocabulary(std::int64_t vocab_size) const {
  if (source_.examples != nullptr) return source_.examples->check_vocabulary(vocab_size);
  source_.stream->check_vocabulary(vocab_size);
}

std::int64_t TokenDataset::tokens() const {
  return source_.examples != nullptr ? source_.examples->tokens() : end_ - begin_;
}

DataKind TokenDataset::kind() const {
  return source_.examples != nullptr ? DataKind::kExamples : source_.stream->kind();
}

std::vector<std::string> TokenDataset::files() const {
  if (source_.examples != nullptr) return source_.examples->records().paths();
  return source_.stream->files();
}

const std::vector<std::string>& TokenDataset::notes() const {
  return source_.examples != nullptr ? source_.examples->notes() : source_.stream->notes();
}

std::vector<std::string> TokenDataset::assumptions() const {
  if (source_.examples == nullptr) return source_.stream->assumptions();
  const data::ExampleRecords& records = source_.examples->records();
  return {concat(records.name(), records.paths().size() == 1 ? " is" : " are",
                 " read as examples, one in each line: ", source_.examples->describe())};
}

std::optional<ExampleCounts> TokenDataset::example_counts() const {
  if (source_.examples == nullptr) return std::nullopt;
  return source_.examples->counts();
}

}  // namespace tessera
