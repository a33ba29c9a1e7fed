#pragma once

#include <vector>

#include "linear_parts.h"

// LoRA's additions to the output of a linear layer, by GEMMs alone:
//
//   h (rows, R) = scale * (x a^T);  y[:, columns] += h b^T
//   db = dy^T h;  dh = scale * (dy b);  da = dh^T x;  dx += dh a
//
// The sum is rounded once, where the second GEMM stores it. h is small and kept for backward; dy
// are the columns of the gradient of y where they lie.
//
// [Note: neighbouring a's] Several products read the same x where one matrix joins those of several
// modules (queries, keys and values; gate and up). Where their a's follow each other in memory, as
// neighbours of a flat parameter do, and have the same scale, they are one matrix (sum of R, I):
// one GEMM gives the h of all, one da, and one dx, each of which reads or writes the large matrix
// once instead of once for each product. A choice by where parameters lie is a choice by the
// layout, so it is the same for each rank and strategy.
namespace tessera::ops {

/// Products whose a's are one matrix, between forward and backward.
class LowRankGroup {
 public:
  /// h of all, and their sums into y.
  void run_forward(Tape& tape, const TensorView& x, const TensorView& y);
  /// Gradients of a and b, by Tape::write_gradients(); keeps dh for add_input_gradient(). `op` is a
  /// literal, and `x` what forward has read.
  void run_backward(const char* op, Tape& tape, const Tensor& dy, Saved x);
  /// dx (rows, I) [+]= dh a. Lets go of dh.
  void add_input_gradient(Tape& tape, const TensorView& dx, bool accumulate);

 private:
  friend std::vector<LowRankGroup> low_rank_groups(const char* op, const Value& y, const Value& x,
                                                   std::span<const LowRank> products);
  std::int64_t rank() const;

  std::vector<LowRank> products_;
  Tensor hidden_, d_hidden_;  // (..., sum of R)
};

/// Products in their order; throws unless all fit y and x.
std::vector<LowRankGroup> low_rank_groups(const char* op, const Value& y, const Value& x,
                                          std::span<const LowRank> products);

/// x *= scale.
void scale_in_place(Tape& tape, const TensorView& x, float scale);

}  // namespace tessera::ops
