#include "cuda/gemm_plan_cuda.h"

#include <cuda_runtime.h>

#include <optional>
#include <string>
#include <utility>

#include "cuda/shared_object.h"
#include "tessera/core/error.h"
#include "tessera/kernels/cuda_options.h"

namespace tessera::cuda {
namespace {

constexpr int kHopper = 9;

/// A training run has a few dozen problems; a limit keeps a sweep of sizes from piling up.
constexpr std::size_t kMaxPlans = 1024;

template <auto kDestroy>
struct Destroy {
  template <typename T>
  void operator()(T* object) const {
    static_cast<void>(kDestroy(object));
  }
};
using Description = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>,
                                    Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                   Destroy<cublasLtMatmulPreferenceDestroy>>;

std::string describe(const GemmProblem& p) {
  return concat("C (", p.m, ", ", p.n, ") of ", to_string(p.c_dtype), " with rows of ", p.c_stride,
                p.accumulate ? " += " : " = ", "A", p.transpose_a ? "^T" : "", " B",
                p.transpose_b ? "^T" : "", ", K = ", p.k, ", operands of ", to_string(p.dtype),
                " with rows of ", p.a_stride, " and ", p.b_stride, ", epilogue ",
                static_cast<int>(p.epilogue), ", addresses aligned to ", p.a_alignment, ", ",
                p.b_alignment, ", ", p.c_alignment, ", ", p.vector_alignment, " and ",
                p.aux_alignment);
}

void check(cublasStatus_t status, const char* function, const GemmProblem& problem) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::kInternal, "gemm: ", function, " failed with ", cublasLtGetStatusName(status),
       " for ", describe(problem));
}

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU;
    case GemmEpilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case GemmEpilogue::kGeluAux:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::kGeluAuxBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADB;  // our A is cuBLASLt's B, see make_description
  }
  fail(ErrorCode::kInternal, "gemm: an epilogue of no known kind");
}

template <typename T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value,
         const GemmProblem& problem) {
  check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute", problem);
}

template <typename T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value, const GemmProblem& problem) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute", problem);
}

/// An address that is aligned to `bytes`, and to no more; null for 0. Nobody reads what is there.
void* address_aligned_to(std::uint32_t bytes) {
  constexpr std::uintptr_t kSomewhere = std::uintptr_t{1} << 32U;
  return bytes == 0 ? nullptr : reinterpret_cast<void*>(kSomewhere + bytes);
}

/// For looking for an algorithm; see [Note: the same algorithm in every run].
GemmPointers pointers_as_aligned(const GemmProblem& p) {
  return {.vector = address_aligned_to(p.vector_alignment),
          .aux = address_aligned_to(p.aux_alignment)};
}

/// cuBLASLt's matrices are column-major: a row-major matrix is its own transpose to it. So it
/// computes C^T = op(B)^T op(A)^T, where our B comes first and transpositions stay as they are.
Description make_description(const GemmProblem& p, const GemmPointers& pointers) {
  cublasLtMatmulDesc_t created = nullptr;
  // True fp32 for fp32 operands (no TF32), fp32 accumulation for bf16.
  check(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate", p);
  Description description(created);
  const cublasOperation_t b_operation = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t a_operation = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, b_operation, p);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, a_operation, p);
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.epilogue), p);
  if (p.aux_stride != 0) {
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_stride, p);
  }
  if (pointers.vector != nullptr) {
    set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.vector, p);
  }
  if (pointers.aux != nullptr) {
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pointers.aux, p);
  }
  return description;
}

/// A matrix of `rows` rows as stored by us.
Layout make_layout(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                   const GemmProblem& p) {
  cublasLtMatrixLayout_t created = nullptr;
  check(cublasLtMatrixLayoutCreate(&created, data_type(dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), stride),
        "cublasLtMatrixLayoutCreate", p);
  return Layout(created);
}

Preference make_preference(const GemmProblem& p, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t created = nullptr;
  check(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate", p);
  Preference preference(created);
  // [Note: the same algorithm in every run]; without the bit of a scheme, products that are not
  // split remain.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const auto bytes = static_cast<std::uint64_t>(workspace_bytes);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes, p);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions, p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b_alignment, p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a_alignment, p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c_alignment, p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c_alignment, p);
  return preference;
}

}  // namespace

