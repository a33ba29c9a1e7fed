#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/chain_run.h"
#include "tessera/sharding/operation.h"
#include "tessera/sharding/schedule_json.h"

// A flat parameter that no planner knows of: gains that are kept in fp32 beside matrices in bf16,
// of a layer of the test's own.
namespace tessera::test::fourth_flat_test {
namespace {

using ::testing::ElementsAre;

Tensor to_fp32(Tape& tape, const Tensor& x) {
  Tensor floats = tape.activation(x.shape(), DType::kFloat32, "in fp32");
  tape.kernels().cast({.src = x, .dst = floats}, tape.stream());
  return floats;
}

Tensor rounded_to(Tape& tape, const Tensor& x, DType dtype) {
  Tensor rounded = tape.activation(x.shape(), dtype, "rounded");
  tape.kernels().cast({.src = x, .dst = rounded}, tape.stream());
  return rounded;
}

/// Columns of `x` times the gain, which is fp32 whatever `x` is.
Value scaled(Tape& tape, const Value& x, const Parameter& gain) {
  const std::int64_t columns = gain.value.numel();
  const auto times_gain = [columns](const Tensor& values, const Parameter& by) {
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      values.as<float>()[i] *= by.value.as<float>()[i % columns];
    }
  };
  EXPECT_EQ(gain.value.dtype, DType::kFloat32);
  const DType dtype = x.tensor.dtype();
  const Tensor input = to_fp32(tape, x.tensor), product = to_fp32(tape, x.tensor);
  times_gain(product, gain);
  return tape.output(rounded_to(tape, product, dtype),
                     [=, id = x.id, p = &gain](Tape& t, const Tensor& gradient) {
                       const Tensor dy = to_fp32(t, gradient);
                       for (std::int64_t c = 0; p->gradient && c < columns; ++c) {
                         float sum = p->gradient_written ? p->gradient.as<float>()[c] : 0.0F;
                         for (std::int64_t i = c; i < dy.numel(); i += columns) {
                           sum += dy.as<float>()[i] * input.as<float>()[i];
                         }
                         p->gradient.as<float>()[c] = sum;
                       }
                       times_gain(dy, *p);
                       t.add_gradient(id, rounded_to(t, dy, dtype));
                     });
}

/// y = (x W^T) * gain. The last layer goes on to the loss.
class Normed : public Layer {
 public:
  Normed(int index, bool last, bool trains_gain)
      : Layer("l" + std::to_string(index), "Normed"), last_(last) {
    parameters_ = {{.name = name() + ".weight",
                    .shape = {kWidth, kWidth},
                    .initializer = Initializer::normal(0.3F)},
                   {.name = name() + ".gain",
                    .shape = {kWidth},
                    .initializer = Initializer::constant(1.0F),
                    .trainable = trains_gain,
                    .dtype = DType::kFloat32}};
  }

  Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const override {
    Value y = scaled(tape, ops::linear(tape, input, parameters[0], nullptr), parameters[1]);
    return last_ ? ops::cross_entropy(tape, std::move(y), tape.batch().targets) : y;
  }

