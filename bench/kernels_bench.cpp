#include <omp.h>

#include <cstdint>
#include <random>
#include <vector>

#include "registered_benchmarks.h"
#include "tessera/kernels/kernel_table.h"

// The kernels of a transformer block at the sizes of GPT-2 124M: 1024 tokens, 768 channels, 12
// heads. Counters: FLOP/s of arithmetic that the formula needs (the causal half of attention), or
// bytes/s of tensors read and written. Threads: OMP_NUM_THREADS.
//
//   OMP_NUM_THREADS=1 kernels_bench --filter Gemm --repetitions 5
namespace tessera::bench {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kChannels = 768;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kHeadDim = 64;

/// A tensor of normal numbers and the memory behind it.
class Filled {
 public:
  Filled(Shape shape, DType dtype)
      : bytes_(static_cast<std::size_t>(shape.numel()) * size_of(dtype) + 64) {
    auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    view_ = TensorView(reinterpret_cast<void*>((address + 63) / 64 * 64), dtype, shape);
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      const float value = normal(generator);
      if (dtype == DType::kFloat32) view_.as<float>()[i] = value;
      if (dtype == DType::kBFloat16) view_.as<bfloat16>()[i] = bfloat16(value);
    }
  }
  operator const TensorView&() const { return view_; }  // NOLINT: as Tensor does
  double bytes() const { return static_cast<double>(view_.bytes()); }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

DType dtype_arg(const benchmark::State& state) {
  return state.range(0) == 0 ? DType::kFloat32 : DType::kBFloat16;
}

/// Runs `kernel` and reports its rate: `amount` of `counter` per call.
template <typename Kernel>
void measure(benchmark::State& state, const char* counter, double amount, const Kernel& kernel) {
  NoStream stream;
  kernel(stream);  // oneDNN generates code for a shape once
  for (auto _ : state) kernel(stream);
  state.counters[counter] =
      benchmark::Counter(amount * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
  state.SetLabel(std::string(to_string(dtype_arg(state))));
}

/// The three products of a linear layer x (T, in) -> y (T, out), weights (out, in).
enum class Pass : std::int64_t { kForward, kInputGradient, kWeightGradient };

void Gemm(benchmark::State& state) {
  const DType dtype = dtype_arg(state);
  const auto pass = static_cast<Pass>(state.range(1));
  const std::int64_t in = state.range(2);
  const std::int64_t out = state.range(3);
  const Filled x({kTokens, in}, dtype), y({kTokens, out}, dtype), weight({out, in}, dtype);
  const Filled bias({out}, dtype), gradient({out, in}, DType::kFloat32);
  GemmArgs args;
  if (pass == Pass::kForward) {
    args.a = x, args.b = weight, args.c = y, args.bias = bias, args.transpose_b = true;
  } else if (pass == Pass::kInputGradient) {
    args.a = y, args.b = weight, args.c = x;
  } else {
    args.a = y, args.b = x, args.c = gradient, args.transpose_a = true, args.accumulate = true;
  }
  measure(state, "flops", 2.0 * static_cast<double>(kTokens * in * out),
          [&](Stream& stream) { cpu_kernels().gemm(args, stream); });
}
BENCHMARK(Gemm)
    ->ArgNames({"bf16", "pass", "in", "out"})
    ->ArgsProduct({{0, 1}, {0, 1, 2}, {768}, {768, 2304, 3072}})
    ->ArgsProduct({{0, 1}, {0, 1, 2}, {3072}, {768}})
    ->ArgsProduct({{0, 1}, {0, 1, 2}, {768}, {50304}})
    ->UseRealTime();

void Attention(benchmark::State& state) {
  const DType dtype = dtype_arg(state);
  const bool backward = state.range(1) != 0;
  const std::int64_t length = state.range(2);
  const Filled qkv({1, length, 3, kHeads, kHeadDim}, dtype);
  const Filled d_qkv({1, length, 3, kHeads, kHeadDim}, dtype);
  const Filled out({1, length, kHeads, kHeadDim}, dtype),
      d_out({1, length, kHeads, kHeadDim}, dtype);
  const Filled lse({1, kHeads, length}, DType::kFloat32);
  const Filled workspace(
      {attention_workspace_bytes(1, length, kHeads, kHeadDim, dtype, omp_get_max_threads())},
      DType::kUInt8);
  const AttentionForwardArgs forward{.qkv = qkv, .out = out, .lse = lse, .workspace = workspace};
  const AttentionBackwardArgs args{
      .d_out = d_out, .qkv = qkv, .out = out, .lse = lse, .d_qkv = d_qkv, .workspace = workspace};
  NoStream setup;
  cpu_kernels().attention_forward(forward, setup);
  const double product = static_cast<double>(length * (length + 1) * kHeads * kHeadDim);
  measure(state, "flops", (backward ? 5.0 : 2.0) * product, [&](Stream& stream) {
    if (backward) {
      cpu_kernels().attention_backward(args, stream);
    } else {
      cpu_kernels().attention_forward(forward, stream);
    }
  });
}
BENCHMARK(Attention)
    ->ArgNames({"bf16", "backward", "length"})
    ->ArgsProduct({{0, 1}, {0, 1}, {256, 512, 1024, 4096}})
    ->UseRealTime();

void LayerNormForward(benchmark::State& state) {
  const DType dtype = dtype_arg(state);
  const Filled x({kTokens, kChannels}, dtype), residual({kTokens, kChannels}, dtype);
  const Filled sum({kTokens, kChannels}, dtype), y({kTokens, kChannels}, dtype);
  const Filled gamma({kChannels}, dtype), beta({kChannels}, dtype);
  const Filled mean({kTokens}, DType::kFloat32), rstd({kTokens}, DType::kFloat32);
  const LayerNormForwardArgs args{.x = x,
                                  .residual = residual,
                                  .sum = sum,
                                  .gamma = gamma,
                                  .beta = beta,
                                  .y = y,
                                  .mean = mean,
                                  .rstd = rstd};
  measure(state, "bytes", 4.0 * x.bytes(),
          [&](Stream& stream) { cpu_kernels().layer_norm_forward(args, stream); });
}
BENCHMARK(LayerNormForward)->ArgName("bf16")->Arg(0)->Arg(1)->UseRealTime();

void LayerNormBackward(benchmark::State& state) {
  const DType dtype = dtype_arg(state);
  const Filled dy({kTokens, kChannels}, dtype), x({kTokens, kChannels}, dtype);
  const Filled d_residual({kTokens, kChannels}, dtype), dx({kTokens, kChannels}, dtype);
  const Filled gamma({kChannels}, dtype);
  const Filled mean({kTokens}, DType::kFloat32), rstd({kTokens}, DType::kFloat32);
  const Filled dgamma({kChannels}, DType::kFloat32), dbeta({kChannels}, DType::kFloat32);
  const LayerNormBackwardArgs args{.dy = dy,
                                   .x = x,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .gamma = gamma,
                                   .d_residual = d_residual,
                                   .dx = dx,
                                   .dgamma = dgamma,
                                   .dbeta = dbeta};
  measure(state, "bytes", 4.0 * x.bytes(),
          [&](Stream& stream) { cpu_kernels().layer_norm_backward(args, stream); });
}
BENCHMARK(LayerNormBackward)->ArgName("bf16")->Arg(0)->Arg(1)->UseRealTime();

void Gelu(benchmark::State& state) {
  const DType dtype = dtype_arg(state);
  const bool backward = state.range(1) != 0;
  const Filled x({kTokens, 4 * kChannels}, dtype), y({kTokens, 4 * kChannels}, dtype);
  const Filled dx({kTokens, 4 * kChannels}, dtype);
  measure(state, "bytes", (backward ? 3.0 : 2.0) * x.bytes(), [&](Stream& stream) {
    if (backward) {
      cpu_kernels().gelu_backward({.x = x, .dy = y, .dx = dx}, stream);
    } else {
      cpu_kernels().gelu_forward({.x = x, .y = y}, stream);
    }
  });
}
BENCHMARK(Gelu)->ArgNames({"bf16", "backward"})->ArgsProduct({{0, 1}, {0, 1}})->UseRealTime();

void BiasGradient(benchmark::State& state) {
  const DType dtype = dtype_arg(state);
  const Filled dy({kTokens, 4 * kChannels}, dtype), db({4 * kChannels}, DType::kFloat32);
  measure(state, "bytes", dy.bytes(), [&](Stream& stream) {
    cpu_kernels().bias_gradient({.dy = dy, .db = db, .accumulate = true}, stream);
  });
}
BENCHMARK(BiasGradient)->ArgName("bf16")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  return tessera::bench::run_registered_benchmarks(
      "kernels_bench",
      "The kernels of a transformer block at the sizes of GPT-2 124M, on OMP_NUM_THREADS threads.",
      argc, argv);
}
