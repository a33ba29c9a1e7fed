#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer_file.h"

namespace tessera::data {

/// Finds contents of added tokens in a text: the leftmost, and of those that begin there the
/// longest. Immutable.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Found {
    std::size_t begin;  ///< npos: there is none
    std::size_t length;
    std::int32_t id;
    bool strips_left, strips_right;
  };
  Found find(std::string_view text, std::size_t from) const;
  /// Whether the text ends with one of them.
  bool end(std::string_view text) const;

 private:
  std::vector<AddedToken> tokens_;  ///< by content
  std::array<bool, 256> begins_{};  ///< first bytes of contents
};

}  // namespace tessera::data