 private:
  const bool last_;
};

Model make_normed(bool trains_gain = true) {
  Model model{.name = "normed", .layers = {}};
  for (int l = 0; l < kChainLayers; ++l) {
    model.layers.push_back(std::make_unique<Normed>(l, l == kChainLayers - 1, trains_gain));
  }
  return model;
}

SmallRun run_of(const std::string& strategy, int ranks) {
  return {.ranks = ranks, .strategy = strategy, .steps = 3, .dtype = DType::kBFloat16};
}

ChainResult reference(int ranks, bool trains_gain) {
  SmallRun run = run_of("no_shard", 1);
  run.micro_steps = ranks;
  return train(ChainRun{.run = run, .model = make_normed(trains_gain)});
}

TEST(FourthFlat, IsLaidOutApartAndHasAStateOfItsOwn) {
  const ChainRun chain{.run = run_of("full_shard", 2), .model = make_normed()};
  std::vector<std::string> flats, state;
  for (const FlatParameter& flat : chain.layout.units[0].flats) flats.push_back(flat.name);
  EXPECT_THAT(flats, ElementsAre("parameter", "parameter-fp32"));
  for (const ScheduleBuffer& buffer : chain.schedule.buffers) {
    if (buffer.persistent && buffer.unit == 0) {
      state.push_back(concat(buffer.name, ' ', to_string(buffer.format)));
    }
  }
  EXPECT_THAT(state, ElementsAre("l0.parameter bf16", "l0.parameter-fp32 fp32", "l0.master fp32",
                                 "l0.first-moment fp32", "l0.second-moment fp32",
                                 "l0.parameter-fp32.first-moment fp32",
                                 "l0.parameter-fp32.second-moment fp32"));
  require_valid(chain.schedule);
  EXPECT_EQ(parse_schedule(to_string(chain.schedule)), chain.schedule);
  EXPECT_EQ(schedule_from_json(to_json(chain.schedule)), chain.schedule);
}

TEST(FourthFlat, TrainsTheSameBitsWithEveryStrategy) {
  for (const bool trains_gain : {true, false}) {
    for (const int ranks : {2, 3, 4}) {
      const ChainResult expected = reference(ranks, trains_gain);
      for (const Strategy& strategy : strategies()) {
        if (strategy.hybrid && ranks != 4) continue;
        SmallRun run = run_of(strategy.name, ranks);
        run.delay_seed = 5;
        SCOPED_TRACE(concat(strategy.name, " on ", ranks, trains_gain ? "" : ", frozen gains"));
        const ChainRun chain{.run = run, .model = make_normed(trains_gain)};
        require_valid(chain.schedule);
        const ChainResult result = train(chain);
        EXPECT_EQ(result.losses, expected.losses);
        EXPECT_EQ(result.norms, expected.norms);
        EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
      }
    }
  }
}

TEST(FourthFlat, TrainsTheSameBitsOnEveryTier) {
  const ChainResult expected = reference(2, true);
  for (const std::string strategy : {"full_shard", "zero2", "no_shard"}) {
    for (const double share : {0.5, 1.0}) {
      for (const bool gradients : {false, true}) {
        SmallRun run = run_of(strategy, 2);
        run.offload_optimizer = share;
        run.offload_parameters = gradients ? 0.0 : share;
        run.offload_gradients = gradients ? share : 0.0;
        run.delay_seed = 11;
        SCOPED_TRACE(concat(strategy, ", ", share, gradients ? " with gradients" : ""));
        const ChainRun chain{.run = run, .model = make_normed()};
        require_valid(chain.schedule);
        const ChainResult result = train(chain);
        EXPECT_EQ(result.losses, expected.losses);
        EXPECT_TRUE(same_bits(result.parameters, expected.parameters));
      }
    }
  }
}

// What differs from 1 by less than bf16 can tell is there.
TEST(FourthFlat, IsKeptInItsOwnPrecision) {
  const ChainResult result = reference(2, true);
  const std::vector<float>& gain = named(result.parameters, "l0.gain").values;
  EXPECT_TRUE(std::ranges::any_of(
      gain, [](float value) { return value != static_cast<float>(bfloat16(value)); }));
}

TEST(FourthFlat, NeedsNoCollectiveMoreThanItsFormat) {
  const ChainRun chain{.run = run_of("full_shard", 2), .model = make_normed()};
  int by_format[2] = {0, 0};
  for (const Action& action : chain.schedule.actions) {
    if (action.operation != &operations::kAllGather) continue;
    EXPECT_EQ(action.reads.size(), 1U) << describe(chain.schedule, action);
    ++by_format[chain.schedule.buffer(action.reads[0]).format == DType::kFloat32 ? 1 : 0];
  }
  EXPECT_EQ(by_format[0], by_format[1]);
  EXPECT_GT(by_format[0], 0);
}

}  // namespace
}  // namespace tessera::test::fourth_flat_test
