#pragma once

#include <cstdint>

// A sum of floating-point numbers without rounding, in fixed point: it depends neither on the order
// of its terms nor on how they are spread over threads and ranks, and is rounded once, when it is
// read. Kulisch and Miranker, "The arithmetic of the digital computer: A new approach" (1986), call
// it a long accumulator.
//
// The number is kExactDigits digits of kExactDigitBits bits; digit i weighs
// 2^(kExactLowestBit + i * kExactDigitBits). A digit is an int64, so it has room for the carries of
// 2^37 terms, and two sums are added word by word, as integers: ranks exchange them with an
// ordinary all-reduce. Two words follow the digits: they count infinite terms, +inf in the first
// and -inf in the second; a NaN counts in both.
//
// Terms are fp32 values, and sums of 64 squares of them in fp64: their bits lie between
// 2^-350 = 2^(-298 - 52) and 2^262, and sums of 2^40 of them below 2^302.
namespace tessera {

inline constexpr int kExactLowestBit = -352;
inline constexpr int kExactDigitBits = 26;
inline constexpr int kExactDigits = 26;
/// int64 words of an exact sum; all zero: 0.
inline constexpr int kExactSumWords = kExactDigits + 2;
/// Terms that a sum holds, over all ranks.
inline constexpr std::int64_t kExactSumTerms = std::int64_t{1} << 37;

/// The lowest digit that a term with these bits adds to: it and the next two. The term must be
/// finite and not 0.
constexpr int exact_digit(std::uint64_t bits) {
  return (static_cast<int>(bits >> 52 & 0x7ff) - 1075 - kExactLowestBit) / kExactDigitBits;
}

/// Splits the fp64 number with these bits into what it adds to an exact sum: calls add(word, value)
/// for at most three words. The number must be a term as above, infinite or NaN.
template <typename Add>
constexpr void add_exactly(std::uint64_t bits, const Add& add) {
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  constexpr std::uint64_t kDigit = (std::uint64_t{1} << kExactDigitBits) - 1;
  const bool negative = (bits >> 63) != 0;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  if (exponent == 0) return;  // zero: terms are never subnormal in fp64
  if (exponent == 0x7ff) {
    const bool nan = (bits & kMantissa) != 0;
    if (nan || !negative) add(kExactDigits, std::int64_t{1});
    if (nan || negative) add(kExactDigits + 1, std::int64_t{1});
    return;
  }
  // 53 bits from bit `at` on, 26 of them in each digit: the lowest has those below its end.
  const std::uint64_t mantissa = (bits & kMantissa) | (std::uint64_t{1} << 52);
  const int at = exponent - 1075 - kExactLowestBit;
  const int digit = exact_digit(bits);
  const int shift = at % kExactDigitBits;
  const std::uint64_t rest = mantissa >> (kExactDigitBits - shift);
  const auto put = [&](int word, std::uint64_t value) {
    add(word, negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value));
  };
  put(digit, mantissa << shift & kDigit);
  put(digit + 1, rest & kDigit);
  put(digit + 2, rest >> kExactDigitBits);
}

/// Whether a term was infinite or NaN.
constexpr bool has_non_finite(const std::int64_t* words) {
  return words[kExactDigits] != 0 || words[kExactDigits + 1] != 0;
}

/// The bits of the fp64 number nearest to an exact sum of kExactSumWords words, ties to even.
constexpr std::uint64_t exact_sum_bits(const std::int64_t* words) {
  constexpr std::uint64_t kInfinity = std::uint64_t{0x7ff} << 52;
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
  if (words[kExactDigits] > 0 && words[kExactDigits + 1] > 0)
    return kInfinity | kSign >> 12;  // NaN
  if (words[kExactDigits] > 0) return kInfinity;
  if (words[kExactDigits + 1] > 0) return kInfinity | kSign;

  std::int64_t digits[kExactDigits] = {};
  const auto carry = [&] {  // afterwards all but the last are in [0, 2^26)
    for (int i = 0; i + 1 < kExactDigits; ++i) {
      digits[i + 1] += digits[i] >> kExactDigitBits;
      digits[i] &= (std::int64_t{1} << kExactDigitBits) - 1;
    }
  };
  for (int i = 0; i < kExactDigits; ++i) digits[i] = words[i];
  carry();
  const bool negative = digits[kExactDigits - 1] < 0;
  if (negative) {
    for (std::int64_t& digit : digits) digit = -digit;
    carry();
  }
  int top = kExactDigits - 1;
  while (top >= 0 && digits[top] == 0) --top;
  if (top < 0) return 0;

  // The uppermost 64 bits, and in the lowest of them whether anything lies below.
  auto bits = static_cast<std::uint64_t>(digits[top]);
  int exponent = kExactLowestBit + top * kExactDigitBits;  // of the lowest bit
  bool below = false;
  for (int next = top - 1; (bits >> 63) == 0; --next) {
    const auto digit = next >= 0 ? static_cast<std::uint64_t>(digits[next]) : 0;
    for (int b = kExactDigitBits - 1; b >= 0; --b) {
      if ((bits >> 63) != 0) {
        below = below || (digit >> b & 1) != 0;
      } else {
        bits = bits << 1 | (digit >> b & 1);
        --exponent;
      }
    }
    top = next;
  }
  for (int i = top - 1; i >= 0; --i) below = below || digits[i] != 0;
  if (below) bits |= 1;

  std::uint64_t mantissa = bits >> 11;
  const std::uint64_t rest = bits & 0x7ff;
  if (rest > 0x400 || (rest == 0x400 && (mantissa & 1) != 0)) ++mantissa;  // 2^53 carries over
  const auto biased = static_cast<std::uint64_t>(exponent + 11 + 52 + 1022);
  return ((biased << 52) + mantissa) | (negative ? kSign : 0);
}

}  // namespace tessera
