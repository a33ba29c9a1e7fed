#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>

#include "fake_cublaslt.h"
#include "fake_cuda.h"
#include "product.h"

// cuBLASLt for the emulated GPU: checks a call as the real library does, and runs it on the stream
// as a host function.
//
// It refuses what NVIDIA documents as refused (inconsistent shapes, short leading dimensions, an
// aux matrix whose rows are not a multiple of 8, a bias of another type than D, which cannot be
// said), and some of what a given GPU may have no kernel for, so that callers' ways out are tested:
// rows of 16-bit elements that do not begin on 4 bytes; fused GELU and bias gradients where a
// matrix begins off 16 bytes, and fused GELU into another type than the operands'. It takes from
// the addresses of bias and aux how they are aligned, up to 256 bytes, and names other algorithms
// first for another alignment; an algorithm loads up to 16 bytes at once, and faults where less is
// aligned than was when it was chosen. Where in-place reductions are allowed it uses one, and sums
// in another order each time.

using fake_cublaslt::has;
using fake_cublaslt::is_fp8;
using fake_cublaslt::Product;
using fake_cublaslt::size_of;

struct FakeMatmulPreference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t a_alignment = 256, b_alignment = 256, c_alignment = 256, d_alignment = 256;
};

/// Products that were enqueued. They stay until the handle goes, because a captured graph runs its
/// host functions again; a training loop repeats itself, so they are few.
struct cublasLtContext {
  std::mutex mutex;
  std::set<Product> products;  // guarded by mutex
};

