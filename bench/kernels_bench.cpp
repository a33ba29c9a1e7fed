// Kernels of a transformer block at the sizes of GPT-2 124M.
//
// On OMP_NUM_THREADS threads, with 1024 tokens, 768 channels, 12 heads; GEMMs are those of a step
// of one block and the head (recorded_gemms.h). Counters: FLOP/s of arithmetic that the formula
// needs (the causal half of attention), or bytes/s of tensors read and written.
//
//   OMP_NUM_THREADS=1 kernels_bench --filter gemm --repetitions 5
#include <omp.h>

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recorded_gemms.h"
#include "registered_benchmarks.h"
#include "support.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/model/gpt.h"

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

/// Runs `kernel` and reports its rate: `amount` of `counter` per call.
template <typename Kernel>
void measure(benchmark::State& state, const char* counter, double amount, const Kernel& kernel) {
  NoStream stream;
  kernel(stream);  // oneDNN generates code for a shape once
  for (auto _ : state) kernel(stream);
  state.counters[counter] =
      benchmark::Counter(amount * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

/// As a step asks for it, with what it wants along with the product.
void gemm(benchmark::State& state, GemmArgs args) {
  std::vector<Filled> operands;
  for (TensorView* view : {&args.a, &args.b, &args.c, &args.bias, &args.residual, &args.gelu_input,
                           &args.gelu_backward_input, &args.bias_gradient}) {
    if (!*view) continue;
    Shape shape = view->shape;
    const std::int64_t columns = shape[shape.rank() - 1];
    if (shape.rank() == 2) shape = {shape[0], view->strides[0]};
    const TensorView& whole = operands.emplace_back(shape, view->dtype);
    *view = whole.narrow(shape.rank() - 1, 0, columns);
  }
  const std::int64_t depth = args.a.shape[args.transpose_a ? 0 : 1];
  measure(state, "flops", 2.0 * static_cast<double>(args.c.numel() * depth),
          [&](Stream& stream) { cpu_kernels().gemm(args, stream); });
}

/// "forward/bf16/768->2304": a product of a linear layer x (T, in) -> y (T, out).
std::string name_of(const GemmArgs& args) {
  const char* pass = args.transpose_a   ? "weight gradient"
                     : args.transpose_b ? "forward"
                                        : "input gradient";
  std::int64_t in = args.a.shape[1], out = args.c.shape[1];
  if (args.transpose_a) in = args.c.shape[1], out = args.c.shape[0];
  if (!args.transpose_a && !args.transpose_b) std::swap(in, out);
  return concat(pass, "/", to_string(args.a.dtype), "/", in, "->", out);
}

void attention(benchmark::State& state, DType dtype, bool backward, std::int64_t length) {
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

void layer_norm_forward(benchmark::State& state, DType dtype) {
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

void layer_norm_backward(benchmark::State& state, DType dtype) {
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

void gelu(benchmark::State& state, DType dtype, bool backward) {
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

void bias_gradient(benchmark::State& state, DType dtype) {
  const Filled dy({kTokens, 4 * kChannels}, dtype), db({4 * kChannels}, DType::kFloat32);
  measure(state, "bytes", dy.bytes(), [&](Stream& stream) {
    cpu_kernels().bias_gradient({.dy = dy, .db = db, .accumulate = true}, stream);
  });
}

/// As "gemm/forward/fp32/768->2304".
template <typename Body>
void add(const std::string& name, const Body& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->UseRealTime();
}

void register_all() {
  using State = benchmark::State;
  GptConfig gpt = gpt_preset("gpt2-124m");
  gpt.layers = 1;
  const Model model = make_gpt(gpt);
  const RandomTokens source(kTokens, gpt.vocab_size);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::string type(to_string(dtype));
    std::set<std::string> known;  // the head runs in chunks
    for (const GemmArgs& args : record_gemms(model, source, 1, dtype)) {
      if (!known.insert(name_of(args)).second) continue;
      add("gemm/" + name_of(args), [=](State& s) { gemm(s, args); });
    }
    for (const bool backward : {false, true}) {
      const std::string way = concat(backward ? "backward" : "forward", "/", type);
      for (const std::int64_t length : {256, 512, 1024, 4096}) {
        add(concat("attention/", way, "/length ", length),
            [=](State& s) { attention(s, dtype, backward, length); });
      }
      add("gelu/" + way, [=](State& s) { gelu(s, dtype, backward); });
    }
    add("layer norm/forward/" + type, [=](State& s) { layer_norm_forward(s, dtype); });
    add("layer norm/backward/" + type, [=](State& s) { layer_norm_backward(s, dtype); });
    add("bias gradient/" + type, [=](State& s) { bias_gradient(s, dtype); });
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::bench::register_all();
  return tessera::bench::run_registered_benchmarks(
      "kernels_bench",
      "The kernels of a transformer block at the sizes of GPT-2 124M, on OMP_NUM_THREADS threads.",
      argc, argv);
}
