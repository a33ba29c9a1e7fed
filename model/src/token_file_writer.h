#pragma once

#include <cstdint>
#include <span>
#include <string>

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
  void write_bytes(std::span<const std::byte> bytes);
  [[noreturn]] void fail_to(const char* what) const;

  std::string path_, temporary_;
  int token_bytes_;
  int descriptor_ = -1;
  std::int64_t tokens_ = 0;
};

}  // namespace tessera::data