namespace {

constexpr std::uint64_t kSplitKWorkspace = 64 << 10;
constexpr std::int64_t kSplitK = 64;  // split-K from here on

/// What an algorithm was chosen for; it refuses anything else.
struct Algorithm {
  std::int64_t m = 0, n = 0, k = 0;
  std::uint32_t epilogue = 0;
  std::uint16_t a_alignment = 0, b_alignment = 0, c_alignment = 0, d_alignment = 0;
  std::uint16_t bias_alignment = 0, aux_alignment = 0;
  std::uint8_t number = 0;  ///< below kAlgorithms
  std::uint8_t any_order = 0;
  std::uint32_t workspace_bytes = 0;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

struct Sizes {
  std::int64_t rows = 0, columns = 0;
};
Sizes sizes_of(const FakeMatrixLayout& layout, cublasOperation_t operation) {
  if (operation == CUBLAS_OP_T) return {layout.columns, layout.rows};
  return {layout.rows, layout.columns};
}

bool aligned(const void* address, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// The largest power of two, up to 256, that divides the address; 0 of null.
std::uint16_t alignment_of(const void* address) {
  if (address == nullptr) return 0;
  const auto bits =
      static_cast<unsigned>(std::countr_zero(reinterpret_cast<std::uintptr_t>(address)));
  return static_cast<std::uint16_t>(1U << std::min(bits, 8U));
}

bool consistent(const FakeMatmulDesc& desc, const FakeMatrixLayout& a, const FakeMatrixLayout& b,
                const FakeMatrixLayout& c, const FakeMatrixLayout& d) {
  for (const FakeMatrixLayout* x : {&a, &b, &c, &d}) {
    if (x->rows <= 0 || x->columns <= 0 || x->ld < x->rows) return false;
  }
  const Sizes op_a = sizes_of(a, desc.a_operation);
  const Sizes op_b = sizes_of(b, desc.b_operation);
  if (op_a.columns != op_b.rows || op_a.rows != d.rows || op_b.columns != d.columns) return false;
  if (c.rows != d.rows || c.columns != d.columns) return false;
  const bool vector =
      has(desc.epilogue, CUBLASLT_EPILOGUE_BIAS) || desc.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (vector && desc.bias == nullptr) return false;
  const bool aux =
      desc.epilogue == CUBLASLT_EPILOGUE_DGELU || has(desc.epilogue, CUBLASLT_EPILOGUE_GELU_AUX);
  return !aux || (desc.aux != nullptr && desc.aux_ld >= d.rows && desc.aux_ld % 8 == 0);
}

/// True if all columns of the four matrices begin on multiples of `bytes`.
bool all_aligned(const FakeMatrixLayout& a, const FakeMatrixLayout& b, const FakeMatrixLayout& d,
                 const FakeMatmulPreference& preference, std::int64_t bytes) {
  const auto good = [bytes](const FakeMatrixLayout& x, std::uint32_t alignment) {
    return x.ld * size_of(x.type) % bytes == 0 && static_cast<std::int64_t>(alignment) >= bytes;
  };
  return good(a, preference.a_alignment) && good(b, preference.b_alignment) &&
         good(d, std::min(preference.c_alignment, preference.d_alignment));
}

/// Operands in fp8 (section 3.1.5 of NVIDIA's cuBLAS documentation): A transposed and B not, one of
/// them E4M3, everything on 16 bytes, D of 16 or 32 bits, on a GPU that has such tensor cores.
bool has_fp8_kernel(const FakeMatmulDesc& desc, const FakeMatrixLayout& a,
                    const FakeMatrixLayout& b, const FakeMatrixLayout& d,
                    const FakeMatmulPreference& preference) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return false;
  const bool has_cores = 10 * properties.major + properties.minor >= 89;
  const bool multiples = a.rows % 16 == 0 && d.rows % 16 == 0;
  return has_cores && is_fp8(b.type) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) &&
         !is_fp8(d.type) && desc.a_operation == CUBLAS_OP_T && desc.b_operation == CUBLAS_OP_N &&
         desc.a_scale != nullptr && desc.b_scale != nullptr && multiples &&
         (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
          (desc.epilogue == CUBLASLT_EPILOGUE_BIAS && d.type == CUDA_R_16BF)) &&
         all_aligned(a, b, d, preference, 16);
}

bool has_kernel(const FakeMatmulDesc& desc, const FakeMatrixLayout& a, const FakeMatrixLayout& b,
                const FakeMatrixLayout& c, const FakeMatrixLayout& d,
                const FakeMatmulPreference& preference) {
  if (c.type != d.type) return false;
  if (is_fp8(a.type)) return has_fp8_kernel(desc, a, b, d, preference);
  if (a.type != b.type) return false;
  if (d.type != a.type && d.type != CUDA_R_32F) return false;
  if (a.type != CUDA_R_32F && !all_aligned(a, b, d, preference, 4)) return false;
  const bool gelu =
      has(desc.epilogue, CUBLASLT_EPILOGUE_GELU) || desc.epilogue == CUBLASLT_EPILOGUE_DGELU;
  if (gelu && d.type != a.type) return false;
  const bool vector_only =
      desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT || desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
  return vector_only || all_aligned(a, b, d, preference, 16);
}

template <typename T>
cublasStatus_t assign(T& member, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

std::atomic<std::int64_t> heuristics_asked{0};

struct SharedDurations {
  std::mutex mutex;
  fake_cublaslt::Durations value;  // guarded by mutex

  SharedDurations() {
    const char* const text = std::getenv("FAKE_CUBLASLT_DURATIONS");
    std::istringstream numbers(text != nullptr ? text : "");
    for (auto* durations : {&value.plain, &value.fused}) {
      durations->fill(1);
      for (unsigned& duration : *durations) {
        if (text != nullptr) numbers >> duration;
      }
    }
  }
};
SharedDurations& shared_durations() {
  static SharedDurations durations;
  return durations;
}

unsigned duration_of(const Algorithm& algorithm) {
  const bool plain = algorithm.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                     algorithm.epilogue == CUBLASLT_EPILOGUE_BIAS;
  SharedDurations& durations = shared_durations();
  const std::lock_guard lock(durations.mutex);
  return (plain ? durations.value.plain : durations.value.fused).at(algorithm.number);
}

bool fits(const Algorithm& algorithm, const FakeMatmulDesc& desc, const FakeMatrixLayout& a,
          const FakeMatrixLayout& d) {
  return algorithm.m == d.rows && algorithm.n == d.columns &&
         algorithm.k == sizes_of(a, desc.a_operation).columns &&
         algorithm.epilogue == desc.epilogue && algorithm.number < fake_cublaslt::kAlgorithms;
}

Algorithm algorithm_of(const cublasLtMatmulAlgo_t& algo) {
  Algorithm algorithm;
  std::memcpy(&algorithm, algo.data, sizeof(algorithm));
  return algorithm;
}

}  // namespace

void fake_cublaslt::set_durations(const Durations& durations) {
  const std::lock_guard lock(shared_durations().mutex);
  shared_durations().value = durations;
}

int fake_cublaslt::number_of(const std::array<std::uint64_t, 8>& algorithm) {
  cublasLtMatmulAlgo_t algo{};
  std::copy(algorithm.begin(), algorithm.end(), algo.data);
  return algorithm_of(algo).number;
}

std::int64_t fake_cublaslt::heuristics() { return heuristics_asked; }

extern "C" {

std::size_t cublasLtGetVersion() { return 130100; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "an unknown status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *desc = new FakeMatmulDesc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(desc->a_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(desc->b_operation, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return assign(desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return assign(desc->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return assign(desc->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return assign(desc->b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return assign(desc->fast_accumulation, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading_dimension) {
  *layout = new FakeMatrixLayout{type, static_cast<std::int64_t>(rows),
                                 static_cast<std::int64_t>(columns), leading_dimension};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new FakeMatmulPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return assign(preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(preference->a_alignment, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(preference->b_alignment, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(preference->c_alignment, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(preference->d_alignment, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  ++heuristics_asked;
  if (handle == nullptr || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (!consistent(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!has_kernel(*desc, *a, *b, *c, *d, *preference)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::int64_t k = sizes_of(*a, desc->a_operation).columns;
  Algorithm algorithm{.m = d->rows,
                      .n = d->columns,
                      .k = k,
                      .epilogue = desc->epilogue,
                      .a_alignment = static_cast<std::uint16_t>(preference->a_alignment),
                      .b_alignment = static_cast<std::uint16_t>(preference->b_alignment),
                      .c_alignment = static_cast<std::uint16_t>(preference->c_alignment),
                      .d_alignment = static_cast<std::uint16_t>(preference->d_alignment),
                      .bias_alignment = alignment_of(desc->bias),
                      .aux_alignment = alignment_of(desc->aux)};
  const bool split = k >= kSplitK && preference->workspace_bytes >= kSplitKWorkspace &&
                     preference->reductions != CUBLASLT_REDUCTION_SCHEME_NONE;
  if (split) algorithm.workspace_bytes = kSplitKWorkspace;
  if (split && (preference->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
    algorithm.any_order = 1;
  }
  const int first = std::countr_zero(std::max<unsigned>(algorithm.bias_alignment, 1U)) +
                    std::countr_zero(std::max<unsigned>(algorithm.aux_alignment, 1U));
  for (; *found < std::min(wanted, fake_cublaslt::kAlgorithms); ++*found) {
    algorithm.number = static_cast<std::uint8_t>((first + *found) % fake_cublaslt::kAlgorithms);
    cublasLtMatmulHeuristicResult_t& result = results[*found];
    result = {};
    std::memcpy(result.algo.data, &algorithm, sizeof(algorithm));
    result.workspaceSize = algorithm.workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr || !consistent(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  const Algorithm algorithm = algorithm_of(*algo);
  if (!fits(algorithm, *desc, *a, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  *result = {};
  result->workspaceSize = algorithm.workspace_bytes;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  if (attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes != sizeof(std::uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  const Algorithm algorithm = algorithm_of(*algo);
  const std::uint32_t scheme = algorithm.any_order != 0 ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                               : algorithm.workspace_bytes > 0
                                   ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                   : CUBLASLT_REDUCTION_SCHEME_NONE;
  std::memcpy(value, &scheme, sizeof(scheme));
  if (written != nullptr) *written = sizeof(scheme);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr || algo == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!consistent(*desc, *a_layout, *b_layout, *c_layout, *d_layout)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Algorithm algorithm = algorithm_of(*algo);
  const bool addresses = aligned(a, algorithm.a_alignment) && aligned(b, algorithm.b_alignment) &&
                         aligned(c, algorithm.c_alignment) && aligned(d, algorithm.d_alignment);
  const bool room = workspace_bytes >= algorithm.workspace_bytes &&
                    (algorithm.workspace_bytes == 0 || aligned(workspace, 256));
  if (!fits(algorithm, *desc, *a_layout, *d_layout) || !addresses || !room) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Product product{.desc = *desc,
                        .a_layout = *a_layout,
                        .b_layout = *b_layout,
                        .c_layout = *c_layout,
                        .d_layout = *d_layout,
                        .a = a,
                        .b = b,
                        .c = c,
                        .d = d,
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta),
                        .workspace = workspace,
                        .workspace_bytes = algorithm.workspace_bytes,
                        .algorithm = algorithm.number,
                        .bias_load = std::min<std::int64_t>(algorithm.bias_alignment, 16),
                        .aux_load = std::min<std::int64_t>(algorithm.aux_alignment, 16),
                        .milliseconds = duration_of(algorithm),
                        .any_order = algorithm.any_order != 0};
  const Product* kept = nullptr;
  {
    const std::lock_guard lock(handle->mutex);
    kept = &*handle->products.insert(product).first;
  }
  const auto run = [](void* p) {
    const auto& enqueued = *static_cast<const Product*>(p);
    fake_cuda::pass_time(std::chrono::milliseconds(enqueued.milliseconds));
    fake_cublaslt::compute(enqueued);
  };
  const cudaError_t error = cudaLaunchHostFunc(stream, run, const_cast<Product*>(kept));
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

}  // extern "C"