struct GemmPlans::Plan {
  Layout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm{};  ///< none: not supported

  Plan(cublasLtHandle_t handle, const GemmProblem& p, std::size_t workspace_bytes)
      : a(make_layout(p.dtype, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_stride,
                      p)),
        b(make_layout(p.dtype, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_stride,
                      p)),
        c(make_layout(p.c_dtype, p.m, p.n, p.c_stride, p)) {
    const Description description = make_description(p, pointers_as_aligned(p));
    const Preference preference = make_preference(p, workspace_bytes);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, description.get(), b.get(), a.get(), c.get(),
                                       c.get(), preference.get(), 1, &found, &count);
    // What it cannot fuse it refuses in either of these ways.
    const bool refused =
        status == CUBLAS_STATUS_NOT_SUPPORTED ||
        (status == CUBLAS_STATUS_INVALID_VALUE && p.epilogue != GemmEpilogue::kNone);
    if (!refused) check(status, "cublasLtMatmulAlgoGetHeuristic", p);
    if (!refused && count > 0 && found.state == CUBLAS_STATUS_SUCCESS) algorithm = found.algo;
  }
};

GemmPlans& GemmPlans::of(CudaStream& stream) {
  std::shared_ptr<void>& slot = stream.library(CudaStream::Library::kBlas);
  if (slot == nullptr) {
    static SharedObjects<int, GemmPlans> of_gpus;
    const int gpu = stream.ordinal();
    slot = of_gpus.get(gpu, [gpu] { return std::make_shared<GemmPlans>(gpu); });
  }
  return *static_cast<GemmPlans*>(slot.get());
}

GemmPlans::GemmPlans(int ordinal) {
  int major = 0;
  const cudaError_t asked =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
  if (asked != cudaSuccess)
    fail(ErrorCode::kInternal, "gemm: cudaDeviceGetAttribute failed with ", cudaGetErrorName(asked),
         " for GPU ", ordinal);
  constexpr std::size_t kMost = kCudaGemmWorkspaceBytes;
  workspace_bytes_ = major == kHopper ? kMost : kMost / 2;
  fuses_gelu_ = major >= kHopper;
  const cublasStatus_t created = cublasLtCreate(&handle_);
  if (created != CUBLAS_STATUS_SUCCESS)
    fail(ErrorCode::kInternal, "gemm: cublasLtCreate failed with ", cublasLtGetStatusName(created),
         " on GPU ", ordinal);
}

GemmPlans::~GemmPlans() { static_cast<void>(cublasLtDestroy(handle_)); }

std::shared_ptr<const GemmPlans::Plan> GemmPlans::plan_for(const GemmProblem& problem) {
  const std::lock_guard lock(mutex_);
  auto found = plans_.find(problem);
  if (found == plans_.end()) {
    if (plans_.size() >= kMaxPlans) plans_.clear();
    auto plan = std::make_shared<const Plan>(handle_, problem, workspace_bytes_);
    found = plans_.emplace(problem, std::move(plan)).first;
  }
  return found->second;
}

bool GemmPlans::supports(const GemmProblem& problem) {
  return plan_for(problem)->algorithm.has_value();
}

void GemmPlans::run(const GemmProblem& problem, const GemmPointers& pointers, void* workspace,
                    CudaStream& stream) {
  const std::shared_ptr<const Plan> plan = plan_for(problem);
  // Made anew, since it holds addresses and other threads use the plan; it takes no time beside
  // a launch.
  const Description description = make_description(problem, pointers);
  const float alpha = 1.0F;
  const float beta = problem.accumulate ? 1.0F : 0.0F;
  check(cublasLtMatmul(handle_, description.get(), &alpha, pointers.b, plan->b.get(), pointers.a,
                       plan->a.get(), &beta, pointers.c, plan->c.get(), pointers.c, plan->c.get(),
                       &*plan->algorithm, workspace, workspace_bytes_, stream.handle()),
        "cublasLtMatmul", problem);
}

}  // namespace tessera::cuda
