#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "record_file.h"
#include "tessera/core/named_text.h"

namespace tessera::data {

/// The records of several files, one file behind the other. Immutable; safe to read from any
/// thread.
class ExampleRecords {
 public:
  /// Throws Error{kNotFound, kIo, kConfig} that names the file.
  explicit ExampleRecords(const std::vector<std::string>& paths);

  std::int64_t size() const { return starts_.back(); }
  std::int64_t bytes() const;
  /// See RecordFile.
  void visit(std::int64_t first, std::int64_t count, const RecordFile::Use& use) const;
  std::string place(std::int64_t record) const;

  std::vector<std::string> paths() const;
  /// "'a.jsonl'", "'a.jsonl' and 3 more files".
  std::string name() const;
  /// See TokenDataset::identity. Throws Error{kIo}.
  std::vector<NamedText> identity() const;

 private:
  std::size_t file_of(std::int64_t record) const;

  std::vector<std::unique_ptr<const RecordFile>> files_;
  std::vector<std::int64_t> starts_;  ///< the first record of each, and the end
};

}  // namespace tessera::data
