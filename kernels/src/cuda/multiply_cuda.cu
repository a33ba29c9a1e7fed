#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"

// y = a b, element by element: rounded once to T. Bytes: reads a and b, writes y.

namespace tessera::cuda {
namespace {

template <typename T>
struct Product {
  const T* a;
  const T* b;
  T* y;

  template <int kSize>
  struct Group {
    Pack<T, kSize> a, b;
  };
  template <int kSize>
  __device__ Group<kSize> load(std::int64_t i) const {
    return {load_pack<kSize>(a + i), load_pack<kSize>(b + i)};
  }
  template <int kSize>
  __device__ void store(std::int64_t i, Group<kSize> group) const {
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      group.a.v[e] =
          simt::from_float<T>(simt::to_float(group.a.v[e]) * simt::to_float(group.b.v[e]));
    }
    store_pack(y + i, group.a);
  }
};

}  // namespace

void multiply(const MultiplyArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("multiply", args.a.dtype, [&]<typename T>(ElementType<T>) {
    constexpr int kSize = kGroupOf<T>;
    const Product<T> op{device_data<T>(args.a), device_data<T>(args.b), device_data<T>(args.y)};
    launch_elementwise<kSize>(op, args.a.numel(), groups_aligned<kSize>(op.a, op.b, op.y), stream);
  });
}

}  // namespace tessera::cuda
