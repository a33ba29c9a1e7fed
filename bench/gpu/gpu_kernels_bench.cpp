#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_bench.h"
#include "tessera/kernels/cuda_options.h"

// The memory-bound CUDA kernels at the sizes of GPT-2 1558M (micro-batch 16 of 1024 tokens, bf16),
// against the bandwidth of a device-to-device copy on the same GPU; and attention, our own and
// cuDNN's, by its FLOPs.
namespace tessera::bench {
namespace {

/// The sizes of a step of GPT-2 1558M.
constexpr KernelSizes kSizes{.batch = 16,
                             .length = 1024,
                             .channels = 1600,
                             .heads = 25,
                             .loss_rows = std::int64_t{16} * 1024,
                             .shard = std::int64_t{64} << 20};

PreparedKernel copy(KernelLab& lab) {
  const Tensor from = lab.random({kSizes.shard}, DType::kFloat32);
  const Tensor to = lab.random({kSizes.shard}, DType::kFloat32);
  const auto bytes = static_cast<std::size_t>(from.bytes());
  return {.call = [=](Stream& stream) { stream.copy(to.view().data, from.view().data, bytes); },
          .bytes = 2.0 * static_cast<double>(bytes)};
}

/// By the names of the report, the memory-bound cases of the table that `tessera bench kernels`
/// times.
constexpr std::pair<const char*, const char*> kMemoryBound[] = {
    {"layer_norm_forward", "layer_norm_forward/bf16"},
    {"layer_norm_backward", "layer_norm_backward/bf16"},
    {"gelu_forward", "gelu_forward/bf16"},
    {"gelu_backward", "gelu_backward/bf16"},
    {"dropout", "dropout/bf16"},
    {"add", "add/bf16"},
    {"bias_gradient", "bias_gradient/bf16"},
    {"embedding_forward", "embedding_forward/bf16"},
    {"embedding_backward", "embedding_backward/bf16"},
    {"cross_entropy", "cross_entropy/bf16"},
    {"adamw", "optimizer_step/adamw/parameter:bf16"},
    {"exact_squares", "exact_squares/fp32"},
    {"ordered_sum", "ordered_sum/fp32/sources:4"},
    {"cast", "cast/fp32->bf16"}};

void measure_memory_bound(GpuBench& bench) {
  bench.measure("copy", copy);
  for (const auto& [name, kernel] : kMemoryBound) bench.measure(name, kernel_case(kernel).prepare);
}

/// Insists on the named kernels: a measurement of others under this name is none.
void measure_attention(GpuBench& bench) {
  const auto measure = [&](const std::string& name, const CudaKernelOptions& options) {
    set_cuda_kernel_options(bench.stream(), options);
    if (options.deterministic) {
      bench.measure("attention_forward_" + name,
                    kernel_case("attention_forward/bf16/length:1024").prepare);
    }
    bench.measure(concat("attention_backward_", name, options.deterministic ? "" : "_any_order"),
                  kernel_case("attention_backward/bf16/length:1024").prepare);
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

/// Measures the rates that the GPU sustains when clocks have settled under load: a matmul as large
/// as any of a step, of random numbers and of zeros, which draw less power; a copy; copies of 256
/// MiB to and from pinned memory of the host; and nothing. `begin` and `end` are seconds since
/// 1970, for whoever samples clocks and power in the meantime.
void measure_sustained(double seconds, const std::string& json_path) {
  GpuBench bench(kSizes);
  KernelLab& lab = bench.lab();
  constexpr std::int64_t kSize = 8192;
  const Shape square{kSize, kSize};
  const Tensor a = lab.random(square, DType::kBFloat16), b = lab.random(square, DType::kBFloat16);
  const Tensor c = lab.random(square, DType::kBFloat16);
  const double flops = 2.0 * static_cast<double>(kSize) * kSize * kSize;
  const Sustained products = bench.sustain(seconds, [&] {
    lab.kernels().gemm({.a = a, .b = b, .c = c, .transpose_b = true}, bench.stream());
  });
  const Tensor zeros = lab.constant(square, DType::kBFloat16, 0.0F);
  const Sustained of_zeros = bench.sustain(seconds, [&] {
    lab.kernels().gemm({.a = zeros, .b = zeros, .c = c, .transpose_b = true}, bench.stream());
  });
  const PreparedKernel copying = copy(lab);
  const Sustained copies = bench.sustain(seconds, [&] { copying.call(bench.stream()); });
  constexpr std::int64_t kHostBytes = std::int64_t{256} << 20;
  const Tensor on_device = lab.constant({kHostBytes / 4}, DType::kFloat32, 1.0F);
  const Buffer on_host =
      lab.memory().allocate(kHostBytes, MemoryCategory::kWorkspace, "a benchmark", Tier::kHost);
  const auto device_bytes = on_device.view().data;
  const Sustained to_host = bench.sustain(
      seconds, [&] { bench.stream().copy(on_host.data(), device_bytes, kHostBytes); });
  const Sustained to_device = bench.sustain(
      seconds, [&] { bench.stream().copy(device_bytes, on_host.data(), kHostBytes); });
  const Sustained idle = bench.rest(seconds);
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
  rows.push_back(row("matmul of zeros", "flops_per_second", flops, of_zeros));
  rows.push_back(row("copy", "bytes_per_second", copying.bytes, copies));
  rows.push_back(row("copy to host", "bytes_per_second", kHostBytes, to_host));
  rows.push_back(row("copy from host", "bytes_per_second", kHostBytes, to_device));
  rows.push_back(
      {{"name", "idle"}, {"seconds", idle.seconds}, {"begin", idle.begin}, {"end", idle.end}});
  write(rows, json_path);
}

void measure(bool attention_only, const std::string& json_path) {
  GpuBench bench(kSizes);
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

/// Attention over sequences packed with documents of 200 to 1000 tokens, as training runs it by
/// default, 16,384 tokens at once.
void measure_documents(const std::string& json_path) {
  std::vector<Measurement> all;
  for (const std::int64_t length : {2048, 4096}) {
    KernelSizes sizes = kSizes;
    sizes.batch = kSizes.tokens() / length;
    sizes.length = length;
    GpuBench bench(sizes);
    for (const char* const pass : {"forward", "backward"}) {
      bench.measure(
          concat("attention_", pass, "_documents_", length),
          kernel_case(concat("attention_", pass, "/bf16/length:", length, "/documents")).prepare);
    }
    all.insert(all.end(), bench.results().begin(), bench.results().end());
  }
  write(report(all), json_path);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  std::string json_path;
  bool attention_only = false, documents = false;
  double sustained_seconds = 0.0;
  Program program("gpu_kernels_bench",
                  "The memory-bound CUDA kernels against a copy on the same GPU, and attention.");
  program.option("--json", &json_path, "also write the results there", {.type = "FILE"});
  program.option("--attention", &attention_only, "measure attention only");
  program.option("--documents", &documents, "measure attention over packed documents only");
  program.option("--sustained", &sustained_seconds,
                 "measure a matrix product and copies only, for so many seconds each", positive());
  return program.run(argc, argv, [&] {
    if (sustained_seconds > 0.0) return measure_sustained(sustained_seconds, json_path);
    if (documents) return measure_documents(json_path);
    measure(attention_only, json_path);
  });
}
