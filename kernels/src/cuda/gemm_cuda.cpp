#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_stream.h"
#include "cuda/gemm_fp8_cuda.h"
#include "cuda/gemm_plain_cuda.h"
#include "cuda/gemm_plan_cuda.h"
#include "gemm_arguments.h"
#include "gemm_candidates.h"
#include "tessera/core/error.h"

// GEMM by cuBLASLt: products with a bias, a residual, GELU, its derivative or a bias gradient in
// one kernel where it has such a kernel, and otherwise the product first and our kernels after it.
//
// Which of the two it is depends on shapes, dtypes, alignment, the GPU's model and the table of
// GEMMs alone (see [Note: the same algorithm in every run]), so a run can be repeated bit for bit.
// cuBLASLt has no algorithm for: K = 0; a bias that is not of C's dtype; a GELU argument whose rows
// are not a multiple of 8 elements. Products that it refuses altogether go to a plain kernel
// (gemm_plain_cuda.cu).

namespace tessera::cuda {
namespace {

constexpr std::int64_t kAuxMultiple = 8;  // elements; documented for the stride of aux

/// 0 of null.
std::uint32_t alignment_of(const void* address) {
  if (address == nullptr) return 0;
  const auto bits =
      static_cast<unsigned>(std::countr_zero(reinterpret_cast<std::uintptr_t>(address)));
  return std::min(kGemmAlignment, 1U << std::min(bits, 8U));
}

/// A fused call: what cuBLASLt gets.
struct Call {
  GemmProblem problem;
  GemmPointers pointers;
};

GemmEpilogue epilogue_of(const GemmArgs& args) {
  if (args.gelu_backward_input) return GemmEpilogue::kGeluBackward;
  if (!args.gelu) return args.bias ? GemmEpilogue::kBias : GemmEpilogue::kNone;
  if (args.gelu_input) return args.bias ? GemmEpilogue::kGeluAuxBias : GemmEpilogue::kGeluAux;
  return args.bias ? GemmEpilogue::kGeluBias : GemmEpilogue::kGelu;
}

Call make_call(const GemmArgs& args, const GemmSizes& sizes) {
  const TensorView& aux = args.gelu_backward_input ? args.gelu_backward_input : args.gelu_input;
  return {.problem = {.m = sizes.m,
                      .n = sizes.n,
                      .k = sizes.k,
                      .a_stride = sizes.a_stride,
                      .b_stride = sizes.b_stride,
                      .c_stride = sizes.c_stride,
                      .residual_stride = args.residual ? std::max<std::int64_t>(sizes.n, 1) : 0,
                      .aux_stride = aux ? sizes.n : 0,
                      .transpose_a = args.transpose_a,
                      .transpose_b = args.transpose_b,
                      .accumulate = args.accumulate,
                      .dtype = args.a.dtype,
                      .c_dtype = args.c.dtype,
                      .epilogue = epilogue_of(args),
                      .a_alignment = alignment_of(args.a.data),
                      .b_alignment = alignment_of(args.b.data),
                      .c_alignment = alignment_of(args.c.data),
                      .residual_alignment = alignment_of(args.residual.data),
                      .vector_alignment = alignment_of(args.bias.data),
                      .aux_alignment = alignment_of(aux.data),
                      .a_format = args.a_fp8.format,
                      .b_format = args.b_fp8.format,
                      .fast_accumulation = is_fp8(args) && args.fast_accumulation},
          .pointers = {.a = args.a.data,
                       .b = args.b.data,
                       .c = args.c.data,
                       .residual = args.residual.data,
                       .vector = args.bias.data,
                       .aux = aux.data}};
}

/// Whether TMA can load and store all operands, as cuBLASLt's kernels for Hopper want it; see
/// [Note: one rounding].
bool is_aligned(const Call& call) {
  const GemmProblem& p = call.problem;
  const auto whole = [](std::int64_t stride, DType dtype) {
    return stride * static_cast<std::int64_t>(size_of(dtype)) % kGemmAlignment == 0;
  };
  return whole(p.a_stride, p.dtype) && whole(p.b_stride, p.dtype) && whole(p.c_stride, p.c_dtype) &&
         whole(p.residual_stride, p.c_dtype) &&
         std::min({p.a_alignment, p.b_alignment, p.c_alignment}) == kGemmAlignment &&
         (p.residual_stride == 0 || p.residual_alignment == kGemmAlignment);
}

/// True of what cuBLASLt documents; whether it has a kernel, its heuristic says. GELU of fp32
/// and fp16 is left to our own kernels: how exact cuBLASLt's is, nothing says, and only bf16's few
/// bits hide it.
bool may_fuse(const GemmArgs& args, const GemmSizes& sizes, const GemmPlans& plans) {
  if (is_fp8(args) && !is_aligned(make_call(args, sizes))) return false;
  const bool backward = static_cast<bool>(args.gelu_backward_input);
  if (args.bias && args.bias.dtype != args.c.dtype) return false;
  if (args.bias && args.c.dtype != DType::kFloat32 && !is_aligned(make_call(args, sizes)))
    return false;
  if (args.gelu || backward) {
    const bool aux = backward || args.gelu_input;
    return plans.fuses_gelu() && args.a.dtype == DType::kBFloat16 &&
           !(aux && sizes.n % kAuxMultiple != 0);
  }
  return true;
}

enum class Mode : std::uint8_t { kRun, kPlanOnly };

/// A product on a stream. What cuBLASLt cannot take along is left to a kernel of ours, one thing at
/// a time, and the rest is tried again.
class Gemm {
 public:
  Gemm(const GemmArgs& args, const GemmSizes& sizes, Mode mode, CudaStream& stream)
      : sizes_(sizes), mode_(mode), plans_(GemmPlans::of(stream)), stream_(stream) {
    const std::size_t bytes = plans_.workspace_bytes();
    const std::size_t factors = is_fp8(args) ? 2 * kFactorStride : 0;
    workspace_ = static_cast<std::byte*>(stream.scratch(bytes + factors * sizeof(float)));
    factors_ = static_cast<float*>(static_cast<void*>(workspace_ + bytes));
  }

