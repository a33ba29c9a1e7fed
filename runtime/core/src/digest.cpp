#include "tessera/core/digest.h"

#include <cstring>

namespace tessera {

/// FNV-1a over words of 8 bytes, with the upper bits folded into the lower ones, which a
/// multiplication alone would never reach. Some gigabytes per second.
void Digest::add_word(std::uint64_t word) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  value_ = (value_ ^ word) * kPrime;
  value_ ^= value_ >> 32U;
}

void Digest::add(std::string_view bytes) {
  const std::size_t size = bytes.size();
  std::uint64_t word = 0;
  for (; bytes.size() >= sizeof word; bytes.remove_prefix(sizeof word)) {
    std::memcpy(&word, bytes.data(), sizeof word);
    add_word(word);
  }
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  add_word(word);
  add_word(size);
}

std::string Digest::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(value_ >> shift) & 15U];
  return text;
}

}  // namespace tessera
