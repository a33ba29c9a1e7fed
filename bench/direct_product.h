#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/core/dtype.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"

// A matrix product as oneDNN does it when it is called directly: the yardstick of step_bench.
namespace tessera::bench {

/// C (m, n) = A (m, k) B (k, n), or C += A B. C's rows are contiguous; so are A's and B's, or,
/// where transposed, their columns. Strides are elements from one such row (column) to the next.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType dtype = DType::kFloat32, c_dtype = DType::kFloat32;

  bool operator==(const ProductShape&) const = default;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
};

/// Normal random numbers with mean 0, different for each seed.
Tensor random_operand(Memory& memory, const Shape& shape, DType dtype, float stddev,
                      std::uint64_t seed);

enum class Layouts {
  kPlain,   ///< operands as they lie in memory; what oneDNN repacks, it repacks within the call
  kPacked,  ///< A and B in layouts that oneDNN chooses, if that is faster; packed beforehand
};

/// One way of computing a product.
class Way {
 public:
  virtual ~Way() = default;
  /// Does what need not be timed: packs A and B as they are now.
  virtual void prepare(const Operands& /*operands*/) {}
  virtual void run(const Operands& operands) = 0;
};

/// A product of one shape in the fastest way for either kind of layouts.
class DirectProduct {
 public:
  /// Tries every way a few times on `samples`, after checking its result against sums in double
  /// precision. Belongs to the calling thread and uses its OpenMP threads. `memory` holds
  /// what is packed. Overwrites C. Throws Error{kUnavailable} if this processor has no way for the
  /// dtype, Error{kInternal} if the result of a way with plain layouts is wrong. One with packed
  /// layouts is left out then: oneDNN 2.6 has wrong ones on AVX2, and no step computes so.
  DirectProduct(const ProductShape& shape, std::span<const Operands> samples, Memory& memory);

  /// With kPacked, the operands must be one of the samples.
  void run(Layouts layouts, const Operands& operands) {
    ways_[layouts == Layouts::kPlain ? plain_ : packed_].way->run(operands);
  }
  const ProductShape& shape() const { return shape_; }
  /// The error of each way that was left out.
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// "sgemm", "matmul in columns", ...
  const std::string& way(Layouts layouts) const {
    return ways_[layouts == Layouts::kPlain ? plain_ : packed_].name;
  }

 private:
  struct NamedWay {
    std::string name;
    std::unique_ptr<Way> way;
  };
  /// Seconds of one run, the least of a few.
  static double try_out(Way& way, std::span<const Operands> samples);

  ProductShape shape_;
  std::vector<NamedWay> ways_;
  std::vector<std::string> left_out_;
  std::size_t plain_ = 0, packed_ = 0;
};

}  // namespace tessera::bench
