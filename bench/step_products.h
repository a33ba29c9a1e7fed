#pragma once

#include <span>
#include <vector>

#include "direct_product.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::bench {

/// The products of a step's GEMMs, and nothing else: no bias, GELU or attention. In the order of
/// the step, with its shapes and strides, in memory that is laid out and used again as the step's,
/// full of normal random numbers.
class StepProducts {
 public:
  /// Tries out the ways of oneDNN for every shape; takes the time of some steps. Belongs to the
  /// calling thread and uses its OpenMP threads. `gemms`: see record_gemms.
  StepProducts(std::span<const GemmArgs> gemms, Memory& memory);

  void run(Layouts layouts);
  double flops() const;  ///< of one run
  const std::vector<DirectProduct>& products() const { return products_; }

 private:
  struct Call {
    ProductShape shape;
    Operands operands;
    std::size_t product = 0;  ///< of products_
  };
  /// Operands of the step that overlap, and what stands for them here.
  struct Block {
    const std::byte* begin;
    const std::byte* end;
    DType dtype;
    Tensor tensor{};
  };

  void make_blocks(std::span<const GemmArgs> gemms, Memory& memory);
  void* find(const TensorView& operand) const;

  std::vector<Block> blocks_;  ///< by `begin`
  std::vector<Call> calls_;
  std::vector<DirectProduct> products_;
};

}  // namespace tessera::bench
