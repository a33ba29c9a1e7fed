#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::data {

/// Finds contents of added tokens in a text: the leftmost, and of those that begin there the
/// longest. Immutable.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<std::pair<std::string, std::int32_t>> tokens);

  struct Found {
    std::size_t begin;  ///< npos: there is none
    std::size_t length;
    std::int32_t id;
  };
  Found find(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::pair<std::string, std::int32_t>> tokens_;  ///< by content
  std::array<bool, 256> begins_{};                            ///< first bytes of contents
};

}  // namespace tessera::data
