#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>

#include "tessera/core/cuda_device.h"
#include "tessera/core/dtype.h"

// Matrix products as cuBLASLt runs them: the problem, and what is prepared once for each.
namespace tessera::cuda {

/// What cuBLASLt does to a product before it stores it. T_bias is C's dtype in all of them.
enum class GemmEpilogue : std::uint8_t {
  kNone,
  kBias,          ///< + vector (n)
  kGelu,          ///< gelu
  kGeluBias,      ///< gelu(. + vector (n))
  kGeluAux,       ///< gelu; its argument to aux (m, n)
  kGeluAuxBias,   ///< gelu(. + vector (n)); its argument to aux (m, n)
  kGeluBackward,  ///< . * gelu'(aux (m, n))
  kBiasGradient,  ///< row sums of op(A) to vector (m)
};

/// All that the choice of an algorithm may depend on, in our row-major terms; see GemmArgs.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  std::int64_t aux_stride = 0;  ///< of aux; 0 without
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType dtype = DType::kFloat32, c_dtype = DType::kFloat32;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  /// Largest powers of two, up to kGemmAlignment, that divide the addresses; 0 without.
  std::uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0;
  std::uint32_t vector_alignment = 0, aux_alignment = 0;

  auto operator<=>(const GemmProblem&) const = default;
};

/// No kernel loads or stores more than 16 bytes at once. Telling cuBLASLt of more would let the
/// choice of an algorithm, and with it the bits, depend on where a tensor happens to lie.
inline constexpr std::uint32_t kGemmAlignment = 16;

struct GemmPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  // As the epilogue has them.
  void* vector = nullptr;  ///< a bias, or where a bias gradient goes
  void* aux = nullptr;
};

/// The plans of a GPU, made on first use, for all streams and ranks of the process that run on it.
/// Thread-safe: a plan is made once, and not changed.
///
/// [Note: the same algorithm in every run] A plan's algorithm is the first that cuBLASLt's
/// heuristic names: a function of the problem, the library's version and the GPU's model, of no
/// timing and no order of calls. Split-K products are added up in fp32 in the workspace, in a fixed
/// order; reductions in C itself are excluded. The workspace has one size, because the heuristic
/// goes by it. It also goes by the addresses of bias and aux, from which it takes their alignment:
/// it is given others, of no better alignment than the problem says, so that nothing depends on
/// where a tensor happens to lie.
class GemmPlans {
 public:
  /// Those of the stream's GPU, which it keeps.
  static GemmPlans& of(CudaStream& stream);

  explicit GemmPlans(int ordinal);
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  /// False if cuBLASLt has no algorithm for this problem.
  bool supports(const GemmProblem& problem);

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

  cublasLtHandle_t handle_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  bool fuses_gelu_ = false;
  std::mutex mutex_;
  std::map<GemmProblem, std::shared_ptr<const Plan>> plans_;  // guarded by mutex_
};

}  // namespace tessera::cuda
