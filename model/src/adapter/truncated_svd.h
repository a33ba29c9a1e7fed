#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::adapter {

/// The largest singular values of a matrix W (M, N), and their vectors: W ~ U diag(s) V.
struct TruncatedSvd {
  std::vector<double> left{};    ///< U (M, rank)
  std::vector<double> values{};  ///< s (rank), falling
  std::vector<double> right{};   ///< V (rank, N)
};

/// `matrix` (rows, columns) row-major; rank from 1 to the lesser of the two. By Lanczos's
/// bidiagonalisation with full reorthogonalisation (Golub and Kahan 1965; Golub and Van Loan,
/// Matrix Computations, 10.4), which goes on until the wanted values have converged to 1e-9 of the
/// largest, or the space is whole. In fp64. The signs of pairs of vectors are arbitrary, and the
/// same for the same matrix.
TruncatedSvd truncated_svd(std::span<const float> matrix, std::int64_t rows, std::int64_t columns,
                           std::int64_t rank);

}  // namespace tessera::adapter
