#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "direct_product.h"
#include "tessera/core/tensor.h"
#include "tessera/model/gpt.h"

namespace tessera::bench {

/// The matrix products of one training step's attention, and nothing else: no mask, softmax or
/// rounding. Forward and backward of every layer, over the blocks of queries and keys that the
/// kernel multiplies (kernels/src/cpu/attention_blocks.h), each on one thread, heads in parallel. A
/// key or value that several queries share is multiplied for each of them. Without a window.
class AttentionProducts {
 public:
  /// Tries out the ways of oneDNN for every shape. Belongs to the calling thread and uses its
  /// OpenMP threads.
  AttentionProducts(const GptConfig& gpt, std::int64_t micro_batch, std::int64_t length,
                    DType dtype, Memory& memory);

  void run();
  double flops() const;  ///< of one run

 private:
  /// The memory that an operand lies in: a head's part of qkv or of the output's gradient, which
  /// the head's number moves; or the scratch of a thread.
  enum class Base { kQkv, kGradient, kScores, kRounded, kSums };
  struct Place {
    Base base;
    std::int64_t offset;  ///< elements
  };
  struct Call {
    std::size_t product;  ///< of Thread::products
    Place a, b, c;
  };
  struct Thread {
    Tensor scores, rounded, sums;
    std::vector<DirectProduct> products;
  };

  void add_forward();
  void add_backward();
  void add(std::vector<Call>& calls, const ProductShape& shape, Place a, Place b, Place c);
  ProductShape product(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t c_stride) const;
  Place qkv(int part, std::int64_t position) const;
  void prepare(Thread& thread, Memory& memory) const;
  Operands operands(const Call& call, const Thread& thread, std::int64_t head) const;

  std::int64_t layers_, batch_, length_, heads_, head_dim_;
  DType dtype_;
  Tensor qkv_, gradient_;
  std::vector<ProductShape> shapes_;
  std::vector<Call> forward_, backward_;  ///< of one head
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace tessera::bench
