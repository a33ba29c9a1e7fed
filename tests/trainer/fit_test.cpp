#include "tessera/trainer/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "support/small_run.h"
#include "support/tiny_model.h"
#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/lab/hardware_profile.h"
#include "tessera/trainer/trainer.h"

// choose_fit(): the fastest settings whose plans are within a budget.
namespace tessera::fit_test {
namespace {

using test::tiny_model;
using test::TinyData;
using ::testing::HasSubstr;

FitRequest request_of(std::int64_t device_bytes) {
  FitRequest request{.device_bytes = device_bytes};
  request.cluster.profile = find_profile("h100-sxm");
  return request;
}

TrainerOptions options_of(int ranks) {
  TrainerOptions options;
  options.ranks = ranks;
  options.steps = 2;
  options.micro_batch = 4;
  options.threads_per_rank = 1;
  return options;
}

constexpr std::int64_t kPlenty = std::int64_t{1} << 40;

class Fit : public testing::Test {
 protected:
  FitChoice choose(int ranks, const FitRequest& request) const {
    return choose_fit({model_, data_}, options_of(ranks), request);
  }
  const Model model_ = tiny_model(2000);
  const TinyData data_;
};

TEST_F(Fit, TakesTheFastestOfThoseThatFitAndMeasuresWhatItPredicted) {
  const FitChoice all = choose(2, request_of(kPlenty));
  ASSERT_GT(all.candidates.size(), 20U);
  EXPECT_GT(all.refused, 0);  // activations on the host where they are not recomputed
  std::int64_t least = kPlenty, most = 0;
  for (const FitCandidate& candidate : all.candidates) {
    EXPECT_FALSE(candidate.excess);
    EXPECT_GE(*candidate.step_seconds, *all.best().step_seconds);
    least = std::min(least, candidate.device_bytes);
    most = std::max(most, candidate.device_bytes);
  }
  ASSERT_LT(least, most);
  for (const double share : {0.0, 0.2, 0.5, 0.8}) {
    SCOPED_TRACE(share);
    const auto budget =
        least + static_cast<std::int64_t>(share * static_cast<double>(most - least));
    const FitChoice choice = choose(2, request_of(budget));
    ASSERT_EQ(choice.candidates.size(), all.candidates.size());
    for (const FitCandidate& candidate : all.candidates) {
      const bool fits = candidate.device_bytes <= budget;
      if (fits) {
        EXPECT_GE(*candidate.step_seconds, *choice.best().step_seconds);
      }
      const auto same =
          std::ranges::find(choice.candidates, candidate.values, &FitCandidate::values);
      ASSERT_NE(same, choice.candidates.end());
      EXPECT_EQ(!same->excess, fits);
    }
    const TrainingSummary summary = Trainer(model_, data_, choice.best().options).train();
    EXPECT_EQ(summary.measured_memory.total, choice.best().device_bytes);
    EXPECT_LE(summary.measured_memory.total, budget);
    EXPECT_EQ(summary.measured_host_memory.total, choice.best().host_bytes);
  }
}

TEST_F(Fit, PrefersTheMildestOfEquals) {
  FitRequest request = request_of(kPlenty);
  request.kept = {"recompute", "offload_optimizer", "offload_gradients", "offload_parameters"};
  const FitChoice one_rank = choose(1, request);
  // On one rank all strategies are one schedule.
  ASSERT_EQ(one_rank.candidates.size(), 1U);
  EXPECT_EQ(one_rank.best().values.front(), strategies().front().name);
  const FitChoice first = choose(2, request), again = choose(2, request);
  for (std::size_t i = 0; i < first.candidates.size(); ++i) {
    EXPECT_EQ(first.candidates[i].values, again.candidates[i].values);
  }
}

TEST_F(Fit, KeepsWhatTheUserHasGiven) {
  TrainerOptions options = options_of(4);
  options.strategy = "hybrid_shard";
  options.replicas = 2;
  options.offload_optimizer = parse_offload("host:0.25");
  FitRequest request = request_of(kPlenty);
  request.kept = {"strategy", "replicas", "offload_optimizer"};
  const FitChoice choice = choose_fit({model_, data_}, options, request);
  for (const FitCandidate& candidate : choice.candidates) {
    EXPECT_EQ(candidate.values[0], "hybrid_shard");
    EXPECT_EQ(candidate.values[2], "host:0.25");
    EXPECT_EQ(candidate.options.replicas, 2);
  }
  // A placement of the user's own leaves no strategy to choose.
  options = options_of(2);
  options.placement = find_strategy("zero1").placement;
  request.kept = {"optimizer_placement"};
  for (const FitCandidate& candidate : choose_fit({model_, data_}, options, request).candidates) {
    EXPECT_EQ(candidate.options.placement, options.placement);
  }
}

TEST_F(Fit, ChoosesTheOrderOfAPipeline) {
  TrainerOptions options = options_of(2);
  options.pipeline.ranks = 2;
  options.accumulate = 4;
  FitRequest request = request_of(kPlenty);
  request.kept = {"strategy", "offload_optimizer", "offload_gradients", "offload_parameters",
                  "pipeline"};
  const Model model = make_gpt(test::small_gpt());
  const test::RandomTokens data(11, 61, true);
  const FitChoice choice = choose_fit({model, data}, options, request);
  std::set<std::string> orders;
  for (const FitCandidate& candidate : choice.candidates) {
    orders.insert(candidate.values.back());
    EXPECT_FALSE(candidate.options.pipeline.layers.counts.empty());
  }
  EXPECT_THAT(orders, ::testing::ElementsAre("1f1b", "interleaved", "zb-h1", "zb-v"));
  EXPECT_EQ(choose_fit({model, data}, resolved(options), request).candidates.size(),
            choice.candidates.size());
  const TrainingSummary summary = Trainer(model, data, choice.best().options).train();
  EXPECT_EQ(summary.measured_memory.total, choice.best().device_bytes);
  // The user's own order stays.
  request.kept.emplace_back("pipeline_schedule");
  options.pipeline.schedule.order = PipelineOrder::kGPipe;
  for (const FitCandidate& candidate : choose_fit({model, data}, options, request).candidates) {
    EXPECT_EQ(candidate.values.back(), "gpipe");
  }
}

/// The candidates with so many pipeline ranks.
std::vector<FitCandidate> with_pipeline(const FitChoice& choice, int ranks) {
  std::vector<FitCandidate> found;
  std::ranges::copy_if(choice.candidates, std::back_inserter(found), [&](const FitCandidate& one) {
    return one.options.pipeline.ranks == ranks;
  });
  return found;
}

FitRequest pipeline_request(std::int64_t device_bytes) {
  FitRequest request = request_of(device_bytes);
  request.kept = {"strategy",           "recompute",           "offload_optimizer",
                  "offload_parameters", "offload_activations", "offload_gradients",
                  "pipeline_schedule"};
  return request;
}

TEST_F(Fit, ChoosesThePipelineRanksThatAloneFit) {
  const Model model = make_gpt(test::small_gpt());
  const test::RandomTokens data(11, 61, true);
  TrainerOptions options = options_of(2);
  options.strategy = "no_shard";  // each rank has the state of all of its stage
  options.accumulate = 2;
  const FitChoice all = choose_fit({model, data}, options, pipeline_request(kPlenty));
  const auto whole = with_pipeline(all, 1), halves = with_pipeline(all, 2);
  ASSERT_EQ(whole.size(), 1U);
  ASSERT_EQ(halves.size(), 1U);
  // The time of messages and of waiting is worth nothing where the memory is enough.
  EXPECT_LT(*whole[0].step_seconds, *halves[0].step_seconds);
  EXPECT_EQ(all.best().options.pipeline.ranks, 1);
  EXPECT_EQ(halves[0].options.accumulate, 4);  // the same samples in a step
  ASSERT_LT(halves[0].device_bytes, whole[0].device_bytes);
  const FitChoice small =
      choose_fit({model, data}, options, pipeline_request(whole[0].device_bytes - 1));
  EXPECT_EQ(small.best().options.pipeline.ranks, 2);
  EXPECT_FALSE(small.best().options.pipeline.layers.counts.empty());
  const TrainingSummary summary = Trainer(model, data, small.best().options).train();
  EXPECT_EQ(summary.measured_memory.total, small.best().device_bytes);
}

TEST_F(Fit, TriesDivisorsOfTheRanksAndNoMoreThanLayers) {
  const Model model = make_gpt(test::small_gpt());  // five layers
  const test::RandomTokens data(11, 61, true);
  const auto tried = [&](int ranks, const TrainerOptions& given, const FitRequest& request) {
    TrainerOptions options = given;
    options.ranks = ranks;
    std::set<int> all;
    for (const FitCandidate& one : choose_fit({model, data}, options, request).candidates) {
      all.insert(one.options.pipeline.ranks);
    }
    return all;
  };
  const TrainerOptions usual = options_of(6);
  FitRequest request = pipeline_request(kPlenty);
  EXPECT_THAT(tried(6, usual, request), ::testing::ElementsAre(1, 2, 3));  // not 6
  EXPECT_THAT(tried(5, usual, request), ::testing::ElementsAre(1, 5));
  // The program's options are resolved: they have a number of stages and their bits.
  EXPECT_THAT(tried(6, resolved(usual), request), ::testing::ElementsAre(1, 2, 3));
  TrainerOptions split = usual;
  split.pipeline.ranks = 2;
  split.pipeline.layers = parse_stage_layers("2,3");
  EXPECT_THAT(tried(6, split, request), ::testing::ElementsAre(2));
  request.kept.emplace_back("pipeline");
  EXPECT_THAT(tried(6, usual, request), ::testing::ElementsAre(1));
}

// Where offload without stages fits, it is not tried with them.
TEST_F(Fit, OffloadsFromStagesOnlyIfNothingElseFits) {
  GptConfig config = test::small_gpt();
  config.layers = 8;
  config.width = 56;
  const Model model = make_gpt(config);
  const test::RandomTokens data(11, 61, true);
  TrainerOptions options = options_of(2);
  options.strategy = "no_shard";  // the state of blocks is most of the memory
  options.micro_batch = 1;
  FitRequest request = pipeline_request(kPlenty);
  std::erase(request.kept, "offload_optimizer");
  const FitChoice all = choose_fit({model, data}, options, request);
  EXPECT_GT(with_pipeline(all, 1).size(), 1U);
  EXPECT_EQ(with_pipeline(all, 2).size(), 1U);
  std::int64_t least = kPlenty;
  for (const FitCandidate& one : all.candidates) least = std::min(least, one.device_bytes);
  request.device_bytes = least - 1;
  const FitChoice small = choose_fit({model, data}, options, request);
  EXPECT_EQ(small.best().options.pipeline.ranks, 2);
  EXPECT_NE(small.best().values[2], "none");
}

TEST_F(Fit, CountsTheHostsMemoryAndOnACpuBothTogether) {
  const FitChoice all = choose(2, request_of(kPlenty));
  FitRequest request = request_of(kPlenty);
  request.host_bytes = all.best().device_bytes + all.best().host_bytes - 1;
  for (const FitCandidate& candidate : choose(2, request).candidates) {
    const bool fits = candidate.device_bytes + candidate.host_bytes <= request.host_bytes;
    EXPECT_EQ(!candidate.excess, fits);
    if (!fits) {
      EXPECT_THAT(to_string(*candidate.excess), HasSubstr("host memory"));
    }
  }
}

TEST_F(Fit, TriesParametersOnADiskAndMeasuresWhatItPredicted) {
  const test::TemporaryFolder folder;
  TrainerOptions options = options_of(2);
  options.strategy = "full_shard";
  options.offload_path = folder.path("");
  FitRequest request = request_of(kPlenty);
  request.kept = {"strategy",          "recompute",           "offload_optimizer",
                  "offload_gradients", "offload_activations", "pipeline"};
  const FitChoice all = choose_fit({model_, data_}, options, request);
  const auto with = [&](const char* parameters) {
    return *std::ranges::find_if(all.candidates,
                                 [&](const FitCandidate& c) { return c.values[4] == parameters; });
  };
  ASSERT_EQ(all.candidates.size(), 4U);
  const FitCandidate host = with("host"), disk = with("disk");
  EXPECT_LE(disk.device_bytes, host.device_bytes);
  EXPECT_GT(disk.step_seconds.value_or(0.0), host.step_seconds.value_or(0.0));
  const TrainingSummary summary = Trainer(model_, data_, disk.options).train();
  EXPECT_EQ(summary.measured_memory.total, disk.device_bytes);
  EXPECT_EQ(summary.measured_host_memory.total, disk.host_bytes);
}

// The inputs of its layers may wait on the host, too.
TEST(FitOfAQuantisedBase, TriesInputsOnTheHostAndMeasuresWhatItPredicted) {
  const test::RandomTokens source(11, 61, false);
  for (const WeightFormat format :
       {WeightFormat::kNf4, WeightFormat::kNf4Double, WeightFormat::kFp4, WeightFormat::kInt8}) {
    SCOPED_TRACE(to_string(format));
    GptConfig config = test::small_gpt();
    config.adapter = {.kind = LoraOptions{.rank = 2, .alpha = 4.0}, .target_pattern = "all-linear"};
    config.base_format = format;
    const Model model = make_gpt(config);
    FitRequest request = request_of(kPlenty);
    request.kept = {"strategy", "pipeline"};
    const FitChoice all = choose_fit({model, source}, options_of(2), request);
    for (const char* const values : {"none", "host"}) {
      const auto found = std::ranges::find_if(
          all.candidates, [&](const FitCandidate& c) { return c.values[5] == values; });
      ASSERT_NE(found, all.candidates.end());
      const TrainingSummary summary = Trainer(model, source, found->options).train();
      EXPECT_EQ(summary.measured_memory.total, found->device_bytes);
      EXPECT_EQ(summary.measured_host_memory.total, found->host_bytes);
    }
  }
}

TEST_F(Fit, SaysWhatWouldBeNeededIfNothingFits) {
  try {
    FitRequest request = request_of(1000);
    request.kept = {"pipeline"};
    choose(2, request);
    FAIL() << "fitted into 1000 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("the smallest one needs"));
    EXPECT_THAT(error.what(), HasSubstr("`recompute`"));
  }
}

}  // namespace
}  // namespace tessera::fit_test
