#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "direct_product.h"
#include "tessera/core/tensor.h"
#include "tessera/model/gpt.h"

namespace tessera::bench {

/// The matrix products of one training step's linear layers and head, and nothing else: no bias,
/// GELU or attention. In the order of the step, with its shapes and strides (rows of logits begin
/// at multiples of 64 bytes), each layer with a weight, a weight gradient and a saved input of its
/// own, all of them normal random numbers. The head runs in the step's chunks of rows; the first
/// writes its weight gradient, the others add to it.
class StepProducts {
 public:
  /// Tries out the ways of oneDNN for every shape; takes the time of some steps. Belongs to the
  /// calling thread and uses its OpenMP threads.
  StepProducts(const GptConfig& gpt, std::int64_t tokens, DType dtype, Memory& memory);

  void run(Layouts layouts);
  double flops() const;  ///< of one run
  const std::vector<DirectProduct>& products() const { return products_; }

 private:
  struct Call {
    ProductShape shape;
    Operands operands;
    std::size_t product = 0;  ///< of products_
  };
  /// The matrices of a linear layer, inputs -> outputs.
  struct Linear {
    std::int64_t inputs, outputs;
    Tensor x, weight, gradient;
  };

  Tensor random(Shape shape, DType dtype, float stddev);
  /// Activations that come and go: those of one role and width share their memory.
  const Tensor& shared(const char* role, std::int64_t width);
  Linear linear(std::int64_t inputs, std::int64_t outputs);
  void add_forward(const Linear& l);
  void add_backward(const Linear& l);
  void add_head(const Linear& l);
  void choose_ways();

  Memory& memory_;
  const std::int64_t tokens_;
  const DType dtype_;
  std::vector<Tensor> tensors_;
  std::map<std::pair<std::string, std::int64_t>, Tensor> shared_;
  std::vector<Call> calls_;
  std::vector<DirectProduct> products_;
};

}  // namespace tessera::bench
