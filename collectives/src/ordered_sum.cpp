#include "ordered_sum.h"

#include "tessera/kernels/kernel_table.h"

namespace tessera {

void sum_in_order(const std::vector<TensorView>& sources, const TensorView& dst, bool accumulate,
                  Stream& stream) {
  if (dst.dtype != DType::kFloat64) {
    cpu_kernels().ordered_sum({.sources = sources, .dst = dst, .accumulate = accumulate}, stream);
    return;
  }
  double* const out = dst.as<double>();
  for (std::int64_t i = 0; i < dst.numel(); ++i) {
    double sum = sources[0].as<double>()[i];
    for (std::size_t s = 1; s < sources.size(); ++s) sum += sources[s].as<double>()[i];
    out[i] = sum;
  }
}

}  // namespace tessera
