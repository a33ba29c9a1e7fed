#include <optional>
#include <string>
#include <vector>

#include "cuda/cuda_run.h"
#include "tessera/core/error.h"

// Steps on a GPU whose state is in the host's memory, held to those whose state is not. Compiled
// twice, for an emulated GPU and for a real one.
namespace tessera::cuda_offload_test {
namespace {

using test::counting_gpt;
using test::cuda_options;
using test::expect_same_bits;
using test::run;
using test::Trained;

struct Offload {
  std::string optimizer, parameters;
};

TrainerOptions with(TrainerOptions options, const Offload& offload) {
  options.offload_optimizer = parse_offload(offload.optimizer);
  options.offload_parameters = parse_offload(offload.parameters);
  return options;
}

void expect_as_planned(const TrainingSummary& summary) {
  EXPECT_GT(summary.predicted_host_memory.total, 0);
  EXPECT_EQ(summary.measured_memory, summary.predicted_memory);
  EXPECT_EQ(summary.measured_host_memory, summary.predicted_host_memory);
  for (const Traffic& counted : summary.counted_traffic) {
    EXPECT_EQ(counted, summary.predicted_traffic);
  }
}

TEST(CudaOffload, StateOnTheHostChangesNoBit) {
  const Model model = counting_gpt();
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    TrainerOptions plain = cuda_options("no_shard", 2);
    plain.precision = precision;
    plain.accumulate = 2;
    for (const char* strategy : {"zero2", "full_shard"}) {
      TrainerOptions options = plain;
      options.strategy = strategy;
      const Trained expected = run(model, options);
      std::vector<Offload> cases{{"host", "none"}, {"host:0.5", "none"}};
      if (options.strategy == "full_shard") cases.push_back({"host", "host"});
      for (const Offload& offload : cases) {
        SCOPED_TRACE(concat(strategy, " ", to_string(precision), " optimizer ", offload.optimizer,
                            " parameters ", offload.parameters));
        const Trained offloaded = run(model, with(options, offload));
        expect_same_bits(offloaded, expected);
        expect_as_planned(offloaded.summary);
      }
    }
  }
}

TEST(CudaOffload, AGraphReplaysTheSameBits) {
  const Model model = counting_gpt();
  for (const Offload& offload : {Offload{"host", "none"}, Offload{"host", "host"}}) {
    for (const bool overlap : {false, true}) {
      SCOPED_TRACE(concat(offload.parameters, overlap ? ", overlapping" : ""));
      TrainerOptions options = cuda_options("full_shard", 1);
      options.steps = 6;
      options.cuda_graph = false;
      const Trained expected = run(model, options);
      options.overlap_steps = overlap;
      options.cuda_graph = true;
      const Trained replayed = run(model, with(options, offload));
      expect_same_bits(replayed, expected);
      expect_as_planned(replayed.summary);
    }
  }
}

}  // namespace
}  // namespace tessera::cuda_offload_test
