// A training step of a GPT on CPU ranks beside its GEMMs alone.
//
// The yardstick is the products of the step, called directly in oneDNN: those of the linear layers
// and the head, recorded from a step (recorded_gemms.h), and those of attention, which its kernel
// makes (attention_products.h). Same shapes, strides, accumulation and places in memory, random
// numbers; no bias, GELU, mask or softmax. For every shape the fastest of oneDNN's ways is taken
// (direct_product.h), tried out before the first step. Three rates:
//
//   of GEMM rate          all products, operands as the step has them. Weights change in every step
//                         and activations with every product, so packing is part of the product.
//   without attention's   the linear layers' and the head's alone, as if attention took no time.
//   of prepacked rate     all; the linear layers' and the head's operands in the layouts that
//                         oneDNN likes best, packed beforehand and not timed: no training step can
//                         have that, but no step is faster either.
//
// One step and the sets of products take turns, so that a drift of the machine hits all. A rate is
// the products' time / the step's time in a round, and of the rounds the median. With several ranks
// each runs its own products at the same time as the others.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention_products.h"
#include "recorded_gemms.h"
#include "step_products.h"
#include "support.h"
#include "tessera/collectives/thread_group.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt.h"
#include "tessera/sharding/executor.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/planner.h"
#include "tessera/sharding/sample_division.h"
#include "tessera/trainer/launch.h"

namespace tessera::bench {
namespace {

struct Options {
  std::string model = "gpt2-124m";
  std::int64_t layers = 0;      ///< 0: the model's
  std::int64_t vocabulary = 0;  ///< the same
  std::string lora;
  std::string strategy = "no_shard";
  std::string precision = "fp32";
  std::int64_t micro_batch = 1;
  std::int64_t length = 512;
  int ranks = 1;
  int threads = 2;
  int rounds = 5;
  bool json = false;
  bool breakdown = false;

  DType dtype() const { return parse_dtype(precision); }
};

void add_options(Program& program, Options& o) {
  program.option("--model", &o.model, "a preset, as in 'tessera train'",
                 one_of(gpt_preset_names()));
  program.option("--layers", &o.layers, "fewer or more than the model has", positive());
  program.option("--vocabulary", &o.vocabulary, "another than the model's", positive());
  program.option("--lora", &o.lora, "train adapters, as in 'tessera train': r=16,alpha=32");
  program.option("--precision", &o.precision, "of parameters and activations",
                 one_of({"fp32", "bf16"}));
  program.option("--micro-batch", &o.micro_batch, "samples per rank and step", positive());
  program.option("--sequence-length", &o.length, "tokens per sample", positive());
  program.option("--ranks", &o.ranks, "ranks in the process", positive());
  program.option("--threads", &o.threads, "threads per rank", positive());
  program.option("--strategy", &o.strategy, "what is sharded, as in 'tessera train'");
  program.option("--rounds", &o.rounds, "steps, of which the median is shown", positive());
  program.option("--json", &o.json, "print one JSON object");
  program.option("--breakdown", &o.breakdown,
                 "add the last step's time by kind of action, and the ways of the products");
}

/// A product of the step and the ways taken for it.
struct Choice {
  ProductShape shape;
  std::string plain, packed;
};

struct Times {
  std::vector<double> steps;                ///< seconds, as are the next
  std::vector<double> products, prepacked;  ///< all products of a step
  std::vector<double> linear;               ///< `products` without attention's
  double flops = 0.0, linear_flops = 0.0;   ///< of one rank's products
  std::vector<Choice> choices;              ///< of rank 0
  std::vector<std::string> left_out;        ///< ways whose results are wrong
  std::map<std::string, double> by_kind;    ///< seconds of the last step

