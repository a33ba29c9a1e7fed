#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/sharding/schedule.h"

namespace tessera {

/// How a schedule adds up one part of a unit's gradient.
struct GradientSum {
  std::string unit;
  std::string part;   ///< the name of its first tensor
  int tensors = 1;    ///< that are added up alike
  std::string terms;  ///< see gradient_sums
};

/// The expression by which each gradient is added up, roundings included, before it is used.
/// Derived from the schedule alone, by the rules of its operations; the schedule must be valid. In
/// `terms`,
///
///     s0..s7           one sample's contribution after the other, from left to right: the
///                      micro-batches of the step in order, of all ranks
///     s0..s12/4        every fourth
///     bf16(...)        rounded
///     (...) x4/8       four such sums, each 8 samples further on, added from left to right
///     h.0+h.2          a sample's contributions of two layers, in order of backward
///
/// Two schedules over parameters of one dtype give the same bits if they have the same sums. If
/// they have not, they differ, unless the numbers happen to add up without rounding: a few in bf16,
/// all about as large, do.
std::vector<GradientSum> gradient_sums(const Schedule& schedule);

/// A number for all of them: equal numbers, equal bits.
std::uint64_t hash_of(const std::vector<GradientSum>& sums);

}  // namespace tessera
