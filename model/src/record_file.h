#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::data {

/// The records of a file: the lines of JSONL, or the rows of a table. Immutable; safe to read from
/// any thread.
class RecordFile {
 public:
  using Use = std::function<void(std::int64_t record, const nlohmann::ordered_json& value)>;

  virtual ~RecordFile() = default;
  virtual const std::string& path() const = 0;
  virtual std::int64_t records() const = 0;
  /// The size of the texts, about.
  virtual std::int64_t bytes() const = 0;
  /// Calls `use` with records [first, first + count), in order. Throws Error{kConfig} that names
  /// the place of one that is malformed, and Error{kIo} if the file has been cut short.
  virtual void visit(std::int64_t first, std::int64_t count, const Use& use) const = 0;
  /// "line 17 of 'chats.jsonl'".
  virtual std::string place(std::int64_t record) const = 0;
};

}  // namespace tessera::data
