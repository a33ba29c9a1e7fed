#include "ordered_sum.h"

#include "tessera/kernels/kernel_table.h"

namespace tessera {
namespace {

template <typename T>
void sum_wide(const std::vector<TensorView>& sources, const TensorView& dst) {
  T* const out = dst.as<T>();
  for (std::int64_t i = 0; i < dst.numel(); ++i) {
    T sum = sources[0].as<T>()[i];
    for (std::size_t s = 1; s < sources.size(); ++s) sum += sources[s].as<T>()[i];
    out[i] = sum;
  }
}

}  // namespace

void sum_in_order(const std::vector<TensorView>& sources, const TensorView& dst, bool accumulate,
                  Stream& stream) {
  if (dst.dtype == DType::kFloat64) return sum_wide<double>(sources, dst);
  if (dst.dtype == DType::kInt64) return sum_wide<std::int64_t>(sources, dst);
  cpu_kernels().ordered_sum({.sources = sources, .dst = dst, .accumulate = accumulate}, stream);
}

}  // namespace tessera
