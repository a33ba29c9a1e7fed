#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/gemm_plain_cuda.h"
#include "cuda/gemm_plan_cuda.h"
#include "gemm_arguments.h"
#include "tessera/core/error.h"

// GEMM by cuBLASLt: products with a bias, GELU, its derivative or a bias gradient in one kernel
// where it has such a kernel, and otherwise the product first and our kernels after it.
//
// Which of the two it is depends on shapes, dtypes, alignment and the GPU's model alone, so a run
// can be repeated bit for bit. cuBLASLt has no algorithm for: K = 0; a bias that is not of C's
// dtype; a GELU argument whose rows are not a multiple of 8 elements. It cannot be told how a bias
// or such an argument is aligned, so it may load 16 bytes of them at once. Products that it refuses
// altogether go to a plain kernel (gemm_plain_cuda.cu).

namespace tessera::cuda {
namespace {

constexpr std::int64_t kAuxMultiple = 8;  // elements; documented for the stride of aux

std::uint32_t alignment_of(const void* address) {
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
  if (args.bias_gradient) return GemmEpilogue::kBiasGradient;
  if (args.gelu_backward_input) return GemmEpilogue::kGeluBackward;
  if (!args.gelu) return args.bias ? GemmEpilogue::kBias : GemmEpilogue::kNone;
  if (args.gelu_input) return args.bias ? GemmEpilogue::kGeluAuxBias : GemmEpilogue::kGeluAux;
  return args.bias ? GemmEpilogue::kGeluBias : GemmEpilogue::kGelu;
}

Call make_call(const GemmArgs& args, const GemmSizes& sizes) {
  const TensorView& aux = args.gelu_backward_input ? args.gelu_backward_input : args.gelu_input;
  const TensorView& vector = args.bias_gradient ? args.bias_gradient : args.bias;
  return {.problem = {.m = sizes.m,
                      .n = sizes.n,
                      .k = sizes.k,
                      .a_stride = sizes.a_stride,
                      .b_stride = sizes.b_stride,
                      .c_stride = sizes.c_stride,
                      .aux_stride = aux ? sizes.n : 0,
                      .transpose_a = args.transpose_a,
                      .transpose_b = args.transpose_b,
                      .accumulate = args.accumulate,
                      .dtype = args.a.dtype,
                      .c_dtype = args.c.dtype,
                      .epilogue = epilogue_of(args),
                      .a_alignment = alignment_of(args.a.data),
                      .b_alignment = alignment_of(args.b.data),
                      .c_alignment = alignment_of(args.c.data)},
          .pointers = {.a = args.a.data,
                       .b = args.b.data,
                       .c = args.c.data,
                       .vector = vector.data,
                       .aux = aux.data}};
}

bool off_alignment(const TensorView& view) {
  return view && alignment_of(view.data) < kGemmAlignment;
}

/// What cuBLASLt documents that it takes; whether it has a kernel, its heuristic says. GELU of fp32
/// is left to our own kernels: how exact cuBLASLt's is, nothing says, and bf16 hides it.
bool may_fuse(const GemmArgs& args, const GemmSizes& sizes, const GemmPlans& plans) {
  const bool bias_gradient = static_cast<bool>(args.bias_gradient);
  const bool backward = static_cast<bool>(args.gelu_backward_input);
  if (bias_gradient && (args.bias || args.gelu || backward)) return false;  // one at a time
  if (args.bias && args.bias.dtype != args.c.dtype) return false;
  if (bias_gradient && args.bias_gradient.dtype != args.c.dtype) return false;
  if (bias_gradient && args.accumulate_bias_gradient) return false;
  for (const TensorView* view :
       {&args.bias, &args.bias_gradient, &args.gelu_input, &args.gelu_backward_input}) {
    if (off_alignment(*view)) return false;
  }
  if (args.gelu || backward) {
    const bool aux = backward || args.gelu_input;
    return plans.fuses_gelu() && args.a.dtype == DType::kBFloat16 &&
           !(aux && sizes.n % kAuxMultiple != 0);
  }
  return true;
}

/// Runs all of it in one product; false if cuBLASLt cannot.
bool run_fused(const GemmArgs& args, const GemmSizes& sizes, GemmPlans& plans, void* workspace,
               CudaStream& stream) {
  if (sizes.k == 0 || !may_fuse(args, sizes, plans)) return false;
  const Call call = make_call(args, sizes);
  if (!plans.supports(call.problem, call.pointers)) return false;
  plans.run(call.problem, call.pointers, workspace, stream);
  return true;
}

void run_bias_gradient(const GemmArgs& args, CudaStream& stream) {
  bias_gradient(
      {.dy = args.a, .db = args.bias_gradient, .accumulate = args.accumulate_bias_gradient},
      stream);
}

/// The product with its bias, by whatever can compute it.
void run_product(const GemmArgs& args, const GemmSizes& sizes, GemmPlans& plans,
                 CudaStream& stream) {
  void* workspace = stream.scratch(plans.workspace_bytes());
  if (run_fused(args, sizes, plans, workspace, stream)) return;
  if (args.bias && args.c.dtype == DType::kFloat32 && sizes.k > 0) {
    // C = [C +] bias first, to which the product is added: nothing is rounded in between.
    GemmArgs product = args;
    product.bias = {};
    product.accumulate = true;
    const Call call = make_call(product, sizes);
    if (plans.supports(call.problem, call.pointers)) {
      GemmSizes none = sizes;
      none.k = 0;
      gemm_plain(args, none, stream);
      return plans.run(call.problem, call.pointers, workspace, stream);
    }
  }
  gemm_plain(args, sizes, stream);
}

/// The product, with GELU or its derivative.
void run_with_gelu(const GemmArgs& args, const GemmSizes& sizes, GemmPlans& plans,
                   CudaStream& stream) {
  if (!args.gelu && !args.gelu_backward_input) return run_product(args, sizes, plans, stream);
  if (run_fused(args, sizes, plans, stream.scratch(plans.workspace_bytes()), stream)) return;
  GemmArgs product = args;
  product.gelu = false;
  product.gelu_input = {};
  product.gelu_backward_input = {};
  if (args.gelu_input) product.c = args.gelu_input;
  run_product(product, sizes, plans, stream);
  if (args.gelu) return gelu_forward({.x = product.c, .y = args.c}, stream);
  gelu_backward({.x = args.gelu_backward_input, .dy = args.c, .dx = args.c}, stream);
}

/// A bias gradient in scratch behind the workspace, where it can be fused into the product in fp32
/// but not added to what is there. False if cuBLASLt cannot.
bool run_with_added_bias_gradient(const GemmArgs& args, const GemmSizes& sizes, GemmPlans& plans,
                                  CudaStream& stream) {
  if (!args.accumulate_bias_gradient || args.c.dtype != DType::kFloat32) return false;
  const std::size_t bytes = plans.workspace_bytes();
  auto* scratch = static_cast<std::byte*>(
      stream.scratch(bytes + static_cast<std::size_t>(sizes.m) * sizeof(float)));
  GemmArgs fused = args;
  fused.bias_gradient = TensorView(scratch + bytes, DType::kFloat32, Shape{sizes.m});
  fused.accumulate_bias_gradient = false;
  if (!run_fused(fused, sizes, plans, scratch, stream)) return false;
  add({.src = fused.bias_gradient, .dst = args.bias_gradient.flat()}, stream);
  return true;
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream) {
  const GemmSizes sizes = check_gemm(args);
  auto* const cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr)
    fail(ErrorCode::kInvalidArgument, "gemm: a CUDA kernel was given a stream of another device");
  CudaStream& cuda_stream = *cuda;
  if (sizes.m == 0) return;
  if (sizes.n == 0) {
    if (args.bias_gradient) run_bias_gradient(args, cuda_stream);
    return;
  }
  GemmPlans& plans = GemmPlans::of(cuda_stream);
  if (!args.bias_gradient) return run_with_gelu(args, sizes, plans, cuda_stream);
  void* workspace = cuda_stream.scratch(plans.workspace_bytes());
  if (run_fused(args, sizes, plans, workspace, cuda_stream)) return;
  if (run_with_added_bias_gradient(args, sizes, plans, cuda_stream)) return;
  GemmArgs product = args;
  product.bias_gradient = {};
  run_with_gelu(product, sizes, plans, cuda_stream);
  run_bias_gradient(args, cuda_stream);
}

}  // namespace tessera::cuda
