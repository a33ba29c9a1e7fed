#include "tessera/model/data_mixture.h"

#include <algorithm>
#include <limits>

#include "data_files.h"
#include "mixture_order.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

std::vector<TokenDataset> open_sources(std::vector<MixedData>& mixed) {
  require(!mixed.empty(), ErrorCode::kInvalidArgument, "a mixture of data has no sources");
  std::vector<TokenDataset> sources;
  const bool is_mixture = mixed.size() > 1;
  const bool packing = mixed.front().options.packing;
  const auto is_stream = [](const MixedData& source) {
    return data::find_example_files(source.options).empty();
  };
  // Samples of a stream are full, and have one document each.
  require(!is_mixture || !packing || !std::ranges::all_of(mixed, is_stream), ErrorCode::kConfig,
          "packing is for examples (.jsonl), and all of the data are streams of tokens, whose "
          "samples are full");
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    DatasetOptions& options = mixed[i].options;
    require(options.sequence_length == mixed.front().options.sequence_length &&
                options.packing == packing,
            ErrorCode::kInvalidArgument,
            "the sources of a mixture have another sequence length or packing");
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15U;  // any: orders of sources must differ
    options.seed += i * kOdd;
    if (is_mixture && packing && is_stream(mixed[i])) options.packing = false;
    sources.emplace_back(options);
  }
  return sources;
}

std::vector<std::int64_t> weights_of(const std::vector<MixedData>& mixed,
                                     const std::vector<TokenDataset>& sources) {
  if (sources.size() == 1) return {1};
  const auto has_weight = [](const MixedData& source) { return source.weight.has_value(); };
  const auto without = std::ranges::find_if_not(mixed, has_weight);
  if (without != mixed.end() && std::ranges::any_of(mixed, has_weight)) {
    fail(ErrorCode::kConfig, "'", without->options.path,
         "' has no weight, and other data have; give all of them one, or none");
  }
  std::vector<double> weights;
  std::vector<std::int64_t> sizes;
  for (const MixedData& source : mixed) weights.push_back(source.weight.value_or(0.0));
  for (const TokenDataset& source : sources) sizes.push_back(source.samples_per_epoch());
  return without != mixed.end() ? data::weights_of_sizes(sizes) : data::whole_weights(weights);
}

}  // namespace

DataMixture::DataMixture(std::vector<TokenDataset> sources,
                         std::shared_ptr<const data::MixtureOrder> order)
    : sources_(std::move(sources)),
      order_(std::move(order)),
      has_starts_(std::ranges::any_of(
          sources_, [](const TokenDataset& source) { return source.has_starts(); })) {}

DataMixture::DataMixture(std::vector<MixedData> mixed)
    : DataMixture([&] {
        std::vector<TokenDataset> sources = open_sources(mixed);
        auto order = std::make_shared<const data::MixtureOrder>(weights_of(mixed, sources));
        return DataMixture(std::move(sources), std::move(order));
      }()) {}

DataMixture DataMixture::validation() const {
  std::vector<TokenDataset> parts;
  for (const TokenDataset& source : sources_) parts.push_back(source.validation());
  return {std::move(parts), order_};
}

Shape DataMixture::input_shape(std::int64_t micro_batch) const {
  const std::int64_t length = sources_.front().options().sequence_length;
  if (has_starts_) return {2, micro_batch, length};
  return {micro_batch, length};
}

Shape DataMixture::target_shape(std::int64_t micro_batch) const {
  return sources_.front().target_shape(micro_batch);
}

std::int64_t DataMixture::fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                               TensorView targets) const {
  if (sources_.size() == 1) return sources_.front().fill(first, micro_batch, inputs, targets);
  require(first >= 0 && micro_batch >= 0 &&
              first <= std::numeric_limits<std::int64_t>::max() - micro_batch,
          ErrorCode::kInvalidArgument, "there are no samples [", first, ", +", micro_batch, ")");
  const auto check = [](const TensorView& view, const Shape& shape, const char* what) {
    require(view.dtype == DType::kInt32 && view.shape == shape && view.is_contiguous(),
            ErrorCode::kInvalidArgument, "the ", what, " of a batch must be contiguous int32 ",
            shape, ", not ", to_string(view.dtype), " ", view.shape);
  };
  check(inputs, input_shape(micro_batch), "inputs");
  check(targets, target_shape(micro_batch), "targets");
  const auto length = static_cast<std::size_t>(sources_.front().options().sequence_length);
  const auto row_of = [&](const TensorView& view, std::int64_t row) {
    return std::span(view.as<std::int32_t>() + row * static_cast<std::int64_t>(length), length);
  };
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < micro_batch; ++row) {
    const auto [source, sample] = order_->at(first + row);
    std::span<std::int32_t> starts;
    if (has_starts_) starts = row_of(inputs, micro_batch + row);
    counted +=
        sources_[source].fill_sample(sample, row_of(inputs, row), row_of(targets, row), starts);
  }
  return counted;
}

std::vector<NamedText> DataMixture::identity() const {
  if (sources_.size() == 1) return sources_.front().identity();
  std::vector<NamedText> all;
  std::string ratio;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    ratio += concat(i == 0 ? "" : " : ", weights()[i]);
    for (const NamedText& value : sources_[i].identity()) {
      all.push_back({concat(value.name, " (", i + 1, ")"), value.value});
    }
  }
  all.push_back({"weights of data", ratio});
  return all;
}

const std::vector<std::int64_t>& DataMixture::weights() const { return order_->weights(); }

std::int64_t DataMixture::samples_per_epoch() const {
  std::int64_t samples = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::int64_t last = order_->position_of({i, sources_[i].samples_per_epoch() - 1});
    samples = std::max(samples, last + 1);
  }
  return samples;
}

std::vector<std::int64_t> DataMixture::samples_by_source(std::int64_t samples) const {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < sources_.size(); ++i) counts.push_back(order_->count(i, samples));
  return counts;
}

std::int64_t DataMixture::tokens() const {
  std::int64_t tokens = 0;
  for (const TokenDataset& source : sources_) tokens += source.tokens();
  return tokens;
}

std::vector<std::string> DataMixture::files() const {
  std::vector<std::string> files;
  for (const TokenDataset& source : sources_) {
    for (std::string& file : source.files()) files.push_back(std::move(file));
  }
  return files;
}

DataKind DataMixture::kind() const {
  const DataKind first = sources_.front().kind();
  const bool all = std::ranges::all_of(
      sources_, [&](const TokenDataset& source) { return source.kind() == first; });
  return all ? first : DataKind::kAuto;
}

}  // namespace tessera
