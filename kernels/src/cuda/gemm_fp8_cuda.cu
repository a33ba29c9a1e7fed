#include "cuda/gemm_fp8_cuda.h"

#include <algorithm>
#include <cstdint>

#include "cuda/cuda_launch.h"

// A GEMM of codes of fp8 needs two kernels beside cuBLASLt's: one writes the factors that its
// descriptor points to, the other is the product for what no library kernel takes, as
// gemm_plain_cuda.cu has it for other operands: a GPU without tensor cores for fp8, sizes that are
// no multiples of 16.
//
// Order of the product: terms from first to last in fp32, then both factors, the bias, and C; one
// rounding to C's dtype.

namespace tessera::cuda {
namespace {

constexpr int kFp8PlainBlock = 128;
constexpr std::int64_t kMostFp8PlainBlocks = 1 << 20;

struct CodesOperand {
  const std::uint8_t* codes;
  const std::uint32_t* amax;
  Fp8Format format;
  Fp8Scales scales;
};

CodesOperand operand_of(const TensorView& codes, const Fp8Operand& in) {
  return {codes.as<std::uint8_t>(), device_data<const std::uint32_t>(in.amax), in.format,
          in.scales};
}

__global__ void __launch_bounds__(32)
    write_factors(CodesOperand a, CodesOperand b, float* factors) {
  if (threadIdx.x > 1) return;
  const CodesOperand& p = threadIdx.x == 0 ? a : b;
  factors[threadIdx.x * kFactorStride] = __fdiv_rn(1.0F, fp8_scale(*p.amax, p.format, p.scales));
}

template <typename C>
struct Fp8Product {
  CodesOperand a, b;
  C* c;
  const simt::bf16* bias;  // null: none
  const float* factors;
  GemmSizes sizes;
  bool accumulate;
};

template <typename C>
__global__ void gemm_plain_fp8_kernel(Fp8Product<C> p) {
  const GemmSizes& s = p.sizes;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t element = first; element < s.m * s.n; element += threads) {
    const std::int64_t i = element / s.n;
    const std::int64_t j = element % s.n;
    const std::uint8_t* a = p.a.codes + i * s.a_stride;
    const std::uint8_t* b = p.b.codes + j * s.b_stride;
    C* c = p.c + i * s.c_stride + j;
    float sum = 0.0F;
    for (std::int64_t l = 0; l < s.k; ++l) {
      sum = fmaf(fp8_value(a[l], p.a.format), fp8_value(b[l], p.b.format), sum);
    }
    sum = __fmul_rn(sum, __fmul_rn(p.factors[0], p.factors[kFactorStride]));
    if (p.bias != nullptr) sum += simt::to_float(p.bias[j]);
    if (p.accumulate) sum += simt::to_float(*c);
    *c = simt::from_float<C>(sum);
  }
}

template <typename C>
void launch_plain_fp8(const GemmArgs& args, const GemmSizes& sizes, const float* factors,
                      CudaStream& stream) {
  const Fp8Product<C> product{.a = operand_of(args.a, args.a_fp8),
                              .b = operand_of(args.b, args.b_fp8),
                              .c = device_data<C>(args.c),
                              .bias = device_data<const simt::bf16>(args.bias),
                              .factors = factors,
                              .sizes = sizes,
                              .accumulate = args.accumulate};
  const std::int64_t blocks =
      std::min(kMostFp8PlainBlocks, ceil_div(sizes.m * sizes.n, kFp8PlainBlock));
  simt::launch(gemm_plain_fp8_kernel<C>, dim3(static_cast<unsigned>(blocks)), dim3(kFp8PlainBlock),
               0, stream.handle(), product);
}

}  // namespace

void fp8_factors(const GemmArgs& args, float* factors, CudaStream& stream) {
  simt::launch(write_factors, 1, 32, 0, stream.handle(), operand_of(args.a, args.a_fp8),
               operand_of(args.b, args.b_fp8), factors);
}

void gemm_plain_fp8(const GemmArgs& args, const GemmSizes& sizes, const float* factors,
                    CudaStream& stream) {
  if (sizes.m == 0 || sizes.n == 0) return;
  if (args.c.dtype == DType::kFloat32) {
    launch_plain_fp8<float>(args, sizes, factors, stream);
  } else {
    launch_plain_fp8<simt::bf16>(args, sizes, factors, stream);
  }
}

}  // namespace tessera::cuda
