#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/memory.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/kernel_table.h"

// The memory-bound CUDA kernels at the sizes of GPT-2 1558M (micro-batch 4 of 1024 tokens, bf16),
// against the bandwidth of a device-to-device copy on the same GPU, and attention by its FLOPs.
//
//   gpu_kernels_bench [--json FILE]
namespace tessera::bench {
namespace {

constexpr std::int64_t kRows = 4096, kWidth = 1600, kVocabulary = 50257, kStride = 50304;
constexpr std::int64_t kHeads = 25, kHeadDim = 64, kBatch = 4, kLength = 1024;
constexpr std::int64_t kShard = std::int64_t{64} << 20;  // elements of AdamW's flat shard
constexpr int kRounds = 7, kRepeats = 10;

struct Result {
  std::string name;
  double seconds = 0.0, bytes = 0.0, flops = 0.0;
};

class Bench {
 public:
  Bench() : device_(make_cuda_device()), memory_(*device_), stream_(device_->create_stream({})) {}

  Tensor tensor(Shape shape, DType dtype, float value = 0.5F) {
    Tensor t = Tensor::empty(memory_, shape, dtype, MemoryCategory::kWorkspace, "operand");
    if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) {
      kernels().fill({.dst = t.view().flat(), .value = value}, *stream_);
    }
    return t;
  }
  const KernelTable& kernels() const { return device_->kernels(); }
  Stream& stream() { return *stream_; }

  /// Median over rounds of the mean of a few launches in a row.
  void measure(const std::string& name, double bytes, double flops,
               const std::function<void()>& launch) {
    for (int i = 0; i < 3; ++i) launch();
    stream_->synchronize();
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      rounds.push_back(seconds_of([&] {
                         for (int i = 0; i < kRepeats; ++i) launch();
                         stream_->synchronize();
                       }) /
                       kRepeats);
    }
    results_.push_back({name, median(rounds), bytes, flops});
  }
  const std::vector<Result>& results() const { return results_; }

 private:
  std::unique_ptr<CudaDevice> device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
  std::vector<Result> results_;
};

double bytes_of(std::initializer_list<TensorView> views) {
  double sum = 0.0;
  for (const TensorView& view : views) sum += static_cast<double>(view.bytes());
  return sum;
}

void measure_copy(Bench& bench) {
  const Tensor a = bench.tensor({kShard * 4}, DType::kFloat32);
  const Tensor b = bench.tensor({kShard * 4}, DType::kFloat32);
  bench.measure("copy", bytes_of({a, b}), 0, [&] {
    bench.stream().copy(b.view().data, a.view().data, static_cast<std::size_t>(a.bytes()));
  });
}

void measure_activations(Bench& bench) {
  const DType t = DType::kBFloat16;
  const KernelTable& k = bench.kernels();
  Stream& s = bench.stream();
  const Tensor x = bench.tensor({kRows, kWidth}, t), y = bench.tensor({kRows, kWidth}, t);
  const Tensor residual = bench.tensor({kRows, kWidth}, t), sum = bench.tensor({kRows, kWidth}, t);
  const Tensor gamma = bench.tensor({kWidth}, t), beta = bench.tensor({kWidth}, t);
  const Tensor mean = bench.tensor({kRows}, DType::kFloat32);
  const Tensor rstd = bench.tensor({kRows}, DType::kFloat32);
  const Tensor dgamma = bench.tensor({kWidth}, DType::kFloat32);
  const Tensor dbeta = bench.tensor({kWidth}, DType::kFloat32);
  bench.measure("layer_norm_forward", bytes_of({x, residual, sum, y}), 0, [&] {
    k.layer_norm_forward({.x = x,
                          .residual = residual,
                          .sum = sum,
                          .gamma = gamma,
                          .beta = beta,
                          .y = y,
                          .mean = mean,
                          .rstd = rstd},
                         s);
  });
  bench.measure("layer_norm_backward", bytes_of({x, residual, sum, y}), 0, [&] {
    k.layer_norm_backward({.dy = y,
                           .x = x,
                           .mean = mean,
                           .rstd = rstd,
                           .gamma = gamma,
                           .d_residual = residual,
                           .dx = sum,
                           .dgamma = dgamma,
                           .dbeta = dbeta},
                          s);
  });
  const Tensor wide = bench.tensor({kRows, 4 * kWidth}, t),
               out = bench.tensor({kRows, 4 * kWidth}, t);
  bench.measure("gelu_forward", bytes_of({wide, out}), 0,
                [&] { k.gelu_forward({.x = wide, .y = out}, s); });
  bench.measure("gelu_backward", bytes_of({wide, out, out}), 0,
                [&] { k.gelu_backward({.x = wide, .dy = out, .dx = out}, s); });
  bench.measure("dropout", bytes_of({wide, out}), 0, [&] {
    k.dropout({.x = wide, .y = out, .probability = 0.1F, .key = {1, 2}}, s);
  });
  const Tensor db = bench.tensor({4 * kWidth}, DType::kFloat32);
  bench.measure("bias_gradient", bytes_of({wide}), 0,
                [&] { k.bias_gradient({.dy = wide, .db = db}, s); });
}

