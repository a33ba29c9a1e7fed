#include "tessera/model/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tessera/core/error.h"
#include "token_stream.h"

namespace tessera {
namespace {

constexpr std::array kKinds{DataKind::kAuto, DataKind::kText, DataKind::kTokens};

/// Number of tokens of the training part, which comes first.
std::int64_t training_tokens(const DatasetOptions& options, std::int64_t tokens) {
  const double held_out = std::round(options.validation_fraction * static_cast<double>(tokens));
  return tokens - std::min(static_cast<std::int64_t>(held_out), tokens);
}

void check_options(const DatasetOptions& options) {
  require(options.sequence_length > 0, ErrorCode::kConfig, "sequence length ",
          options.sequence_length, " is not positive");
  require(options.validation_fraction >= 0.0 && options.validation_fraction < 1.0,
          ErrorCode::kConfig, "validation fraction ", options.validation_fraction,
          " is not in [0, 1)");
  require(options.vocab_size >= 0, ErrorCode::kConfig, "vocabulary of ", options.vocab_size,
          " tokens is negative");
}

std::shared_ptr<const data::TokenStream> open_stream(const DatasetOptions& options) {
  check_options(options);
  return std::make_shared<const data::TokenStream>(options);
}

/// How many samples of `length` + 1 tokens, overlapping by one, `tokens` hold; at least one.
std::int64_t count_samples(const DatasetOptions& options, std::string_view part,
                           std::int64_t tokens) {
  const std::int64_t samples = (tokens - 1) / options.sequence_length;
  if (tokens > 0 && samples > 0) return samples;
  std::string remedy = "; use more data";
  if (tokens > 1) remedy += concat(", or a sequence length of at most ", tokens - 1);
  if (options.validation_fraction > 0.0) remedy += ", or another validation fraction";
  fail(ErrorCode::kConfig, "the ", part, " part of '", options.path, "' has ", tokens,
       tokens == 1 ? " token" : " tokens", ", but a sample of sequence length ",
       options.sequence_length, " takes ", static_cast<std::uint64_t>(options.sequence_length) + 1,
       remedy);
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
  }
  return "unknown";
}

DataKind parse_data_kind(std::string_view name) {
  for (const DataKind kind : kKinds) {
    if (name == to_string(kind)) return kind;
  }
  fail(ErrorCode::kConfig, "unknown data kind '", name, "'; choose auto, text or tokens");
}

TokenDataset::TokenDataset(DatasetOptions options, std::shared_ptr<const data::TokenStream> stream,
                           std::int64_t begin, std::int64_t end)
    : options_(std::move(options)),
      stream_(std::move(stream)),
      begin_(begin),
      end_(end),
      order_(count_samples(options_, begin == 0 ? "training" : "validation", end - begin),
             options_.seed) {}

TokenDataset::TokenDataset(DatasetOptions options)
    : TokenDataset([&] {
        auto stream = open_stream(options);
        const std::int64_t end = training_tokens(options, stream->tokens());
        return TokenDataset(std::move(options), std::move(stream), 0, end);
      }()) {}

TokenDataset TokenDataset::validation() const {
  require(options_.validation_fraction > 0.0, ErrorCode::kConfig, "nothing of '", options_.path,
          "' is held out; set a validation fraction, such as 0.1");
  const std::int64_t begin = training_tokens(options_, stream_->tokens());
  return TokenDataset(options_, stream_, begin, stream_->tokens());
}

Shape TokenDataset::input_shape(std::int64_t micro_batch) const {
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
  const std::int64_t length = options_.sequence_length;
  // Without a vocabulary to keep to, a token must still fit an int32.
  const std::uint64_t limit = options_.vocab_size > 0
                                  ? static_cast<std::uint64_t>(options_.vocab_size)
                                  : std::uint64_t{1} << 31;
  std::vector<std::uint32_t> sample(micro_batch == 0 ? 0 : static_cast<std::size_t>(length) + 1);
  for (std::int64_t row = 0; row < micro_batch; ++row) {
    const std::int64_t epoch = (first + row) / samples_per_epoch();
    const std::int64_t position = (first + row) % samples_per_epoch();
    const std::int64_t index = options_.shuffle ? order_.index(epoch, position) : position;
    const std::int64_t begin = begin_ + index * length;
    stream_->read(begin, sample);
    const auto outside = std::ranges::find_if(sample, [&](auto token) { return token >= limit; });
    if (outside != sample.end()) {
      stream_->fail_vocabulary(begin + (outside - sample.begin()), *outside,
                               std::ranges::max(sample), static_cast<std::int64_t>(limit));
    }
    std::copy_n(sample.begin(), length, inputs.as<std::int32_t>() + row * length);
    std::copy_n(sample.begin() + 1, length, targets.as<std::int32_t>() + row * length);
  }
  return micro_batch * length;
}

std::vector<NamedText> TokenDataset::identity() const {
  std::vector<NamedText> all = stream_->identity();
  all.push_back({"order of samples",
                 concat("length ", options_.sequence_length, ", tokens ", begin_, " to ", end_ - 1,
                        options_.shuffle ? concat(", seed ", options_.seed) : ", not shuffled")});
  return all;
}

void TokenDataset::check_vocabulary(std::int64_t vocab_size) const {
  stream_->check_vocabulary(vocab_size);
}

DataKind TokenDataset::kind() const { return stream_->kind(); }

std::vector<std::string> TokenDataset::files() const { return stream_->files(); }

const std::vector<std::string>& TokenDataset::notes() const { return stream_->notes(); }

std::vector<std::string> TokenDataset::assumptions() const { return stream_->assumptions(); }

}  // namespace tessera
