#pragma once

#include <string_view>
#include <vector>

#include "record_file.h"
#include "tessera/core/input_file.h"

namespace tessera::data {

/// JSON in each line of a file that may be larger than memory: held is where every block of about
/// 16 KiB begins, 24 bytes for each. Lines of white space are no records. Opening finds the ends of
/// the lines, with several threads, and parses none.
class JsonLines : public RecordFile {
 public:
  /// Throws Error{kNotFound, kIo}.
  explicit JsonLines(std::string path);

  const std::string& path() const override { return file_.path(); }
  std::int64_t records() const override { return records_; }
  std::int64_t bytes() const override { return file_.size(); }
  void visit(std::int64_t first, std::int64_t count, const Use& use) const override;
  std::string place(std::int64_t record) const override;

  /// Lines from a record on, up to where the next block begins, or the end.
  struct Block {
    std::int64_t offset = 0;  ///< in the file
    std::int64_t line = 0;    ///< the number of its first line, from 1
    std::int64_t record = 0;  ///< the number of its first record
  };

 private:
  /// Calls `use(record, number of the line, line)` until it returns false.
  using UseLine = std::function<bool(std::int64_t, std::int64_t, std::string_view)>;
  void visit_lines(std::int64_t first, const UseLine& use) const;

  InputFile file_;
  std::vector<Block> blocks_;
  std::int64_t records_ = 0;
};

}  // namespace tessera::data
