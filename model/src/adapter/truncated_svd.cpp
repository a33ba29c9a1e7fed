#include "adapter/truncated_svd.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::adapter {
namespace svd {
namespace {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// a += factor * b.
void add(Vector& a, double factor, const Vector& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
}

/// Numbers in (-1, 1) that depend on their place alone.
Vector start_vector(std::size_t size, std::uint64_t number) {
  Vector vector(size);
  std::uint64_t state = 0x9e3779b97f4a7c15U * (number + 1);
  for (double& value : vector) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<double>(state >> 11U) * 0x1p-52 - 1.0;
  }
  return vector;
}

/// Takes what `basis` has out of a vector, twice, and returns the length of the rest.
double orthogonalise(Vector& vector, const std::vector<Vector>& basis) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const Vector& unit : basis) add(vector, -dot(unit, vector), unit);
  }
  return std::sqrt(dot(vector, vector));
}

/// Adds the direction of a vector to a basis, and returns the vector's length. Of one that the
/// basis has already (shorter than `least`), any other direction is added, and the length is 0.
double extend(std::vector<Vector>& basis, Vector vector, double least) {
  double length = orthogonalise(vector, basis);
  const double result = length > least ? length : 0.0;
  for (std::uint64_t attempt = 0; result == 0.0 && attempt < 8; ++attempt) {
    vector = start_vector(vector.size(), basis.size() * 8 + attempt);
    length = orthogonalise(vector, basis);
    if (length > 1e-6) break;
  }
  for (double& value : vector) value /= length;
  basis.push_back(std::move(vector));
  return result;
}

struct Matrix {
  std::span<const float> values;
  std::size_t rows, columns;

  Vector times(const Vector& right) const {
    Vector result(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      const float* const row = values.data() + i * columns;
      // Several sums, so that additions need not wait for each other.
      double sums[8] = {};
      std::size_t j = 0;
      for (; j + 8 <= columns; j += 8) {
        for (std::size_t k = 0; k < 8; ++k)
          sums[k] += static_cast<double>(row[j + k]) * right[j + k];
      }
      for (; j < columns; ++j) sums[0] += static_cast<double>(row[j]) * right[j];
      result[i] = std::accumulate(sums, sums + 8, 0.0);
    }
    return result;
  }
  Vector transposed_times(const Vector& left) const {
    Vector result(columns);
    for (std::size_t i = 0; i < rows; ++i) {
      const float* const row = values.data() + i * columns;
      for (std::size_t j = 0; j < columns; ++j) result[j] += left[i] * static_cast<double>(row[j]);
    }
    return result;
  }
};

/// The singular value decomposition of a small square matrix, given by its columns, by one-sided
/// Jacobi rotations: columns become U diag(s), `right` the columns of V.
struct SmallSvd {
  std::vector<Vector> columns, right;
  Vector values;
  std::vector<std::size_t> order;  ///< of falling values

  explicit SmallSvd(std::vector<Vector> of) : columns(std::move(of)) {
    const std::size_t n = columns.size();
    right.assign(n, Vector(n));
    for (std::size_t i = 0; i < n; ++i) right[i][i] = 1.0;
    constexpr int kMostSweeps = 60;
    for (int sweep = 0; sweep < kMostSweeps && rotate_all(); ++sweep) {
    }
    for (const Vector& column : columns) values.push_back(std::sqrt(dot(column, column)));
    order.resize(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return values[i]; });
  }

 private:
  /// Whether a pair of columns was not orthogonal.
  bool rotate_all() {
    bool rotated = false;
    for (std::size_t i = 0; i + 1 < columns.size(); ++i) {
      for (std::size_t j = i + 1; j < columns.size(); ++j) {
        const double a = dot(columns[i], columns[i]), b = dot(columns[j], columns[j]);
        const double c = dot(columns[i], columns[j]);
        if (std::abs(c) <= 1e-15 * std::sqrt(a * b)) continue;
        rotated = true;
        const double zeta = (b - a) / (2.0 * c);
        const double t = std::copysign(1.0, zeta) / (std::abs(zeta) + std::hypot(1.0, zeta));
        const double cosine = 1.0 / std::hypot(1.0, t), sine = cosine * t;
        rotate(columns[i], columns[j], cosine, sine);
        rotate(right[i], right[j], cosine, sine);
      }
    }
    return rotated;
  }
  static void rotate(Vector& x, Vector& y, double cosine, double sine) {
    for (std::size_t k = 0; k < x.size(); ++k) {
      const double old = x[k];
      x[k] = cosine * old - sine * y[k];
      y[k] = sine * old + cosine * y[k];
    }
  }
};

