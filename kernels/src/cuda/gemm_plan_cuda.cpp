#include "cuda/gemm_plan_cuda.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
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

// The only sums of parts that are allowed: [Note: the same algorithm in every run] and
// [Note: one rounding].
std::uint32_t reductions_of(const GemmProblem& p) {
  const bool finished_apart = p.epilogue != GemmEpilogue::kNone;
  return p.c_dtype != DType::kFloat32 && finished_apart ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                        : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/// The factor of C, or of a residual; see [Note: one rounding].
float beta_of(const GemmProblem& p) {
  if (p.residual_stride > 0) return 1.0F;
  if (!p.accumulate) return 0.0F;
  return p.c_dtype == DType::kFloat32 ? 1.0F : std::nextafter(1.0F, 2.0F);
}

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

void check(cublasStatus_t status, const char* function, const GemmProblem& problem) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::kInternal, "gemm: ", function, " failed with ", cublasLtGetStatusName(status),
       " for ", describe(problem));
}

cudaDataType_t data_type(DType dtype, Fp8Format format) {
  switch (dtype) {
    case DType::kUInt8:
      return format == Fp8Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;  // as the arguments have been checked
  }
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
  const std::uint32_t factors = p.dtype == DType::kUInt8 ? kGemmAlignment : 0;
  return {.vector = address_aligned_to(p.vector_alignment),
          .aux = address_aligned_to(p.aux_alignment),
          .a_factor = static_cast<const float*>(address_aligned_to(factors)),
          .b_factor = static_cast<const float*>(address_aligned_to(factors))};
}

/// cuBLASLt's matrices are column-major: a row-major matrix is its own transpose to it. So it
/// computes C^T = op(B)^T op(A)^T, where our B comes first and transpositions stay as they are.
Description make_description(const GemmProblem& p, const GemmPointers& pointers) {
  cublasLtMatmulDesc_t created = nullptr;
  // True fp32 for fp32 operands (no TF32), fp32 accumulation for bf16 and fp16.
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
  if (pointers.a_factor != nullptr) {
    set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_factor, p);
    set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_factor, p);
    set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{p.fast_accumulation}, p);
  }
  return description;
}

/// A matrix of `rows` rows as stored by us.
Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                   std::int64_t stride, const GemmProblem& p) {
  cublasLtMatrixLayout_t created = nullptr;
  check(cublasLtMatrixLayoutCreate(&created, type, static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), stride),
        "cublasLtMatrixLayoutCreate", p);
  return Layout(created);
}

Preference make_preference(const GemmProblem& p, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t created = nullptr;
  check(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate", p);
  Preference preference(created);
  // Without the bit of a scheme, products that are not split remain.
  const auto bytes = static_cast<std::uint64_t>(workspace_bytes);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes, p);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions_of(p), p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b_alignment, p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a_alignment, p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      p.residual_stride > 0 ? p.residual_alignment : p.c_alignment, p);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c_alignment, p);
  return preference;
}

/// A problem as cuBLASLt is told of it, but for addresses.
struct Layouts {
  Layout a, b, c;
  Layout added;  ///< cuBLASLt's C, where c is its D

  explicit Layouts(const GemmProblem& p)
      : a(make_layout(data_type(p.dtype, p.a_format), p.transpose_a ? p.k : p.m,
                      p.transpose_a ? p.m : p.k, p.a_stride, p)),
        b(make_layout(data_type(p.dtype, p.b_format), p.transpose_b ? p.n : p.k,
                      p.transpose_b ? p.k : p.n, p.b_stride, p)),
        c(make_layout(data_type(p.c_dtype, Fp8Format::kE4M3), p.m, p.n, p.c_stride, p)),
        added(make_layout(data_type(p.c_dtype, Fp8Format::kE4M3), p.m, p.n,
                          p.residual_stride > 0 ? p.residual_stride : p.c_stride, p)) {}
};

/// Returns what the heuristic names, best first; nothing if cuBLASLt cannot.
std::vector<cublasLtMatmulAlgo_t> find_algorithms(cublasLtHandle_t handle, const GemmProblem& p,
                                                  const Layouts& layouts,
                                                  std::size_t workspace_bytes, int most) {
  const Description description = make_description(p, pointers_as_aligned(p));
  const Preference preference = make_preference(p, workspace_bytes);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, description.get(), layouts.b.get(), layouts.a.get(), layouts.added.get(),
      layouts.c.get(), preference.get(), most, found.data(), &count);
  // It refuses what it cannot fuse, and fp8 on older GPUs, in either of these ways.
  const bool may_be_refused = p.epilogue != GemmEpilogue::kNone || p.dtype == DType::kUInt8;
  const bool refused = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                       (status == CUBLAS_STATUS_INVALID_VALUE && may_be_refused);
  if (refused) return {};
  check(status, "cublasLtMatmulAlgoGetHeuristic", p);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) {
    const auto& result = found[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

/// The algorithm of a table, if it is one that could have been chosen here.
cublasLtMatmulAlgo_t restored(cublasLtHandle_t handle, const GemmProblem& p, const Layouts& layouts,
                              std::size_t workspace_bytes, const GemmAlgorithm& words) {
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(sizeof(algorithm.data) == sizeof(words));
  std::copy(words.begin(), words.end(), algorithm.data);
  const Description description = make_description(p, pointers_as_aligned(p));
  cublasLtMatmulHeuristicResult_t result{};
  cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, description.get(), layouts.b.get(), layouts.a.get(),
                              layouts.added.get(), layouts.c.get(), &algorithm, &result);
  std::uint32_t reductions = 0;
  std::size_t written = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                  &reductions, sizeof(reductions), &written);
  }
  require(status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes &&
              (reductions & ~reductions_of(p)) == 0,
          ErrorCode::kConfig,
          "the table of GEMMs (`gemm_table`) names an algorithm that cannot run ", describe(p),
          ": ", cublasLtGetStatusName(status), ", ", result.workspaceSize,
          " bytes of workspace, reduction scheme ", reductions,
          "; write the table again with tessera calibrate");
  return algorithm;
}

}  // namespace

