#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::data {

/// The examples of each sample, by number.
using Packed = std::vector<std::vector<std::size_t>>;

/// Best fit: from the longest example to the shortest, each goes where it leaves the least room.
/// `places`: of each example, at most `length`, the places of a sample.
Packed pack(std::span<const std::size_t> places, std::size_t length);

/// Makes as many samples as `samples`, by best fit. If more would be needed, the emptiest are left
/// out with their examples; if fewer, those with most examples give some away.
Packed pack_into(std::span<const std::size_t> places, std::size_t length, std::size_t samples);

/// How many examples, drawn from those of `places`, nearly always pack into `samples` samples: the
/// same for the same arguments, on every machine. At least `samples`.
std::int64_t examples_for(std::span<const std::size_t> places, std::size_t length,
                          std::size_t samples);

}  // namespace tessera::data
