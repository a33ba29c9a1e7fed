#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "example_reader.h"
#include "example_records.h"
#include "sample_row.h"
#include "tessera/model/dataset.h"
#include "tessera/model/sample_order.h"

namespace tessera::data {

/// Samples of the examples of some files. Immutable; safe to read from any thread.
///
/// A data set is a part of its units: of samples, or of examples if which of them a sample holds is
/// found when it is read.
class ExampleSource {
 public:
  /// Which units a data set reads, and in which order.
  struct Part {
    std::int64_t begin = 0;
    const SampleOrder& order;  ///< of the units behind `begin`
    bool shuffle = true;

    std::int64_t unit(std::int64_t epoch, std::int64_t position) const {
      return begin + (shuffle ? order.index(epoch, position) : position);
    }
  };

  virtual ~ExampleSource() = default;

  virtual std::int64_t units() const = 0;
  /// The samples of an epoch of so many units.
  virtual std::int64_t samples_of(std::int64_t units) const = 0;
  /// The tokens of all examples, as far as they fit samples.
  virtual std::int64_t tokens() const = 0;
  /// All files' counts.
  virtual ExampleCounts counts() const = 0;
  /// "400, tokenised at the start".
  virtual std::string describe() const = 0;
  virtual const std::vector<std::string>& notes() const = 0;
  /// "examples", "packed samples": what the numbers of units in an identity are of.
  virtual std::string unit_name() const = 0;

  /// Writes sample `sample` of the endless sequence, and returns how many targets count. Throws
  /// Error{kConfig} on a token that is not below `vocab_size`, unless that is 0, and on what is
  /// malformed.
  virtual std::int64_t fill(const Part& part, std::int64_t sample, std::int64_t vocab_size,
                            const SampleRow& row) const = 0;
  /// Throws Error{kConfig} on the first token that is not below `vocab_size`, of those looked at.
  virtual void check_vocabulary(std::int64_t vocab_size) const = 0;

  const ExampleRecords& records() const { return records_; }
  /// See TokenDataset::identity.
  std::vector<NamedText> identity() const;

 protected:
  ExampleSource(const DatasetOptions& options, ExampleRecords records);

  const ExampleReader& reader() const { return reader_; }
  /// Example `record`, with its place in what is thrown.
  Example read(std::int64_t record, const nlohmann::ordered_json& value) const;
  Example read(std::int64_t record) const;
  [[noreturn]] void fail_vocabulary(std::int64_t record, std::int32_t token, std::int32_t largest,
                                    std::int64_t vocab_size) const;

 private:
  ExampleRecords records_;
  ExampleReader reader_;
};

/// Holds what is tokenised at once, or reads what is larger than DatasetOptions::held_bytes as it
/// goes. Throws Error{kNotFound, kIo, kConfig}, also if no example has a target within
/// `options.sequence_length`.
std::shared_ptr<const ExampleSource> open_examples(const DatasetOptions& options,
                                                   const std::vector<std::string>& paths);

}  // namespace tessera::data
