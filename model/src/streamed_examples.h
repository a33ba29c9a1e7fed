#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "example_source.h"

namespace tessera::data {

/// Examples that are tokenised when they are read, of files that may be larger than memory. Its
/// units are examples, those without a target included: in place of one of those a sample is the
/// next example that has one.
///
/// [Note: packing in windows] Which samples packing makes of all examples is not known before all
/// are tokenised. So n examples at a time, a window, are packed by themselves, into s samples (64,
/// but of a few examples fewer): window w of an epoch holds those at places [w n, (w + 1) n) of the
/// epoch's order, and sample i of an epoch is one of window i / s, a pure function of i. n is
/// chosen so that, of the examples that are looked at when the file is opened, all of a window
/// nearly always fit. An example that does not is left out of this epoch, and so are the last,
/// fewer than n: in another epoch they are in other windows.
class StreamedExamples : public ExampleSource {
 public:
  /// See open_examples.
  StreamedExamples(const DatasetOptions& options, ExampleRecords records);
  ~StreamedExamples() override;

  std::int64_t units() const override { return records().size(); }
  std::int64_t samples_of(std::int64_t units) const override;
  std::int64_t tokens() const override { return counts_.tokens; }
  ExampleCounts counts() const override { return counts_; }
  std::string describe() const override;
  const std::vector<std::string>& notes() const override { return notes_; }
  std::string unit_name() const override;
  std::int64_t fill(const Part& part, std::int64_t sample, std::int64_t vocab_size,
                    const SampleRow& row) const override;
  void check_vocabulary(std::int64_t vocab_size) const override;

 private:
  struct Window;
  class Windows;
  void probe(const DatasetOptions& options);
  /// Its record, and the example.
  std::pair<std::int64_t, Example> with_target(const Part& part, std::int64_t unit) const;
  std::int64_t fill_packed(const Part& part, std::int64_t sample, std::int64_t vocab_size,
                           const SampleRow& row) const;
  std::unique_ptr<const Window> read_window(const Part& part, std::int64_t epoch,
                                            std::int64_t window) const;

  std::int64_t length_;
  ExampleCounts counts_;                                   ///< estimated
  std::int64_t window_examples_ = 0, window_samples_ = 0;  ///< of each window
  bool packing_;
  std::int32_t largest_token_ = 0;  ///< of those looked at
  std::int64_t largest_record_ = 0;
  std::vector<std::string> notes_;
  std::unique_ptr<Windows> windows_;
};

}  // namespace tessera::data
