#include <gtest/gtest.h>

#include "cuda/emulated_gpu.h"
#include "support/tiny_model.h"
#include "tessera/core/error.h"
#include "tessera/trainer/session.h"

// Session::forward, and targets that are no class, where the model is on a GPU.
namespace tessera::cuda_forward_test {
namespace {

using test::kClasses;
using test::kFeatures;
using test::tiny_model;
using test::TinyData;

class CudaForward : public test::EmulatedGpu {};

TrainerOptions options_for(DeviceChoice device) {
  TrainerOptions options;
  options.device = device;
  options.group = GroupChoice::kThread;
  options.ranks = 2;
  options.steps = 3;
  options.micro_batch = 2;
  options.threads_per_rank = 1;
  options.forward = true;
  return options;
}

TEST_F(CudaForward, ReturnsWhatTheModelPredictsInTheMemoryOfThePlan) {
  const Model model = tiny_model();
  const TinyData data;
  constexpr std::int64_t kSamples = 7;
  std::vector<float> inputs(kSamples * kFeatures);
  std::vector<std::int32_t> targets(kSamples);
  const TensorView view(inputs.data(), DType::kFloat32, Shape{kSamples, kFeatures});
  data.fill(0, kSamples, view, {targets.data(), DType::kInt32, Shape{kSamples}});
  for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<std::vector<float>> outputs;
    for (const DeviceChoice device : {DeviceChoice::kCpu, DeviceChoice::kCuda}) {
      TrainerOptions options = options_for(device);
      options.precision = precision;
      Session session(model, data, options);
      session.step();
      const Session::Outputs logits = session.forward(view);
      EXPECT_EQ(logits.shape, (Shape{kSamples, kClasses}));
      outputs.push_back(logits.values);
      for (const RankUse& use : session.use()) EXPECT_EQ(use.memory, session.plan().memory);
    }
    const float tolerance = precision == DType::kFloat32 ? 1e-4F : 5e-2F;
    for (std::size_t i = 0; i < outputs[0].size(); ++i) {
      EXPECT_NEAR(outputs[1][i], outputs[0][i], tolerance) << i;
    }
  }
}

/// Sample 5 has a class that the model does not.
class WideData : public TinyData {
 public:
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView x, TensorView y) const override {
    const std::int64_t items = TinyData::fill(first, n, x, y);
    if (first <= 5 && 5 < first + n) y.as<std::int32_t>()[5 - first] = 7;
    return items;
  }
};

TEST_F(CudaForward, ATargetThatIsNoClassNamesItsStepAndSample) {
  const Model model = tiny_model();
  const WideData data;
  Session session(model, data, options_for(DeviceChoice::kCuda));
  session.step();
  try {
    session.step();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("step 2: target 0 of sample 5 is 7, and the model has the classes 0 to 2"),
              std::string::npos)
        << what;
  }
}

}  // namespace
}  // namespace tessera::cuda_forward_test
