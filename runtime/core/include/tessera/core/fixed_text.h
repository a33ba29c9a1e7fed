#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <string_view>

namespace tessera {

/// A text that takes no memory, for failures: it may be memory that is short. What does not fit
/// into `kBytes` is cut off.
template <std::size_t kBytes>
class FixedText {
 public:
  FixedText& operator<<(std::string_view more) noexcept {
    const std::size_t fits = std::min(more.size(), kBytes - size_);
    std::copy_n(more.data(), fits, bytes_.data() + size_);
    size_ += fits;
    return *this;
  }
  FixedText& operator<<(int number) noexcept {
    std::array<char, 16> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    return *this << std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()));
  }

  std::string_view view() const noexcept { return {bytes_.data(), size_}; }

 private:
  std::array<char, kBytes> bytes_;  // of which size_ are set
  std::size_t size_ = 0;
};

/// Why a run was taken down. As long as any error of ours; those of others may be cut off.
using FailureText = FixedText<2048>;

}  // namespace tessera
