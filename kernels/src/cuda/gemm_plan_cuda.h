#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/core/cuda_device.h"
#include "tessera/kernels/gemm_table.h"

// Matrix products as cuBLASLt runs them: the problem, and what is prepared once for each.
namespace tessera::cuda {

struct GemmPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* residual = nullptr;
  // The epilogue's own.
  void* vector = nullptr;  ///< a bias, or where a bias gradient goes
  void* aux = nullptr;
  // On the device, (1) each: by which the numbers of A and B are multiplied, if they are codes.
  const float* a_factor = nullptr;
  const float* b_factor = nullptr;
};

/// The plans of a GPU, made on first use, for all streams and ranks of the process that run on it.
/// Thread-safe: a plan is made once, and not changed.
///
/// [Note: the same algorithm in every run] A plan's algorithm is the one that the table names, if
/// there is a table and it has the problem, else the first that cuBLASLt's heuristic names: a
/// function of the problem, the library's version and the GPU's model, of no timing in this run and
/// no order of calls. Split-K products are added up in fp32 in the workspace, in a fixed
/// order; reductions in C itself are excluded. The workspace has one size, because the heuristic
/// goes by it. It also goes by the addresses of bias and aux, from which it takes their alignment:
/// it is given others, of no better alignment than the problem says, so that nothing depends on
/// where a tensor happens to lie.
///
/// [Note: one rounding] C of 16 bits is rounded once, after all that is added to the product; of a
/// residual alone that is not promised. cuBLASLt 13.1 was seen on an H200 to round the product
/// first where
/// - it adds to C in place, aligned, with a beta of 1: the memory adds, in C's dtype. With any
///   other beta it does not, so beta is the next number: C counts 2^-23 more, which is nothing
///   beside its rounding;
/// - it adds up the parts of a split product that gets a bias: no product is split that gets
///   a bias, or, which was not seen, a GELU or its derivative;
/// - an operand is not aligned for TMA, so that an older kernel runs, and there is a bias: C is
///   set to the bias first, or the plain kernel runs.
/// The stand-in of the tests rounds there, too (tests/emulator_blas/product.cpp).
class GemmPlans {
 public:
  /// The stream keeps the plans of its GPU and table. Throws Error{kConfig} if the table was made
  /// elsewhere.
  static GemmPlans& of(CudaStream& stream);

  GemmPlans(int ordinal, std::shared_ptr<const GemmTable> table);
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  /// False if cuBLASLt has no algorithm for this problem, or separate kernels are faster: the table
  /// says of which, and without one those with a bias gradient are. Throws Error{kConfig} if the
  /// table's algorithm cannot run.
  bool supports(const GemmProblem& problem);

  /// Up to `most` algorithms that the heuristic names, in its order; the table is not asked.
  std::vector<GemmAlgorithm> algorithms(const GemmProblem& problem, int most);

  /// Launches a problem that is supported, with `workspace_bytes()` of workspace. The addresses
  /// must be aligned as the problem says.
  void run(const GemmProblem& problem, const GemmPointers& pointers, void* workspace,
           CudaStream& stream);

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  /// True if this GPU has kernels that take GELU along; elsewhere cuBLASLt's are slower than
  /// separate ones.
  bool fuses_gelu() const { return fuses_gelu_; }

 private:
  struct Plan;

  std::shared_ptr<const Plan> plan_for(const GemmProblem& problem);
  std::shared_ptr<const Plan> make_plan(const GemmProblem& problem) const;

  const std::shared_ptr<const GemmTable> table_;  // null: none
  cublasLtHandle_t handle_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  bool fuses_gelu_ = false;
  std::mutex mutex_;
  std::map<GemmProblem, std::shared_ptr<const Plan>> plans_;  // guarded by mutex_
};

GemmMachine machine_of(int ordinal);

}  // namespace tessera::cuda
