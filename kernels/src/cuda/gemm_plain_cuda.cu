#include "cuda/gemm_plain_cuda.h"

#include <algorithm>
#include <cstdint>

#include "cuda/cuda_launch.h"

// C = op(A) op(B) [+ bias] [+ C] for what no library kernel takes: K = 0, rows that are not aligned
// to the words that tensor cores load.
//
// One thread per element of C, neighbours along a row. Every operand is read from global memory (or
// a cache) for each term: 2 K loads per element, so some hundredth of the speed of cuBLASLt. Order:
// terms from first to last in fp32, then the bias, then C; one rounding to C's dtype.

namespace tessera::cuda {
namespace {

/// Elements of C per block, each of one thread: whole warps along a row, so that B and C are read
/// and written in full sectors, and enough blocks for small matrices.
constexpr int kPlainBlock = 128;
/// Blocks of one launch; more elements than these have threads are taken in turns.
constexpr std::int64_t kMaxPlainBlocks = 1 << 20;

template <typename T, typename C>
struct Operands {
  const T* a;
  const T* b;
  C* c;
  const T* bias;  // null: none
  GemmSizes sizes;
  bool transpose_a, transpose_b, accumulate;
};

template <typename T, typename C>
__global__ void gemm_plain_kernel(Operands<T, C> p) {
  const GemmSizes& s = p.sizes;
  const std::int64_t a_step = p.transpose_a ? s.a_stride : 1;
  const std::int64_t b_step = p.transpose_b ? 1 : s.b_stride;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t element = first; element < s.m * s.n; element += threads) {
    const std::int64_t i = element / s.n;
    const std::int64_t j = element % s.n;
    const T* a = p.a + i * (p.transpose_a ? 1 : s.a_stride);
    const T* b = p.b + j * (p.transpose_b ? s.b_stride : 1);
    C* c = p.c + i * s.c_stride + j;
    float sum = 0.0F;
    for (std::int64_t l = 0; l < s.k; ++l) {
      sum = fmaf(simt::to_float(a[l * a_step]), simt::to_float(b[l * b_step]), sum);
    }
    if (p.bias != nullptr) sum += simt::to_float(p.bias[j]);
    if (p.accumulate) sum += simt::to_float(*c);
    *c = simt::from_float<C>(sum);
  }
}

template <typename T, typename C>
void launch_typed(const GemmArgs& args, const GemmSizes& sizes, CudaStream& stream) {
  const Operands<T, C> operands{.a = device_data<const T>(args.a),
                                .b = device_data<const T>(args.b),
                                .c = device_data<C>(args.c),
                                .bias = device_data<const T>(args.bias),
                                .sizes = sizes,
                                .transpose_a = args.transpose_a,
                                .transpose_b = args.transpose_b,
                                .accumulate = args.accumulate};
  const std::int64_t blocks = std::min(kMaxPlainBlocks, ceil_div(sizes.m * sizes.n, kPlainBlock));
  simt::launch(gemm_plain_kernel<T, C>, dim3(static_cast<unsigned>(blocks)), dim3(kPlainBlock), 0,
               stream.handle(), operands);
}

}  // namespace

void gemm_plain(const GemmArgs& args, const GemmSizes& sizes, CudaStream& stream) {
  if (sizes.m == 0 || sizes.n == 0) return;
  with_element_type("gemm", args.a.dtype, [&]<typename T>(ElementType<T>) {
    args.c.dtype == DType::kFloat32 ? launch_typed<T, float>(args, sizes, stream)
                                    : launch_typed<T, T>(args, sizes, stream);
  });
}

}  // namespace tessera::cuda
