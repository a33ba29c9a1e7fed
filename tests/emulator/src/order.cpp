#include "order.h"

#include <bit>
#include <cstdlib>
#include <numeric>

namespace tessera::emulator {

Order Order::from_environment() {
  const char* text = std::getenv("TESSERA_SIMT_ORDER");
  return Order(text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : 0);
}

/// A linear congruential generator's upper bits. (One of the standard library's may be inlined or
/// not: ThreadSanitizer must not see it.)
std::uint32_t Order::random() {
  state_ = state_ * 1664525U + 1013904223U;
  return state_ >> 8;
}

unsigned Order::pick(std::uint32_t lanes) {
  if (kind_ == 0) return static_cast<unsigned>(std::countr_zero(lanes));
  if (kind_ == 1) return 31U - static_cast<unsigned>(std::countl_zero(lanes));
  auto skip = random() % static_cast<unsigned>(std::popcount(lanes));
  while (skip-- > 0) lanes &= lanes - 1;
  return static_cast<unsigned>(std::countr_zero(lanes));
}

unsigned Order::warp(unsigned turn, unsigned count) {
  if (kind_ == 0) return turn;
  if (kind_ == 1) return count - 1 - turn;
  if (turn == 0) first_warp_ = random() % count;
  return (turn + first_warp_) % count;
}

std::uint64_t Order::block(std::uint64_t turn, std::uint64_t count) const {
  if (kind_ == 0) return turn;
  if (kind_ == 1) return count - 1 - turn;
  std::uint64_t step = kind_ % count + 1;
  while (std::gcd(step, count) != 1) ++step;
  return (turn * step + kind_) % count;
}

bool Order::copy_at_once() {
  if (kind_ <= 1) return kind_ == 1;
  return random() % 2 == 0;
}

}  // namespace tessera::emulator
