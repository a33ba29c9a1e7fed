#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <set>
#include <string>

#include "cuda/cuda_run.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule.h"
#include "tessera/trainer/training_plan.h"

namespace tessera {
namespace {

/// What a profiler would see while it lives; of one rank.
class SeenRanges {
 public:
  SeenRanges() {
    fake_nvtx::on_range = [this](const char* name) {
      depth_ += name != nullptr ? 1 : -1;
      if (name != nullptr) names_.insert(name);
    };
  }
  ~SeenRanges() { fake_nvtx::on_range = nullptr; }
  SeenRanges(const SeenRanges&) = delete;
  SeenRanges& operator=(const SeenRanges&) = delete;

  const std::set<std::string>& names() const { return names_; }
  int depth() const { return depth_; }

 private:
  std::set<std::string> names_;
  int depth_ = 0;
};

// Nsight Systems shows each action under the name that `plan`, `explain` and --trace give it.
TEST(CudaRanges, HaveTheNamesOfActions) {
  const test::CountingTokens data;
  const TrainerOptions options = test::cuda_options("full_shard", 1);
  const Model model = test::counting_gpt();
  const Trainer trainer(model, data, options);
  const SeenRanges seen;
  trainer.train();
  EXPECT_EQ(seen.depth(), 0) << "ranges that begin and end";
  const TrainingPlan plan = make_training_plan({model, data}, options);
  for (const Action& action : plan.schedule().actions) {
    if (action.operation->run == nullptr) continue;  // nothing is launched
    const std::string name = describe(plan.schedule(), action);
    EXPECT_TRUE(seen.names().contains(name)) << name;
  }
}

}  // namespace
}  // namespace tessera
