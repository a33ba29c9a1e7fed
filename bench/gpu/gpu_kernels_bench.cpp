#include <array>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/gpu_bench.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/optimizer.h"

// The memory-bound CUDA kernels at the sizes of GPT-2 1558M (micro-batch 16 of 1024 tokens, bf16),
// against the bandwidth of a device-to-device copy on the same GPU; and attention, our own and
// cuDNN's, by its FLOPs.
namespace tessera::bench {
namespace {

constexpr DType kT = DType::kBFloat16, kFloat = DType::kFloat32;
constexpr std::int64_t kBatch = 16, kLength = 1024, kRows = kBatch * kLength, kWidth = 1600;
constexpr std::int64_t kVocabulary = 50257, kStride = 50304;
constexpr std::int64_t kHeads = 25, kHeadDim = 64;
constexpr std::int64_t kShard = std::int64_t{64} << 20;  // elements of the optimizer's flat shard

struct Copy {
  explicit Copy(GpuBench& b) : from(b.random({kShard}, kFloat)), to(b.random({kShard}, kFloat)) {}
  Traffic traffic() const { return {{&from}, {&to}}; }
  void launch(GpuBench& b) const {
    b.stream().copy(to.view().data, from.view().data,
                    static_cast<std::size_t>(from.view().bytes()));
  }
  Tensor from, to;
};

struct LayerNorm {
  explicit LayerNorm(GpuBench& b)
      : x(b.random({kRows, kWidth}, kT)),
        residual(b.random({kRows, kWidth}, kT)),
        sum(b.random({kRows, kWidth}, kT)),
        y(b.random({kRows, kWidth}, kT)),
        gamma(b.random({kWidth}, kT)),
        beta(b.random({kWidth}, kT)),
        mean(b.constant({kRows}, kFloat, 0.0F)),
        rstd(b.constant({kRows}, kFloat, 1.0F)) {}
  Tensor x, residual, sum, y, gamma, beta, mean, rstd;
};

struct LayerNormForward : LayerNorm {
  using LayerNorm::LayerNorm;
  Traffic traffic() const { return {{&x, &residual, &gamma, &beta}, {&sum, &y, &mean, &rstd}}; }
  void launch(GpuBench& b) const {
    b.kernels().layer_norm_forward({.x = x,
                                    .residual = residual,
                                    .sum = sum,
                                    .gamma = gamma,
                                    .beta = beta,
                                    .y = y,
                                    .mean = mean,
                                    .rstd = rstd},
                                   b.stream());
  }
};

struct LayerNormBackward : LayerNorm {
  explicit LayerNormBackward(GpuBench& b)
      : LayerNorm(b), dgamma(b.random({kWidth}, kFloat)), dbeta(b.random({kWidth}, kFloat)) {}
  Traffic traffic() const {
    return {{&y, &x, &residual, &mean, &rstd, &gamma}, {&sum, &dgamma, &dbeta}};
  }
  void launch(GpuBench& b) const {
    b.kernels().layer_norm_backward({.dy = y,
                                     .x = x,
                                     .mean = mean,
                                     .rstd = rstd,
                                     .gamma = gamma,
                                     .d_residual = residual,
                                     .dx = sum,
                                     .dgamma = dgamma,
                                     .dbeta = dbeta},
                                    b.stream());
  }
  Tensor dgamma, dbeta;
};

struct GeluForward {
  explicit GeluForward(GpuBench& b)
      : x(b.random({kRows, 4 * kWidth}, kT)), y(b.random({kRows, 4 * kWidth}, kT)) {}
  Traffic traffic() const { return {{&x}, {&y}}; }
  void launch(GpuBench& b) const { b.kernels().gelu_forward({.x = x, .y = y}, b.stream()); }
  Tensor x, y;
};

struct GeluBackward : GeluForward {
  using GeluForward::GeluForward;
  Traffic traffic() const { return {{&x, &y}, {&y}}; }
  void launch(GpuBench& b) const {
    b.kernels().gelu_backward({.x = x, .dy = y, .dx = y}, b.stream());
  }
};

struct Dropout : GeluForward {
  explicit Dropout(GpuBench& b) : GeluForward(b), key(b.random({kRandomKeyWords}, DType::kInt64)) {}
  void launch(GpuBench& b) const {
    b.kernels().dropout({.x = x, .y = y, .probability = 0.1F, .key = key}, b.stream());
  }
  Tensor key;
};

struct Add : GeluForward {
  using GeluForward::GeluForward;
  Traffic traffic() const { return {{&x, &y}, {&y}}; }
  void launch(GpuBench& b) const { b.kernels().add({.src = x, .dst = y}, b.stream()); }
};

struct BiasGradient {
  explicit BiasGradient(GpuBench& b)
      : dy(b.random({kRows, 4 * kWidth}, kT)), db(b.random({4 * kWidth}, kFloat)) {}
  Traffic traffic() const { return {{&dy}, {&db}}; }
  void launch(GpuBench& b) const { b.kernels().bias_gradient({.dy = dy, .db = db}, b.stream()); }
  Tensor dy, db;
};

/// Each token reads a row of its own.
struct EmbeddingForward {
  explicit EmbeddingForward(GpuBench& b)
      : tokens(b.tokens({kBatch, kLength}, kVocabulary)),
        wte(b.random({kVocabulary, kWidth}, kT)),
        wpe(b.random({kLength, kWidth}, kT)),
        x(b.random({kBatch, kLength, kWidth}, kT)) {}
  Traffic traffic() const { return {{&tokens, &x, &wpe}, {&x}}; }  // wte: as many rows as x has
  void launch(GpuBench& b) const {
    b.kernels().embedding_forward({.tokens = tokens, .wte = wte, .wpe = wpe, .x = x}, b.stream());
  }
  Tensor tokens, wte, wpe, x;
};

/// As after the head, which has written all of dwte: what is added to are the tokens' rows, in
/// fp32.
struct EmbeddingBackward {
  explicit EmbeddingBackward(GpuBench& b)
      : tokens(b.tokens({kBatch, kLength}, kVocabulary)),
        dx(b.random({kBatch, kLength, kWidth}, kT)),
        dwte(b.random({kVocabulary, kWidth}, kFloat)),
        dwpe(b.random({kLength, kWidth}, kFloat)) {}
  Traffic traffic() const {
    Traffic result{{&tokens, &dx}, {&dwpe}};
    result.bytes += 2.0 * 2.0 * static_cast<double>(dx.view().bytes());  // fp32, read and written
    return result;
  }
  void launch(GpuBench& b) const {
    b.kernels().embedding_backward(
        {.tokens = tokens, .dx = dx, .dwte = dwte, .dwpe = dwpe, .accumulate_wte = true},
        b.stream());
  }
  Tensor tokens, dx, dwte, dwpe;
};

struct CrossEntropy {
  explicit CrossEntropy(GpuBench& b)
      : logits(b.random({kRows, kStride}, kT)),
        targets(b.tokens({kRows}, kVocabulary)),
        losses(b.random({kRows}, kFloat)) {}
  /// The second reading of a row should find it in L2.
  Traffic traffic() const { return {{&logits, &targets}, {&logits, &losses}}; }
  void launch(GpuBench& b) const {
    b.kernels().cross_entropy(
        {.logits = logits, .targets = targets, .losses = losses, .vocab_size = kVocabulary},
        b.stream());
  }
  Tensor logits, targets, losses;
};

struct AdamW {
  explicit AdamW(GpuBench& b)
      : master(b.random({kShard}, kFloat, 0.02F)),
        gradient(b.random({kShard}, kFloat, 1e-3F)),
        m(b.random({kShard}, kFloat, 1e-3F)),
        v(b.constant({kShard}, kFloat, 1e-6F)),
        parameter(b.random({kShard}, kT)),
        scalars(b.constant({kOptimizerScalars}, kFloat, 1e-6F)),
        gradient_scale(b.constant({1}, kFloat, 1.0F)) {}
  Traffic traffic() const {
    return {{&master, &gradient, &m, &v, &scalars}, {&master, &m, &v, &parameter}};
  }
  void launch(GpuBench& b) const {
    const std::array<TensorView, 2> states{m, v};
    b.kernels().optimizer_step({.optimizer = &find_optimizer("adamw"),
                                .master = master,
                                .gradient = gradient,
                                .states = states,
                                .parameter = parameter,
                                .segments = std::span(&all, 1),
                                .scalars = scalars,
                                .gradient_scale = gradient_scale},
                               b.stream());
  }
  Tensor master, gradient, m, v, parameter, scalars, gradient_scale;
  OptimizerSegment all{0, kShard, 0.1F};
};

struct ExactSquares {
  explicit ExactSquares(GpuBench& b)
      : x(b.random({kShard}, kFloat)), words(b.random({kExactSumWords}, DType::kInt64)) {}
  Traffic traffic() const { return {{&x}, {}}; }
  void launch(GpuBench& b) const {
    b.kernels().exact_squares({.x = x, .words = words}, b.stream());
  }
  Tensor x, words;
};

struct OrderedSum {
  explicit OrderedSum(GpuBench& b) : dst(b.random({kShard}, kFloat)) {
    for (int i = 0; i < 4; ++i) parts.push_back(b.random({kShard}, kFloat));
    for (const Tensor& part : parts) sources.push_back(part);
  }
  Traffic traffic() const { return {{&parts[0], &parts[1], &parts[2], &parts[3]}, {&dst}}; }
  void launch(GpuBench& b) const {
    b.kernels().ordered_sum({.sources = sources, .dst = dst}, b.stream());
  }
  Tensor dst;
  std::vector<Tensor> parts{};
  std::vector<TensorView> sources{};
};

struct Cast {
  explicit Cast(GpuBench& b) : src(b.random({kShard}, kFloat)), dst(b.random({kShard}, kT)) {}
  Traffic traffic() const { return {{&src}, {&dst}}; }
  void launch(GpuBench& b) const { b.kernels().cast({.src = src, .dst = dst}, b.stream()); }
  Tensor src, dst;
};

struct AttentionForward {
  explicit AttentionForward(GpuBench& b)
      : qkv(b.random({kBatch, kLength, 3, kHeads, kHeadDim}, kT)),
        out(b.random({kBatch, kLength, kHeads, kHeadDim}, kT)),
        lse(b.constant({kBatch, kHeads, kLength}, kFloat, 8.0F)) {}
  Traffic traffic() const { return {}; }
  void launch(GpuBench& b) const {
    b.kernels().attention_forward({.qkv = qkv, .out = out, .lse = lse}, b.stream());
  }
  Tensor qkv, out, lse;
};

struct AttentionBackward : AttentionForward {
  explicit AttentionBackward(GpuBench& b)
      : AttentionForward(b),
        d_out(b.random(out.view().shape, kT)),
        d_qkv(b.random(qkv.view().shape, kT)) {
    AttentionForward::launch(b);  // out and lse that belong to qkv
  }
  void launch(GpuBench& b) const {
    b.kernels().attention_backward(
        {.d_out = d_out, .qkv = qkv, .out = out, .lse = lse, .d_qkv = d_qkv}, b.stream());
  }
  Tensor d_out, d_qkv;
};

void measure_memory_bound(GpuBench& bench) {
  bench.measure<Copy>("copy");
  bench.measure<LayerNormForward>("layer_norm_forward");
  bench.measure<LayerNormBackward>("layer_norm_backward");
  bench.measure<GeluForward>("gelu_forward");
  bench.measure<GeluBackward>("gelu_backward");
  bench.measure<Dropout>("dropout");
  bench.measure<Add>("add");
  bench.measure<BiasGradient>("bias_gradient");
  bench.measure<EmbeddingForward>("embedding_forward");
  bench.measure<EmbeddingBackward>("embedding_backward");
  bench.measure<CrossEntropy>("cross_entropy");
  bench.measure<AdamW>("adamw");
  bench.measure<ExactSquares>("exact_squares");
  bench.measure<OrderedSum>("ordered_sum");
  bench.measure<Cast>("cast");
}

/// Insists on the named kernels: a measurement of others under this name is none.
void measure_attention(GpuBench& bench) {
  // Two products forward and five backward, the causal half of each.
  const double product = 2.0 * kBatch * kHeads * kLength * kLength * kHeadDim / 2.0;
  const auto measure = [&](const std::string& name, const CudaKernelOptions& options) {
    set_cuda_kernel_options(bench.stream(), options);
    if (options.deterministic) {
      bench.measure<AttentionForward>("attention_forward_" + name, 2 * product);
    }
    bench.measure<AttentionBackward>(
        concat("attention_backward_", name, options.deterministic ? "" : "_any_order"),
        5 * product);
  };
  measure("own", {.attention = AttentionBackend::kOwn});
  measure("cudnn", {.attention = AttentionBackend::kCudnn});
  measure("cudnn", {.attention = AttentionBackend::kCudnn, .deterministic = false});
}

nlohmann::ordered_json report(const std::vector<Measurement>& results) {
  auto rows = nlohmann::ordered_json::array();
  std::printf("| kernel | launches | us | GB/s | of copy | TFLOP/s |\n|---|---|---|---|---|---|\n");
  for (const Measurement& r : results) {
    nlohmann::ordered_json row{{"name", r.name}, {"launches", r.launches}, {"seconds", r.seconds}};
    if (r.flops > 0) {
      row["flops"] = r.flops;
      std::printf("| %s | %g | %.1f | | | %.1f |\n", r.name.c_str(), r.launches, r.seconds * 1e6,
                  r.flops / r.seconds * 1e-12);
    } else {
      const Measurement& copy = results.front();
      const double of_copy = r.bytes / r.seconds / (copy.bytes / copy.seconds);
      row["bytes"] = r.bytes;
      row["of_copy"] = of_copy;
      std::printf("| %s | %g | %.1f | %.0f | %.1f %% | |\n", r.name.c_str(), r.launches,
                  r.seconds * 1e6, r.bytes / r.seconds * 1e-9, 100.0 * of_copy);
    }
    rows.push_back(row);
  }
  return rows;
}

void write(const nlohmann::ordered_json& rows, const std::string& path) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << rows.dump(2) << "\n";
  require(file.good(), ErrorCode::kIo, "cannot write ", path);
}

/// What the GPU sustains when clocks have settled under load: a matrix product as large as any of a
/// step, of random numbers, since those of constants draw less power; a copy; and copies of 256 MiB
/// to and from pinned memory of the host. `begin` and `end`
/// are seconds since 1970, for whoever samples clocks and power in the meantime.
void measure_sustained(double seconds, const std::string& json_path) {
  GpuBench bench;
  constexpr std::int64_t kSize = 8192;
  const Tensor a = bench.random({kSize, kSize}, kT), b = bench.random({kSize, kSize}, kT);
  const Tensor c = bench.random({kSize, kSize}, kT);
  const double flops = 2.0 * static_cast<double>(kSize) * kSize * kSize;
  const Sustained products = bench.sustain(seconds, [&] {
    bench.kernels().gemm({.a = a, .b = b, .c = c, .transpose_b = true}, bench.stream());
  });
  const Copy copy(bench);
  const Sustained copies = bench.sustain(seconds, [&] { copy.launch(bench); });
  constexpr std::int64_t kHostBytes = std::int64_t{256} << 20;
  const Tensor on_device = bench.constant({kHostBytes / 4}, DType::kFloat32, 1.0F);
  const Buffer on_host = bench.on_host(kHostBytes);
  const auto device_bytes = on_device.view().data;
  const Sustained to_host = bench.sustain(
      seconds, [&] { bench.stream().copy(on_host.data(), device_bytes, kHostBytes); });
  const Sustained to_device = bench.sustain(
      seconds, [&] { bench.stream().copy(device_bytes, on_host.data(), kHostBytes); });
  const auto row = [](const char* name, const char* rate, double each, const Sustained& s) {
    const double per_second = each * s.launches / s.seconds;
    std::printf("%s for %.1f s: %.4g %s\n", name, s.seconds, per_second, rate);
    return nlohmann::ordered_json{{"name", name},
                                  {"seconds", s.seconds},
                                  {"begin", s.begin},
                                  {"end", s.end},
                                  {rate, per_second}};
  };
  auto rows = nlohmann::ordered_json::array();
  rows.push_back(row("matmul", "flops_per_second", flops, products));
  rows.push_back(row("copy", "bytes_per_second", copy.traffic().bytes, copies));
  rows.push_back(row("copy to host", "bytes_per_second", kHostBytes, to_host));
  rows.push_back(row("copy from host", "bytes_per_second", kHostBytes, to_device));
  write(rows, json_path);
}

void measure(bool attention_only, const std::string& json_path) {
  GpuBench bench;
  if (!attention_only) measure_memory_bound(bench);
  std::exception_ptr failure;
  try {
    measure_attention(bench);
  } catch (const Error&) {  // what is known by now is reported
    failure = std::current_exception();
  }
  write(report(bench.results()), json_path);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  std::string json_path;
  bool attention_only = false;
  double sustained_seconds = 0.0;
  Program program("gpu_kernels_bench",
                  "The memory-bound CUDA kernels against a copy on the same GPU, and attention.");
  program.option("--json", &json_path, "also write the results there", {.type = "FILE"});
  program.option("--attention", &attention_only, "measure attention only");
  program.option("--sustained", &sustained_seconds,
                 "measure a matrix product and copies only, for so many seconds each", positive());
  return program.run(argc, argv, [&] {
    if (sustained_seconds > 0.0) return measure_sustained(sustained_seconds, json_path);
    measure(attention_only, json_path);
  });
}
