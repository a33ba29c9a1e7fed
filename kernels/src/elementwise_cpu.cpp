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

constexpr std::int64_t kGrain = 4096;

}  // namespace

void cast(const CastArgs& args, Stream&) {
  parallel_for(args.dst.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) store(args.dst, i, load(args.src, i));
  });
}

void add(const AddArgs& args, Stream&) {
  parallel_for(args.dst.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      store(args.dst, i, load(args.dst, i) + load(args.src, i));
    }
  });
}

void fill(const FillArgs& args, Stream&) {
  parallel_for(args.dst.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) store(args.dst, i, args.value);
  });
}

}  // namespace tessera::cpu
