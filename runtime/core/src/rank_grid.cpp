#include "tessera/core/rank_grid.h"

namespace tessera::rank_grid {

int ranks(std::span<const int> sizes) {
  int product = 1;
  for (const int size : sizes) product *= size;
  return product;
}

int stride(std::span<const int> sizes, std::size_t dimension) {
  return ranks(sizes.subspan(dimension + 1));
}

int index(std::span<const int> sizes, std::size_t dimension, int rank) {
  return rank / stride(sizes, dimension) % sizes[dimension];
}

std::vector<int> group(std::span<const int> sizes, std::span<const std::size_t> dimensions,
                       int rank) {
  int first = rank;
  for (const std::size_t d : dimensions) first -= index(sizes, d, rank) * stride(sizes, d);
  std::vector<int> members{first};
  for (const std::size_t d : dimensions) {
    std::vector<int> next;
    for (const int member : members) {
      for (int i = 0; i < sizes[d]; ++i) next.push_back(member + i * stride(sizes, d));
    }
    members = std::move(next);
  }
  return members;
}

}  // namespace tessera::rank_grid
