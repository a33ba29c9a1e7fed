#include "cpu/gemm_tiles.h"

#include <algorithm>
#include <limits>

#include "cpu/gemm_cpu.h"

namespace tessera::cpu {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Rows or columns per tile, for about `parts` tiles; whole vectors of every instruction set.
std::int64_t side(std::int64_t size, std::int64_t parts) {
  constexpr std::int64_t kGranule = 16;
  return parts == 1 ? size : ceil_div(ceil_div(size, parts), kGranule) * kGranule;
}

// oneDNN copies both operands of a call into its own order, so each cut of the rows copies B once
// more, and each cut of the columns A. The share of a product's time that a copy takes is one of
// these numbers / rows (columns) of C; measured with sgemm of oneDNN 2.6 on AVX-512 and AVX2.
constexpr double kCopyB = 30.0, kCopyA = 7.0, kCopyTransposedA = 52.0;

/// Above this share, a product of few tiles is not cut any more.
constexpr double kMostCopying = 0.026;
constexpr std::int64_t kFewTiles = 4, kMostTiles = 16;

/// Multiply-adds worth a thread's waking: about 20 us of a core.
constexpr std::int64_t kSmallestTile = 1 << 20;

}  // namespace

std::int64_t TileGrid::count() const { return ceil_div(m, rows) * ceil_div(n, columns); }

Tile TileGrid::tile(std::int64_t index) const {
  const std::int64_t across = ceil_div(n, columns);
  Tile t{.row = index / across * rows, .column = index % across * columns};
  t.rows = std::min(rows, m - t.row);
  t.columns = std::min(columns, n - t.column);
  return t;
}

TileGrid tile_grid(const Product& p) {
  const double copy_a = p.a.transposed ? kCopyTransposedA : kCopyA;
  const auto work = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  TileGrid best{.m = p.m, .n = p.n, .rows = p.m, .columns = p.n};
  // Powers of two, so that as many threads have equal shares.
  for (std::int64_t tiles = 2; tiles <= kMostTiles; tiles *= 2) {
    if (work < static_cast<double>(tiles * kSmallestTile)) break;
    double least = std::numeric_limits<double>::infinity();
    TileGrid grid = best;
    for (std::int64_t down = 1; down <= tiles; down *= 2) {
      const TileGrid cut{
          .m = p.m, .n = p.n, .rows = side(p.m, down), .columns = side(p.n, tiles / down)};
      if (cut.count() < tiles) continue;  // C is too narrow
      const double copying =
          static_cast<double>(down - 1) * kCopyB / static_cast<double>(p.m) +
          static_cast<double>(tiles / down - 1) * copy_a / static_cast<double>(p.n);
      if (copying < least) least = copying, grid = cut;
    }
    if (tiles > kFewTiles && least > kMostCopying) break;
    best = grid;
  }
  return best;
}

}  // namespace tessera::cpu
