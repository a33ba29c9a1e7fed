// One training step of a GPT on CPU ranks, beside what its matrix products alone take.
//
//   step_bench [--model gpt2-124m] [--precision fp32|bf16] [--micro-batch B] [--sequence-length T]
//              [--ranks N] [--threads K] [--strategy S] [--rounds R] [--json]
//              [--breakdown]
//
// The products run through the same oneDNN calls, with weights and gradients of their own for every
// layer, interleaved with whole steps; medians. "of GEMM rate" is products' time / step's time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/autograd/ops.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/kernels/philox.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/plan.h"
#include "tessera/trainer/launch.h"

namespace tessera {
namespace {

struct Options {
  std::string model = "gpt2-124m";
  std::string strategy = "no_shard";
  DType dtype = DType::kFloat32;
  std::int64_t micro_batch = 1;
  std::int64_t length = 512;
  int ranks = 1;
  int threads = 2;
  int rounds = 5;
  bool json = false;
  bool breakdown = false;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] {
      require(i + 1 < argc, ErrorCode::kConfig, flag, " needs a value");
      return std::string(argv[++i]);
    };
    if (flag == "--help") {
      std::puts(
          "step_bench [--model gpt2-124m] [--precision fp32|bf16] [--micro-batch 1]\n"
          "           [--sequence-length 512] [--ranks 1] [--threads 2 (per rank)]\n"
          "           [--strategy no_shard] [--rounds 5] [--json] [--breakdown]\n"
          "Times training steps of a GPT, interleaved with its matrix products alone;\n"
          "--breakdown adds where the last step's time went, by kind of action.");
      std::exit(0);
    } else if (flag == "--model") {
      o.model = value();
    } else if (flag == "--strategy") {
      o.strategy = value();
    } else if (flag == "--precision") {
      o.dtype = parse_dtype(value());
    } else if (flag == "--micro-batch") {
      o.micro_batch = std::stoll(value());
    } else if (flag == "--sequence-length") {
      o.length = std::stoll(value());
    } else if (flag == "--ranks") {
      o.ranks = std::stoi(value());
    } else if (flag == "--threads") {
      o.threads = std::stoi(value());
    } else if (flag == "--rounds") {
      o.rounds = std::stoi(value());
    } else if (flag == "--json") {
      o.json = true;
    } else if (flag == "--breakdown") {
      o.breakdown = true;
    } else {
      fail(ErrorCode::kConfig, "unknown option ", flag, "; see --help");
    }
  }
  return o;
}

class Tokens : public BatchSource {
 public:
  Tokens(std::int64_t length, std::int64_t vocab) : length_(length), vocab_(vocab) {}
  Shape input_shape(std::int64_t n) const override { return Shape{n, length_}; }
  Shape target_shape(std::int64_t n) const override { return Shape{n, length_}; }
  DType input_dtype() const override { return DType::kInt32; }
  DType target_dtype() const override { return DType::kInt32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t i = 0; i < n * length_; ++i) {
      const auto token = [&](std::int64_t p) {
        return static_cast<std::int32_t>(random_word({1, 2}, p) %
                                         static_cast<std::uint32_t>(vocab_));
      };
      inputs.as<std::int32_t>()[i] = token(first * length_ + i);
      targets.as<std::int32_t>()[i] = token(first * length_ + i + 1);
    }
    return n * length_;
  }

 private:
  std::int64_t length_, vocab_;
};

/// Every matrix product of a step, forward, input gradient and weight gradient, with as much
/// distinct weight and gradient memory as the model has.
class Products {
 public:
  Products(const GptConfig& gpt, const Options& o, Memory& memory) {
    const std::int64_t tokens = o.micro_batch * o.length;
    const std::int64_t c = gpt.width;
    for (std::int64_t l = 0; l < gpt.layers; ++l) {
      add(memory, o.dtype, tokens, c, 3 * c, 1);
      add(memory, o.dtype, tokens, c, c, 1);
      add(memory, o.dtype, tokens, c, 4 * c, 1);
      add(memory, o.dtype, tokens, 4 * c, c, 1);
    }
    const std::int64_t rows = ops::cross_entropy_chunk_rows(tokens, gpt.vocab_size);
    add(memory, o.dtype, rows, c, gpt.vocab_size, (tokens + rows - 1) / rows);
  }

  double flops() const {
    double sum = 0.0;
    for (const Linear& l : layers_) {
      sum += 6.0 * static_cast<double>(l.times * l.x.shape()[0] * l.weight.numel());
    }
    return sum;
  }

  void run(const KernelTable& kernels, Stream& stream) {
    for (const Linear& l : layers_) {
      for (std::int64_t i = 0; i < l.times; ++i) {
        kernels.gemm({.a = l.x, .b = l.weight, .c = l.y, .transpose_b = true}, stream);
        kernels.gemm({.a = l.y, .b = l.weight, .c = l.x}, stream);
        kernels.gemm(
            {.a = l.y, .b = l.x, .c = l.gradient, .transpose_a = true, .accumulate = i > 0},
            stream);
      }
    }
  }

 private:
  struct Linear {
    Tensor x, y, weight, gradient;
    std::int64_t times = 1;
  };