void measure_loss_and_optimizer(Bench& bench) {
  const KernelTable& k = bench.kernels();
  Stream& s = bench.stream();
  const Tensor logits = bench.tensor({1024, kStride}, DType::kBFloat16);
  Tensor targets = bench.tensor({1024}, DType::kInt32);
  const std::vector<std::int32_t> ids(1024, 17);
  s.copy(targets.view().data, ids.data(), ids.size() * sizeof(ids[0]));
  s.synchronize();
  const Tensor losses = bench.tensor({1024}, DType::kFloat32);
  const double once = 1024.0 * kVocabulary * 2.0;
  bench.measure("cross_entropy", 3 * once, 0, [&] {  // two reads, one write
    k.cross_entropy(
        {.logits = logits, .targets = targets, .losses = losses, .vocab_size = kVocabulary}, s);
  });
  const Tensor master = bench.tensor({kShard}, DType::kFloat32),
               m = bench.tensor({kShard}, DType::kFloat32);
  const Tensor v = bench.tensor({kShard}, DType::kFloat32),
               g = bench.tensor({kShard}, DType::kFloat32);
  const Tensor p = bench.tensor({kShard}, DType::kBFloat16);
  const Tensor scalars = bench.tensor({kAdamWScalars}, DType::kFloat32, 1e-6F);
  const AdamWSegment all{0, kShard, 0.1F};
  bench.measure("adamw", bytes_of({master, master, m, m, v, v, g, p}), 0, [&] {
    k.adamw({.master = master,
             .gradient = g,
             .m = m,
             .v = v,
             .parameter = p,
             .segments = std::span(&all, 1),
             .scalars = scalars},
            s);
  });
  const Tensor blocks = bench.tensor({kShard / kNormBlock}, DType::kFloat64);
  bench.measure("block_squares", bytes_of({g, blocks}), 0,
                [&] { k.block_squares({.x = g, .out = blocks}, s); });
  const std::vector<TensorView> sources{master, m, v, g};
  bench.measure("ordered_sum of 4", bytes_of({master, m, v, g, g}), 0,
                [&] { k.ordered_sum({.sources = sources, .dst = g}, s); });
  bench.measure("cast fp32 to bf16", bytes_of({g, p}), 0, [&] { k.cast({.src = g, .dst = p}, s); });
}

void measure_attention(Bench& bench) {
  const KernelTable& k = bench.kernels();
  Stream& s = bench.stream();
  const DType t = DType::kBFloat16;
  const Tensor qkv = bench.tensor({kBatch, kLength, 3, kHeads, kHeadDim}, t);
  const Tensor d_qkv = bench.tensor({kBatch, kLength, 3, kHeads, kHeadDim}, t);
  const Tensor out = bench.tensor({kBatch, kLength, kHeads, kHeadDim}, t);
  const Tensor lse = bench.tensor({kBatch, kHeads, kLength}, DType::kFloat32);
  // Two products forward and five backward, the causal half of each.
  const double product = 2.0 * kBatch * kHeads * kLength * kLength * kHeadDim / 2.0;
  bench.measure("attention_forward", 0, 2 * product,
                [&] { k.attention_forward({.qkv = qkv, .out = out, .lse = lse}, s); });
  bench.measure("attention_backward", 0, 5 * product, [&] {
    k.attention_backward({.d_out = out, .qkv = qkv, .out = out, .lse = lse, .d_qkv = d_qkv}, s);
  });
}

void report(const std::vector<Result>& results, const std::string& json_path) {
  const double copy = results.front().bytes / results.front().seconds;
  auto rows = nlohmann::ordered_json::array();
  std::printf("| kernel | us | GB/s | of copy | TFLOP/s |\n|---|---|---|---|---|\n");
  for (const Result& r : results) {
    const double rate = r.bytes / r.seconds;
    if (r.flops > 0) {
      std::printf("| %s | %.1f | | | %.1f |\n", r.name.c_str(), r.seconds * 1e6,
                  r.flops / r.seconds * 1e-12);
    } else {
      std::printf("| %s | %.1f | %.0f | %.0f %% | |\n", r.name.c_str(), r.seconds * 1e6,
                  rate * 1e-9, 100.0 * rate / copy);
    }
    rows.push_back({{"name", r.name},
                    {"seconds", r.seconds},
                    {"bytes", r.bytes},
                    {"flops", r.flops},
                    {"of_copy", r.flops > 0 ? 0.0 : rate / copy}});
  }
  if (json_path.empty()) return;
  std::ofstream file(json_path);
  file << rows.dump(2) << "\n";
  require(file.good(), ErrorCode::kIo, "cannot write ", json_path);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  std::string json_path;
  Program program("gpu_kernels_bench",
                  "The memory-bound CUDA kernels against a copy on the same GPU, and attention.");
  program.add_option("--json", json_path, "also write the results there")->type_name("FILE");
  return program.run(argc, argv, [&] {
    Bench bench;
    measure_copy(bench);
    measure_activations(bench);
    measure_loss_and_optimizer(bench);
    measure_attention(bench);
    report(bench.results(), json_path);
  });
}