  /// The share of the step's time, round by round; the median.
  double share(const std::vector<double>& seconds) const {
    std::vector<double> shares;
    for (std::size_t i = 0; i < steps.size(); ++i) shares.push_back(seconds[i] / steps[i]);
    return median(shares);
  }
};

/// One rank's products on a stream of their own.
class ProductsLane {
 public:
  ProductsLane(const GptConfig& gpt, std::span<const GemmArgs> gemms, const Options& o,
               Device& device, Memory& memory, ProcessGroup& world)
      : world_(world), stream_(device.create_stream({.name = "products", .threads = o.threads})) {
    run([&] {
      linear_.emplace(gemms, memory);
      attention_.emplace(gpt, o.micro_batch, o.length, o.dtype(), memory);
    });
  }

  /// Together with the other ranks.
  double linear_seconds(Layouts layouts) {
    return seconds_of([&] { run([&] { linear_->run(layouts); }); });
  }
  double attention_seconds() {
    return seconds_of([&] { run([&] { attention_->run(); }); });
  }
  const StepProducts& linear() const { return *linear_; }
  const AttentionProducts& attention() const { return *attention_; }

 private:
  void run(const std::function<void()>& task) {
    world_.barrier(*stream_);
    stream_->submit({.name = "products"}, task);
    stream_->synchronize();
  }

