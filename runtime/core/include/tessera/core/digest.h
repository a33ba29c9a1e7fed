#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// A hash of 64 bits, for files and texts that differ by accident: nobody is kept from making two
/// with the same one. It depends on how the bytes are cut into calls of add().
class Digest {
 public:
  void add(std::string_view bytes);
  std::uint64_t value() const { return value_; }
  /// In 16 digits.
  std::string hex() const;

 private:
  void add_word(std::uint64_t word);

  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace tessera