  void add(Memory& memory, DType dtype, std::int64_t tokens, std::int64_t in, std::int64_t out,
           std::int64_t times) {
    const auto tensor = [&](Shape shape, DType type) {
      Tensor t = Tensor::empty(memory, shape, type, MemoryCategory::kActivations, "operand");
      std::memset(t.view().data, 0, static_cast<std::size_t>(t.bytes()));
      return t;
    };
    Linear l{.x = shared(memory, Shape{tokens, in}, dtype, 0),
             .y = shared(memory, Shape{tokens, out}, dtype, 1),
             .weight = tensor(Shape{out, in}, dtype),
             .gradient = tensor(Shape{out, in}, DType::kFloat32),
             .times = times};
    layers_.push_back(std::move(l));
  }

  /// Activations come and go: operands of one shape share their memory.
  Tensor shared(Memory& memory, Shape shape, DType dtype, int role) {
    for (const auto& [known, tensor] : activations_) {
      if (known == role && tensor.shape() == shape) return tensor;
    }
    Tensor t = Tensor::empty(memory, shape, dtype, MemoryCategory::kActivations, "operand");
    std::memset(t.view().data, 0, static_cast<std::size_t>(t.bytes()));
    activations_.emplace_back(role, t);
    return t;
  }

  std::vector<std::pair<int, Tensor>> activations_;
  std::vector<Linear> layers_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Times {
  std::vector<double> steps, products;
  double flops = 0.0;
  std::map<std::string, double> by_kind;  ///< seconds of the last step
};

Times measure(const Options& o) {
  const GptConfig gpt = gpt_preset(o.model);
  require(o.length <= gpt.context_length, ErrorCode::kConfig, "--sequence-length ", o.length,
          " is longer than the model's context of ", gpt.context_length);
  const Model model = make_gpt(gpt);
  const Tokens source(o.length, gpt.vocab_size);
  const Strategy& strategy = find_strategy(o.strategy);
  const ModelLayout layout = make_layout(model, {}, o.ranks);
  const Schedule schedule = plan(layout, {.mesh = make_mesh(o.ranks, 0, strategy.hybrid),
                                          .placement = strategy.placement,
                                          .reshard_after_forward = strategy.reshard_after_forward,
                                          .parameter_dtype = o.dtype});
  Times times;
  launch_ranks(make_thread_group(o.ranks), [&](int rank, ProcessGroup& world) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(world, schedule);
    Executor executor(schedule, layout, model, source, groups, memory,
                      {.micro_batch = o.micro_batch, .threads = o.threads, .trace = o.breakdown});
    Products products(gpt, o, memory);
    const auto lane = device->create_stream({.name = "products", .threads = o.threads});
    const auto run_products = [&] {
      world.barrier(*lane);
      lane->submit({.name = "products"}, [&] { products.run(kernels_for(*device), *lane); });
      lane->synchronize();
    };
    executor.run_step(0, 1e-4);  // warm-up: pages, primitives
    run_products();
    for (int round = 1; round <= o.rounds; ++round) {
      const double step = seconds_of([&] { executor.run_step(round, 1e-4); });
      const double product = seconds_of(run_products);
      if (rank != 0) continue;
      times.steps.push_back(step);
      times.products.push_back(product);
      times.flops = products.flops();
      times.by_kind.clear();
      for (const ActionSpan& span : executor.spans()) {
        const Action& action = schedule.actions[static_cast<std::size_t>(span.action)];
        times.by_kind[std::string(to_string(action.kind))] += span.end - span.begin;
      }
    }
  });
  return times;
}

void report(const Options& o, const Times& t) {
  const double step = median(t.steps);
  const double products = median(t.products);
  const auto [fastest, slowest] = std::ranges::minmax(t.steps);
  const double tokens = static_cast<double>(o.ranks * o.micro_batch * o.length) / step;
  if (o.json) {
    const nlohmann::json out{{"model", o.model},
                             {"precision", to_string(o.dtype)},
                             {"micro_batch", o.micro_batch},
                             {"sequence_length", o.length},
                             {"ranks", o.ranks},
                             {"threads_per_rank", o.threads},
                             {"strategy", o.strategy},
                             {"step_seconds", t.steps},
                             {"products_seconds", t.products},
                             {"of_gemm_rate", products / step},
                             {"tokens_per_second", tokens}};
    std::puts(out.dump().c_str());
    return;
  }
  std::printf(
      "%s %s  %d rank(s) x %d thread(s)  %lld x %lld tokens  %s\n"
      "  step      %8.1f ms   (%.1f .. %.1f)   %.0f tokens/s\n"
      "  products  %8.1f ms   %.0f GFLOP/s per rank\n"
      "  of GEMM rate  %.1f %%\n",
      o.model.c_str(), std::string(to_string(o.dtype)).c_str(), o.ranks, o.threads,
      static_cast<long long>(o.micro_batch), static_cast<long long>(o.length), o.strategy.c_str(),
      step * 1e3, fastest * 1e3, slowest * 1e3, tokens, products * 1e3, t.flops / products / 1e9,
      100.0 * products / step);
  for (const auto& [kind, seconds] : t.by_kind) {
    std::printf("    %-18s %8.1f ms\n", kind.c_str(), seconds * 1e3);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  const tessera::Options options = tessera::parse(argc, argv);
  tessera::report(options, tessera::measure(options));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "step_bench: %s\n", error.what());
  return 1;
}
