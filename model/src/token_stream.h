#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data_files.h"
#include "token_file.h"

namespace tessera::data {

/// A data set's files as one sequence of tokens. Immutable; safe to read from any thread.
class TokenStream {
 public:
  /// Throws Error{kNotFound, kIo, kConfig}, also if there is no token at all.
  explicit TokenStream(const DatasetOptions& options);

  DataKind kind() const { return kind_; }
  std::int64_t tokens() const { return tokens_; }
  std::vector<std::string> files() const;
  const std::vector<std::string>& notes() const { return notes_; }
  /// See TokenDataset::assumptions.
  std::vector<std::string> assumptions() const;

  /// The identity of its kind and its files: see TokenDataset::identity.
  std::vector<NamedText> identity() const;

  /// Writes tokens [begin, begin + out.size()) of the stream, which must exist.
  void read(std::int64_t begin, std::span<std::uint32_t> out) const;
  /// "token 17 of 'a.bin'": where the stream's token `position` comes from.
  std::string place(std::int64_t position) const;
  /// See TokenDataset::check_vocabulary.
  void check_vocabulary(std::int64_t vocab_size) const;
  /// The complaint about one token that is not below `vocab_size`; `largest` is the largest of all
  /// that were looked at.
  [[noreturn]] void fail_vocabulary(std::int64_t position, std::uint32_t token,
                                    std::uint32_t largest, std::int64_t vocab_size) const;

 private:
  /// A file with the stream position of its first token. In text the token before it, if there is
  /// one, is the separator that ends the file before.
  struct Part {
    TokenFile file;
    std::int64_t begin;
  };
  std::size_t part_at(std::int64_t position) const;
  void advise(Access access) const;

  DataKind kind_ = DataKind::kText;
  Access access_ = Access::kRandom;
  std::vector<Part> parts_;
  std::vector<std::string> notes_;
  std::int64_t tokens_ = 0;
  std::uint32_t separator_ = '\n';  ///< between files of text
  std::string tokenizer_identity_;  ///< empty: there is none
};

}  // namespace tessera::data