  ProcessGroup& world_;
  std::unique_ptr<Stream> stream_;
  std::optional<StepProducts> linear_;
  std::optional<AttentionProducts> attention_;
};

GptConfig chosen_model(const Options& o) {
  GptConfig gpt = gpt_preset(o.model);
  if (o.layers > 0) gpt.layers = o.layers;
  if (o.vocabulary > 0) gpt.vocab_size = o.vocabulary;
  if (!o.lora.empty()) gpt.adapter = parse_adapter("lora", o.lora, gpt);
  return gpt;
}

Times measure(const Options& o) {
  const GptConfig gpt = chosen_model(o);
  require(o.length <= gpt.context_length, ErrorCode::kConfig, "--sequence-length ", o.length,
          " is longer than the model's context of ", gpt.context_length);
  const Model model = make_gpt(gpt);
  const RandomTokens source(o.length, gpt.vocab_size);
  const Strategy& strategy = find_strategy(o.strategy);
  const Mesh mesh = make_mesh(o.ranks, default_replicas(strategy, o.ranks));
  const ModelLayout layout = make_layout(model, {}, flat_parts(mesh));
  const Schedule schedule = plan(layout, {.mesh = mesh,
                                          .placement = strategy.placement,
                                          .reshard_after_forward = strategy.reshard_after_forward,
                                          .parameter_dtype = o.dtype()});
  const std::vector<GemmArgs> gemms = record_gemms(model, source, o.micro_batch, o.dtype());
  Times times;
  launch_ranks(make_thread_group(o.ranks), [&](int rank, ProcessGroup& world) {
    const auto device = make_cpu_device();
    Memory memory(*device);
    RankGroups groups = RankGroups::split_from(world, schedule);
    TrainingState state(layout, state_options(schedule), rank, memory);
    Executor executor(state, model, {{&schedule, &source}}, groups, memory,
                      {.micro_batch = o.micro_batch, .threads = o.threads, .trace = o.breakdown});
    ProductsLane lane(gpt, gemms, o, *device, memory, world);
    executor.run_step(0, 1e-4);  // warm-up: pages, primitives
    for (int round = 1; round <= o.rounds; ++round) {
      const double step = seconds_of([&] { executor.run_step(round, 1e-4); });
      const double linear = lane.linear_seconds(Layouts::kPlain);
      const double attention = lane.attention_seconds();
      const double packed = lane.linear_seconds(Layouts::kPacked);
      if (rank != 0) continue;
      times.steps.push_back(step);
      times.products.push_back(linear + attention);
      times.prepacked.push_back(packed + attention);
      times.linear.push_back(linear);
      times.by_kind.clear();
      for (const ActionSpan& span : executor.spans()) {
        const Action& action = schedule.actions[static_cast<std::size_t>(span.action)];
        times.by_kind[std::string(action.operation->name)] += span.end - span.begin;
      }
    }
    if (rank != 0) return;
    times.linear_flops = lane.linear().flops();
    times.flops = times.linear_flops + lane.attention().flops();
    for (const DirectProduct& p : lane.linear().products()) {
      times.choices.push_back({p.shape(), p.way(Layouts::kPlain), p.way(Layouts::kPacked)});
      times.left_out.insert(times.left_out.end(), p.left_out().begin(), p.left_out().end());
    }
  });
  return times;
}

void report_json(const Options& o, const Times& t, double tokens_per_second) {
  const nlohmann::json out{{"model", o.model},
                           {"layers", o.layers},
                           {"vocabulary", o.vocabulary},
                           {"lora", o.lora},
                           {"precision", o.precision},
                           {"micro_batch", o.micro_batch},
                           {"sequence_length", o.length},
                           {"ranks", o.ranks},
                           {"threads_per_rank", o.threads},
                           {"strategy", o.strategy},
                           {"step_seconds", t.steps},
                           {"products_seconds", t.products},
                           {"prepacked_seconds", t.prepacked},
                           {"linear_seconds", t.linear},
                           {"of_gemm_rate", t.share(t.products)},
                           {"of_linear_rate", t.share(t.linear)},
                           {"of_prepacked_rate", t.share(t.prepacked)},
                           {"left_out", t.left_out},
                           {"tokens_per_second", tokens_per_second}};
  std::puts(out.dump().c_str());
}

void report_breakdown(const Times& t) {
  for (const auto& [kind, seconds] : t.by_kind) {
    std::printf("    %-18s %8.1f ms\n", kind.c_str(), seconds * 1e3);
  }
  for (const auto& [s, plain, packed] : t.choices) {
    std::printf("    %5lld x %5lld x %5lld%s%s%s  %-18s packed: %s\n", static_cast<long long>(s.m),
                static_cast<long long>(s.n), static_cast<long long>(s.k),
                s.transpose_a ? " A^T" : "", s.transpose_b ? " B^T" : "",
                s.accumulate ? " added" : "", plain.c_str(), packed.c_str());
  }
}

void report(const Options& o, const Times& t) {
  const double step = median(t.steps);
  const std::int64_t samples =
      divide_samples(make_mesh(o.ranks, 1), 1, o.micro_batch).samples_per_step();
  const double tokens = static_cast<double>(samples * o.length) / step;
  if (o.json) return report_json(o, t, tokens);
  const auto [fastest, slowest] = std::ranges::minmax(t.steps);
  std::printf(
      "%s %s  %d rank(s) x %d thread(s)  %lld x %lld tokens  %s\n"
      "  step       %8.1f ms   (%.1f .. %.1f)   %.0f tokens/s\n",
      o.model.c_str(), o.precision.c_str(), o.ranks, o.threads,
      static_cast<long long>(o.micro_batch), static_cast<long long>(o.length), o.strategy.c_str(),
      step * 1e3, fastest * 1e3, slowest * 1e3, tokens);
  const auto rate = [&](const char* name, const std::vector<double>& times, double flops,
                        const char* of) {
    const double seconds = median(times);
    std::printf("  %-10s %8.1f ms   %.0f GFLOP/s per rank   %s %.1f %%\n", name, seconds * 1e3,
                flops / seconds / 1e9, of, 100.0 * t.share(times));
  };
  rate("products", t.products, t.flops, "of GEMM rate");
  rate("  linear", t.linear, t.linear_flops, "without attention's");
  rate("prepacked", t.prepacked, t.flops, "of prepacked rate");
  for (const std::string& wrong : t.left_out) std::printf("  left out: %s\n", wrong.c_str());
  if (o.breakdown) report_breakdown(t);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program(
      "step_bench",
      "Times training steps of a GPT on CPU ranks, in turns with the matrix products of "
      "a step alone in oneDNN:\nwith operands as the step has them, and with operands "
      "packed beforehand.");
  add_options(program, options);
  return program.run(argc, argv, [&] { report(options, measure(options)); });
}
