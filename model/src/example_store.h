#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "example_packing.h"
#include "example_source.h"

namespace tessera::data {

/// Examples as tokens in memory. Its units are samples.
class ExampleStore : public ExampleSource {
 public:
  /// See open_examples.
  ExampleStore(const DatasetOptions& options, ExampleRecords records);

  std::int64_t units() const override {
    return packed_.empty() ? examples() : static_cast<std::int64_t>(packed_.size());
  }
  std::int64_t samples_of(std::int64_t units) const override { return units; }
  std::int64_t tokens() const override { return static_cast<std::int64_t>(tokens_.size()); }
  ExampleCounts counts() const override;
  std::string describe() const override;
  const std::vector<std::string>& notes() const override { return notes_; }
  std::string unit_name() const override { return packed_.empty() ? "examples" : "packed samples"; }
  std::int64_t fill(const Part& part, std::int64_t sample, std::int64_t vocab_size,
                    const SampleRow& row) const override;
  void check_vocabulary(std::int64_t vocab_size) const override;

 private:
  struct Findings;
  std::int64_t examples() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  void add(const Example& example, std::int64_t record, Findings& findings);
  ExampleView view(std::size_t example) const;
  Packed packed() const;
  void tell(const Findings& findings);

  std::int64_t length_;
  bool has_tokenizer_;
  std::vector<std::int32_t> tokens_;  ///< one example after the other
  std::vector<std::int64_t> starts_;  ///< of each in tokens_, and the end
  /// Tokens that are targets, [first, second) from the beginning of each example.
  std::vector<std::pair<std::int32_t, std::int32_t>> targets_;
  std::vector<std::int64_t> target_starts_;  ///< of each example in targets_, and the end
  Packed packed_;                            ///< empty: an example in each sample
  std::vector<std::int64_t> numbers_;        ///< of each example's record
  std::vector<std::string> notes_;
};

}  // namespace tessera::data
