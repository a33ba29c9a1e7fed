#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/model/dataset.h"

namespace tessera {

namespace data {
class MixtureOrder;
}  // namespace data

/// A source of a mixture. Unset weights, of all sources: in the ratio of their samples.
struct MixedData {
  DatasetOptions options;
  std::optional<double> weight{};
};

/// Several data sets in proportions, or one, which it then equals.
///
/// Each source gives, of the first n samples, n times its share of the weights, less or more by
/// less than 1. Each is read in an order of its own and begins its next epoch by itself. So sample
/// i is a pure function of i, whoever asks for it.
class DataMixture : public BatchSource {
 public:
  /// Opens the sources. All have one sequence length and vocabulary; `seed` of one is that of the
  /// mixture, and each source's is made of it. With `packing`, samples of examples are packed.
  /// Throws what TokenDataset throws, and Error{kConfig} if some have weights and others none, or
  /// weights are not above 0 or have too many digits.
  explicit DataMixture(std::vector<MixedData> sources);

  /// The held-out parts of all sources. Throws as TokenDataset::validation.
  DataMixture validation() const;

  Shape input_shape(std::int64_t micro_batch) const override;
  DType input_dtype() const override { return DType::kInt32; }
  Shape target_shape(std::int64_t micro_batch) const override;
  DType target_dtype() const override { return DType::kInt32; }
  /// See TokenDataset::fill.
  std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                    TensorView targets) const override;
  /// The identities of all sources, and their weights.
  std::vector<NamedText> identity() const override;

  const std::vector<TokenDataset>& sources() const { return sources_; }
  /// Whole numbers in the ratio of the weights; 1 of one source.
  const std::vector<std::int64_t>& weights() const;
  /// The samples after which every source has been read at least once.
  std::int64_t samples_per_epoch() const;
  /// How many of the first `samples` each source gives.
  std::vector<std::int64_t> samples_by_source(std::int64_t samples) const;
  std::int64_t tokens() const;  ///< of all sources; see TokenDataset::tokens
  std::vector<std::string> files() const;
  /// The kind of all sources; kAuto if they differ.
  DataKind kind() const;

 private:
  DataMixture(std::vector<TokenDataset> sources, std::shared_ptr<const data::MixtureOrder> order);

  std::vector<TokenDataset> sources_;
  std::shared_ptr<const data::MixtureOrder> order_;
  bool has_starts_;
};

}  // namespace tessera
