#include <vector>

#include "cpu_kernels.h"
#include "parallel.h"
#include "tessera/core/error.h"

namespace tessera::cpu {
namespace {

float load(const TensorView& view, std::int64_t i) {
  if (view.dtype == DType::kFloat32) return reinterpret_cast<const float*>(view.data)[i];
  return static_cast<float>(reinterpret_cast<const bfloat16*>(view.data)[i]);
}

void store(const TensorView& view, std::int64_t i, float value) {
  if (view.dtype == DType::kFloat32) {
    reinterpret_cast<float*>(view.data)[i] = value;
  } else {
    reinterpret_cast<bfloat16*>(view.data)[i] = bfloat16(value);
  }
}

}  // namespace

void ordered_sum(const OrderedSumArgs& args, Stream&) {
  const std::int64_t n = args.dst.numel();
  for (const TensorView& source : args.sources) {
    require(source.numel() == n, ErrorCode::kInvalidArgument, "ordered_sum: a source has ",
            source.numel(), " elements, dst has ", n);
  }
  parallel_for(n, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::size_t s = 0;
      float sum = args.accumulate ? load(args.dst, i) : load(args.sources[s++], i);
      for (; s < args.sources.size(); ++s) sum += load(args.sources[s], i);
      store(args.dst, i, sum);
    }
  });
}

}  // namespace tessera::cpu