  /// Writes the factors of operands in fp8, once before all else.
  void prepare_factors(const GemmArgs& args) {
    launch([&] { fp8_factors(args, factors_, stream_); });
  }

  void run(const GemmArgs& args) {
    if (fused(args)) return;
    if (args.residual) {
      with_residual_after(args);
    } else if (args.gelu || args.gelu_backward_input) {
      with_gelu_after(args);
    } else if (!with_bias_before(args)) {
      launch([&] { plain(args, sizes_); });
    }
  }

 private:
  template <typename Kernel>
  void launch(const Kernel& kernel) {
    if (mode_ == Mode::kRun) kernel();
  }

  void plain(const GemmArgs& args, const GemmSizes& sizes) {
    if (is_fp8(args)) return gemm_plain_fp8(args, sizes, factors_, stream_);
    gemm_plain(args, sizes, stream_);
  }

  Call call_of(const GemmArgs& args) const {
    Call call = make_call(args, sizes_);
    if (is_fp8(args)) {
      call.pointers.a_factor = factors_;
      call.pointers.b_factor = factors_ + kFactorStride;
    }
    return call;
  }

  /// All of it in one call; false if cuBLASLt cannot.
  bool fused(const GemmArgs& args) {
    if (sizes_.k == 0 || !may_fuse(args, sizes_, plans_)) return false;
    const Call call = call_of(args);
    if (!plans_.supports(call.problem)) return false;
    launch([&] { plans_.run(call.problem, call.pointers, workspace_, stream_); });
    return true;
  }

  void with_residual_after(const GemmArgs& args) {
    run(*without_epilogue(args));
    launch([&] { add({.src = args.residual.flat(), .dst = args.c.flat()}, stream_); });
  }

  void with_gelu_after(const GemmArgs& args) {
    const GemmArgs product = *without_epilogue(args);
    run(product);
    launch([&] {
      if (args.gelu) return gelu_forward({.x = product.c, .y = args.c}, stream_);
      gelu_backward({.x = args.gelu_backward_input, .dy = args.c, .dx = args.c}, stream_);
    });
  }

  /// C = [C +] bias first, to which the product is added, where nothing is rounded in between: C is
  /// fp32, or the bias itself. False if that is not so, or cuBLASLt cannot.
  bool with_bias_before(const GemmArgs& args) {
    if (!args.bias || sizes_.k == 0) return false;
    const bool is_bias = !args.accumulate && args.bias.dtype == args.c.dtype;
    if (args.c.dtype != DType::kFloat32 && !is_bias) return false;
    GemmArgs product = args;
    product.bias = {};
    product.accumulate = true;
    if (is_fp8(args) && !is_aligned(make_call(product, sizes_))) return false;
    const Call call = call_of(product);
    if (!plans_.supports(call.problem)) return false;
    launch([&] {
      GemmSizes none = sizes_;
      none.k = 0;
      plain(args, none);
      plans_.run(call.problem, call.pointers, workspace_, stream_);
    });
    return true;
  }

  const GemmSizes& sizes_;
  const Mode mode_;
  GemmPlans& plans_;
  CudaStream& stream_;
  std::byte* workspace_ = nullptr;
  float* factors_ = nullptr;  ///< behind it, of operands in fp8
};

void gemm(const GemmArgs& args, Mode mode, Stream& stream) {
  const GemmSizes sizes = check_gemm(args);
  CudaStream& cuda = cuda_stream(stream);
  if (sizes.m == 0 || sizes.n == 0) return;
  Gemm product(args, sizes, mode, cuda);
  if (is_fp8(args)) product.prepare_factors(args);
  product.run(args);
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream) { gemm(args, Mode::kRun, stream); }

void plan_gemm(const GemmArgs& args, Stream& stream) { gemm(args, Mode::kPlanOnly, stream); }

}  // namespace tessera::cuda

extern "C" __attribute__((visibility("default"))) void tessera_cuda_find_gemm_candidates(
    const tessera::GemmArgs& args, tessera::CudaStream& stream, int most,
    tessera::GemmCandidates& candidates) {
  using namespace tessera;
  const GemmSizes sizes = check_gemm(args);
  cuda::GemmPlans& plans = cuda::GemmPlans::of(stream);
  candidates.problem = cuda::make_call(args, sizes).problem;
  if (sizes.m == 0 || sizes.n == 0 || sizes.k == 0) return;
  if (!cuda::may_fuse(args, sizes, plans)) return;
  candidates.algorithms = plans.algorithms(candidates.problem, most);
}

extern "C" __attribute__((visibility("default"))) void tessera_cuda_fill_gemm_machine(
    int ordinal, tessera::GemmMachine& machine) {
  machine = tessera::cuda::machine_of(ordinal);
}