/// W V = U B with orthonormal columns and an upper bidiagonal B, a step at a time.
class Bidiagonalisation {
 public:
  explicit Bidiagonalisation(const Matrix& matrix) : matrix_(matrix) {
    extend(right_, start_vector(matrix.columns, 0), 0.0);
  }

  std::size_t steps() const { return left_.size(); }

  void step() {
    Vector u = matrix_.times(right_.back());
    if (steps() > 0) add(u, -above_.back(), left_.back());
    diagonal_.push_back(extend(left_, std::move(u), tiny()));
    if (right_.size() == matrix_.columns) return;
    Vector v = matrix_.transposed_times(left_.back());
    add(v, -diagonal_.back(), right_.back());
    above_.push_back(extend(right_, std::move(v), tiny()));
  }

  /// The decomposition of B, which has a row for each step and, but for the last step of a matrix
  /// that is not wide, one column more.
  SmallSvd decompose() const {
    const std::size_t size = right_.size();
    std::vector<Vector> columns(size, Vector(size));
    for (std::size_t k = 0; k < steps(); ++k) {
      columns[k][k] = diagonal_[k];
      if (k + 1 < size) columns[k + 1][k] = above_[k];
    }
    return SmallSvd(std::move(columns));
  }

  const std::vector<Vector>& left() const { return left_; }
  const std::vector<Vector>& right() const { return right_; }
  /// Whether W V = U B and W^T U = V B^T hold without a rest.
  bool is_whole() const { return steps() == std::min(matrix_.rows, matrix_.columns); }

 private:
  double tiny() const {
    const auto largest = [](const Vector& v) {
      return v.empty() ? 0.0 : *std::ranges::max_element(v);
    };
    return 1e-13 * std::max(largest(diagonal_), largest(above_));
  }

  const Matrix& matrix_;
  std::vector<Vector> left_, right_;
  Vector diagonal_, above_;
};

}  // namespace
}  // namespace svd

TruncatedSvd truncated_svd(std::span<const float> matrix, std::int64_t rows, std::int64_t columns,
                           std::int64_t rank) {
  require(rank >= 1 && rank <= std::min(rows, columns), ErrorCode::kInvalidArgument, "a matrix of ",
          rows, " x ", columns, " has no ", rank, " singular values");
  using svd::Vector;
  const svd::Matrix w{matrix, static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)};
  const auto wanted = static_cast<std::size_t>(rank);
  svd::Bidiagonalisation lanczos(w);
  std::size_t next = 2 * wanted + 8;  // steps at which it is looked at
  for (;;) {
    while (!lanczos.is_whole() && lanczos.steps() < next) lanczos.step();
    const svd::SmallSvd small = lanczos.decompose();
    TruncatedSvd result{.left = Vector(w.rows * wanted), .right = Vector(wanted * w.columns)};
    const double largest = small.values[small.order.front()];
    double worst = 0.0;
    for (std::size_t r = 0; r < wanted; ++r) {
      const std::size_t at = small.order[r];
      const double value = small.values[at];
      result.values.push_back(value);
      Vector left(w.rows), right(w.columns);
      for (std::size_t k = 0; k < lanczos.left().size(); ++k) {
        const double factor = value > 0.0 ? small.columns[at][k] / value : 0.0;
        svd::add(left, factor, lanczos.left()[k]);
      }
      for (std::size_t k = 0; k < lanczos.right().size(); ++k) {
        svd::add(right, small.right[at][k], lanczos.right()[k]);
      }
      if (!lanczos.is_whole()) {
        Vector rest = w.times(right);  // W^T u = s v holds at every step
        svd::add(rest, -value, left);
        worst = std::max(worst, std::sqrt(svd::dot(rest, rest)));
      }
      for (std::size_t i = 0; i < w.rows; ++i) result.left[i * wanted + r] = left[i];
      std::ranges::copy(right, result.right.begin() + static_cast<std::ptrdiff_t>(r * w.columns));
    }
    if (lanczos.is_whole() || worst <= 1e-9 * largest) return result;
    next = std::min(next + next / 2, std::min(w.rows, w.columns));
  }
}

}  // namespace tessera::adapter
