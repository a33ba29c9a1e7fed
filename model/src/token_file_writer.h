#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tessera/core/storage.h"

namespace tessera::data {

/// Writes a file of token ids with llm.c's header. The file takes its name when it is whole and on
/// the disk; until then it is PATH.tmp, which goes if this dies.
class TokenFileWriter {
 public:
  /// uint16 if `vocab_size` ids fit, else uint32. Throws Error{kIo}.
  TokenFileWriter(std::string path, std::int64_t vocab_size);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// Throws Error{kIo}, and Error{kConfig} beyond 2^31 - 1 tokens, which the header cannot count.
  void write(std::span<const std::int32_t> tokens);
  void finish();

  std::int64_t tokens() const { return tokens_; }
  int token_bytes() const { return token_bytes_; }

 private:
  std::string path_, temporary_;
  int token_bytes_;
  std::int64_t tokens_ = 0, bytes_ = 0;
  std::unique_ptr<Storage::File> file_;
};

}  // namespace tessera::data
