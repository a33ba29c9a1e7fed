#pragma once

#include <cstddef>
#include <span>
#include <vector>

// Ranks in a grid of any number of dimensions. They are numbered as the elements of an array are:
// the last dimension varies fastest. `sizes` has the dimensions, outermost first.
namespace tessera::rank_grid {

int ranks(std::span<const int> sizes);
/// From a rank to the next one along `dimension`.
int stride(std::span<const int> sizes, std::size_t dimension);
/// The rank's coordinate along `dimension`.
int index(std::span<const int> sizes, std::size_t dimension, int rank);
/// The ranks that differ from `rank` only along `dimensions`, which are in order; ascending.
std::vector<int> group(std::span<const int> sizes, std::span<const std::size_t> dimensions,
                       int rank);

}  // namespace tessera::rank_grid