struct GemmPlans::Plan {
  Layouts layouts;
  std::optional<cublasLtMatmulAlgo_t> algorithm{};  ///< none: not supported
};

GemmPlans& GemmPlans::of(CudaStream& stream) {
  std::shared_ptr<void>& slot = stream.library(CudaStream::Library::kBlas);
  const std::shared_ptr<const GemmTable>& table = cuda_attention(stream).options.gemm_table;
  const auto* const kept = static_cast<const GemmPlans*>(slot.get());
  if (kept == nullptr || kept->table_ != table) {
    using Key = std::pair<int, const GemmTable*>;
    static SharedObjects<Key, GemmPlans> all;
    const int gpu = stream.ordinal();
    slot = all.get(Key{gpu, table.get()}, [&] { return std::make_shared<GemmPlans>(gpu, table); });
  }
  return *static_cast<GemmPlans*>(slot.get());
}

GemmPlans::GemmPlans(int ordinal, std::shared_ptr<const GemmTable> table)
    : table_(std::move(table)) {
  const GemmMachine machine = machine_of(ordinal);
  if (table_ != nullptr) require_made_on(*table_, machine);
  constexpr std::size_t kMost = kCudaGemmWorkspaceBytes;
  workspace_bytes_ = machine.major == kHopper ? kMost : kMost / 2;
  fuses_gelu_ = machine.major >= kHopper;
  const cublasStatus_t created = cublasLtCreate(&handle_);
  if (created != CUBLAS_STATUS_SUCCESS)
    fail(ErrorCode::kInternal, "gemm: cublasLtCreate failed with ", cublasLtGetStatusName(created),
         " on GPU ", ordinal);
}

GemmPlans::~GemmPlans() { static_cast<void>(cublasLtDestroy(handle_)); }

std::shared_ptr<const GemmPlans::Plan> GemmPlans::make_plan(const GemmProblem& problem) const {
  auto plan = std::make_shared<Plan>(Plan{.layouts = Layouts(problem)});
  if (table_ != nullptr) {
    const auto choice = table_->choices.find(problem);
    if (choice != table_->choices.end()) {
      if (choice->second.fused) {
        plan->algorithm =
            restored(handle_, problem, plan->layouts, workspace_bytes_, choice->second.algorithm);
      }
      return plan;
    }
  }
  const auto found = find_algorithms(handle_, problem, plan->layouts, workspace_bytes_, 1);
  if (!found.empty()) plan->algorithm = found.front();
  return plan;
}

std::shared_ptr<const GemmPlans::Plan> GemmPlans::plan_for(const GemmProblem& problem) {
  const std::lock_guard lock(mutex_);
  auto found = plans_.find(problem);
  if (found == plans_.end()) {
    if (plans_.size() >= kMaxPlans) plans_.clear();
    found = plans_.emplace(problem, make_plan(problem)).first;
  }
  return found->second;
}

bool GemmPlans::supports(const GemmProblem& problem) {
  return plan_for(problem)->algorithm.has_value();
}

std::vector<GemmAlgorithm> GemmPlans::algorithms(const GemmProblem& problem, int most) {
  std::vector<GemmAlgorithm> words;
  for (const cublasLtMatmulAlgo_t& algorithm :
       find_algorithms(handle_, problem, Layouts(problem), workspace_bytes_, most)) {
    words.push_back(std::to_array(algorithm.data));
  }
  return words;
}

void GemmPlans::run(const GemmProblem& problem, const GemmPointers& pointers, void* workspace,
                    CudaStream& stream) {
  const std::shared_ptr<const Plan> plan = plan_for(problem);
  // Made anew, since it holds addresses and other threads use the plan; it takes no time beside
  // a launch.
  const Description description = make_description(problem, pointers);
  const float alpha = 1.0F;
  const bool adds = problem.residual_stride > 0;
  const float beta = beta_of(problem);
  const Layouts& layouts = plan->layouts;
  check(cublasLtMatmul(handle_, description.get(), &alpha, pointers.b, layouts.b.get(), pointers.a,
                       layouts.a.get(), &beta, adds ? pointers.residual : pointers.c,
                       layouts.added.get(), pointers.c, layouts.c.get(), &*plan->algorithm,
                       workspace, workspace_bytes_, stream.handle()),
        "cublasLtMatmul", problem);
}

GemmMachine machine_of(int ordinal) {
  cudaDeviceProp properties{};
  const cudaError_t asked = cudaGetDeviceProperties(&properties, ordinal);
  if (asked != cudaSuccess)
    fail(ErrorCode::kInternal, "gemm: cudaGetDeviceProperties failed with ",
         cudaGetErrorName(asked), " for GPU ", ordinal);
  const std::size_t version = cublasLtGetVersion();
  return {.gpu = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .cublaslt = concat(version / 10000, ".", version / 100 % 100, ".", version % 100)};
}

}  // namespace tessera::cuda
