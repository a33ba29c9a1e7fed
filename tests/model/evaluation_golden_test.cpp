#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/evaluation_golden.h"
#include "support/golden.h"
#include "support/model_run.h"
#include "tessera/core/cpu_device.h"
#include "tessera/model/gpt.h"

namespace tessera {
namespace {

using test::EvaluationGolden;

TEST(EvaluationGolden, TheModelHasTheLossOfTransformers) {
  const test::Golden weights(TESSERA_SOURCE_DIR "/tests/model/golden/gpt2");
  const auto golden =
      EvaluationGolden::read(TESSERA_SOURCE_DIR "/tests/model/golden/evaluation.json");
  const auto& c = weights.index().at("config");
  const Model model = make_gpt({.vocab_size = c.at("vocab_size"),
                                .context_length = c.at("context_length"),
                                .layers = c.at("layers"),
                                .heads = c.at("heads"),
                                .width = c.at("width")});
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto stream = device->create_stream({.name = "compute", .threads = 1});
  test::WholeModel whole(model, memory, DType::kFloat32, DType::kFloat32);
  for (const std::string& name : whole.names()) {
    test::copy_to(whole.value(name), weights.floats("initial/" + name));
  }
  const auto ints = [&](const std::vector<std::int32_t>& values) {
    Tensor tensor = Tensor::empty(memory, Shape{golden.rows, golden.length}, DType::kInt32,
                                  MemoryCategory::kData, "tokens");
    std::copy(values.begin(), values.end(), tensor.as<std::int32_t>());
    return tensor;
  };
  const Tensor scale =
      Tensor::empty(memory, Shape{1}, DType::kFloat32, MemoryCategory::kData, "scale");
  *scale.as<float>() = 1.0F;

  double sum = 0.0;
  std::int64_t tokens = 0;
  for (const EvaluationGolden::Batch& expected : golden.batches) {
    Batch batch;
    batch.inputs = ints(expected.tokens);
    batch.targets = ints(expected.targets);
    batch.items = expected.counted;
    EXPECT_EQ(std::ranges::count_if(expected.targets, [](std::int32_t t) { return t >= 0; }),
              expected.counted);
    double loss = 0.0;
    test::run_on(*stream, [&] {
      const Tensor losses = whole.forward_backward(memory, *stream, batch,
                                                   {.tape = {.loss_scale = scale, .threads = 1}});
      const std::vector<float> values = test::to_floats(losses);
      loss = std::accumulate(values.begin(), values.end(), 0.0);
    });
    EXPECT_NEAR(loss, expected.loss, 1e-5 * expected.loss);
    sum += loss;
    tokens += expected.counted;
  }
  EXPECT_EQ(tokens, golden.tokens);
  const double mean = sum / static_cast<double>(tokens);
  EXPECT_NEAR(mean, golden.loss, 1e-5 * golden.loss);
  EXPECT_NEAR(std::exp(mean), golden.perplexity, 1e-4 * golden.perplexity);
}

}  // namespace
}  // namespace tessera
