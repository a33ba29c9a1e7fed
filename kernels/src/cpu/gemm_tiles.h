#pragma once

#include <cstdint>

// [Note: tiles of C] oneDNN splits a product by the number of threads, and an element's order of
// summation depends on whether it lies in the last rows or columns of its part: with sgemm on AVX2
// a half of random products below 200 x 200 x 200 differ between one thread and three. Therefore C
// is cut into tiles by its sizes alone, each tile is one call of oneDNN on one thread, and threads
// take whole tiles. A product uses at most as many threads as it has tiles.
namespace tessera::cpu {

struct Product;  // gemm_cpu.h

/// A block of C.
struct Tile {
  std::int64_t row = 0, rows = 0;
  std::int64_t column = 0, columns = 0;
};

/// C (m, n) in tiles of `rows` x `columns`, but for the last ones, row by row of tiles.
struct TileGrid {
  std::int64_t m = 0, n = 0;
  std::int64_t rows = 0, columns = 0;

  std::int64_t count() const;
  Tile tile(std::int64_t index) const;
};

/// The grid for a product with m, n > 0; depends on m, n, k, the dtype and which operands are
/// transposed, and on nothing else.
TileGrid tile_grid(const Product& product);

}  // namespace tessera::cpu
