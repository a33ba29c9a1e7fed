#include <gmock/gmock.h>

#include "autograd/op_check.h"
#include "autograd/oracles.h"
#include "tessera/core/sim_device.h"

namespace tessera::mlp_test {
namespace {

using test::check_op;
using test::copy_to;
using test::Doubles;
using test::gelu_oracle;
using test::linear_oracle;
using test::OwnedParameter;
using test::random_floats;
using test::run_on;
using test::to_floats;

class Mlp : public test::TapeTest {};

Doubles mlp_oracle(const Doubles& x, const Doubles& w1, const Doubles& b1, const Doubles& w2,
                   const Doubles& b2, std::int64_t inputs, std::int64_t hidden) {
  return linear_oracle(gelu_oracle(linear_oracle(x, w1, b1, inputs)), w2, b2, hidden);
}

TEST_F(Mlp, FollowsTheFormulaForwardAndBackward) {
  check_op(
      memory_, *stream_,
      {.inputs = {{2, 3, 5}},
       .parameters = {{11, 5}, {11}, {7, 11}, {7}},
       .run =
           [](Tape& t, std::vector<Value>& x, std::vector<Parameter*>& p) {
             return ops::mlp(t, x[0],
                             {.weight = *p[0],
                              .bias = p[1],
                              .projection_weight = *p[2],
                              .projection_bias = p[3]});
           },
       .oracle = [](const auto& a) { return mlp_oracle(a[0], a[1], a[2], a[3], a[4], 5, 11); }});
}

TEST_F(Mlp, AddsAResidual) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}},
            .parameters = {{8, 6}, {6, 8}},
            .run =
                [](Tape& t, std::vector<Value>& x, std::vector<Parameter*>& p) {
                  return ops::mlp(t, x[0], {.weight = *p[0], .projection_weight = *p[1]}, &x[0]);
                },
            .oracle =
                [](const auto& a) {
                  return test::sum_oracle(mlp_oracle(a[0], a[1], {}, a[2], {}, 6, 8), a[0]);
                }});
}

TEST_F(Mlp, NeedsNoBias) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 5}},
            .parameters = {{8, 5}, {3, 8}},
            .run =
                [](Tape& t, std::vector<Value>& x, std::vector<Parameter*>& p) {
                  return ops::mlp(t, x[0], {.weight = *p[0], .projection_weight = *p[1]});
                },
            .oracle = [](const auto& a) { return mlp_oracle(a[0], a[1], {}, a[2], {}, 5, 8); }});
}

TEST_F(Mlp, TakesAnInputThatIsRemade) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}},
            .parameters = {{6, 6}},
            .run =
                [](Tape& t, std::vector<Value>& x, std::vector<Parameter*>& p) {
                  return ops::mlp(t, ops::gelu(t, x[0]),
                                  {.weight = *p[0], .projection_weight = *p[0]});
                },
            .oracle =
                [](const auto& a) {
                  Doubles identity(36, 0.0);
                  for (std::size_t i = 0; i < 6; ++i) identity[i * 7] = 1.0;
                  // gelu(x) alone is an MLP whose matrices do nothing.
                  const Doubles x = mlp_oracle(a[0], identity, {}, identity, {}, 6, 6);
                  return mlp_oracle(x, a[1], {}, a[1], {}, 6, 6);
                }});
}

constexpr std::int64_t kRows = 24, kC = 16, kHidden = 48;

/// What one forward and backward gives, and the memory that it took.
struct Outcome {
  std::vector<std::vector<float>> numbers;
  std::vector<MemoryUse> uses;
  MemoryPeak peak;
  Cost cost;
};

enum class As { kOneOperation, kThreeOperations };

/// An MLP after a norm, as a transformer block has it. Parameters whose index is in `frozen` have
/// no gradient; two micro-steps, so that the second one accumulates.
Outcome run_mlp(Device& device, Stream& stream, As as, TapeOptions options, unsigned frozen = 0) {
  Memory memory(device);
  Outcome outcome;
  const bool real = device.kind() == DeviceKind::kCpu;
  const Shape shapes[] = {{kC}, {kC}, {kHidden, kC}, {kHidden}, {kC, kHidden}, {kC}};
  run_on(stream, [&] {
    std::vector<Tensor> tensors;
    std::vector<Parameter> p;
    for (const Shape& shape : shapes) {
      const auto index = static_cast<unsigned>(p.size());
      for (const auto category : {MemoryCategory::kParameters, MemoryCategory::kGradients}) {
        tensors.push_back(Tensor::empty(memory, shape, DType::kFloat32, category, "p"));
        if (real) copy_to(tensors.back(), random_floats(shape.numel(), index));
      }
      p.push_back({.value = tensors[2 * index], .gradient = tensors[2 * index + 1]});
      if ((frozen >> index & 1U) != 0) p.back().gradient = {};
    }
    const auto activation = [&](unsigned seed) {
      Tensor t = Tensor::empty(memory, Shape{kRows, kC}, DType::kFloat32,
                               MemoryCategory::kActivations, "x");
      if (real) copy_to(t, random_floats(kRows * kC, seed));
      return t;
    };
    for (unsigned micro_step = 0; micro_step < 2; ++micro_step) {
      Tape tape(memory, stream, {}, options);
      Value x = tape.input(activation(10 + micro_step), true);
      x = ops::layer_norm(tape, x, p[0], p[1]);
      if (as == As::kOneOperation) {
        x = ops::mlp(
            tape, std::move(x),
            {.weight = p[2], .bias = &p[3], .projection_weight = p[4], .projection_bias = &p[5]});
      } else {
        x = ops::linear(tape, x, p[2], &p[3]);
        x = ops::gelu(tape, std::move(x));
        x = ops::linear(tape, x, p[4], &p[5]);
      }
      outcome.uses.push_back(memory.current());
      if (real) outcome.numbers.push_back(to_floats(x.tensor));
      if (options.record) {
        x.tensor = {};
        const Tensor dx = tape.backward(x, activation(20 + micro_step));
        outcome.uses.push_back(memory.current());
        if (real) outcome.numbers.push_back(to_floats(dx));
      }
      outcome.cost += tape.cost();
    }
    if (real) {
      for (const Parameter& parameter : p) {
        if (parameter.gradient) outcome.numbers.push_back(to_floats(parameter.gradient));
      }
    }
  });
  outcome.peak = memory.peak();
  return outcome;
}

TEST_F(Mlp, IsWhatItsThreeOperationsAreToTheBitAndToTheByte) {
  for (const TapeOptions& options :
       {TapeOptions{}, TapeOptions{.selective = true}, TapeOptions{.record = false}}) {
    SCOPED_TRACE(testing::Message()
                 << "record " << options.record << ", selective " << options.selective);
    const Outcome one = run_mlp(*device_, *stream_, As::kOneOperation, options);
    const Outcome three = run_mlp(*device_, *stream_, As::kThreeOperations, options);
    EXPECT_EQ(one.numbers, three.numbers);
    EXPECT_EQ(one.uses, three.uses);
    EXPECT_EQ(one.peak, three.peak);
    EXPECT_EQ(one.cost.flops, three.cost.flops);
    EXPECT_EQ(one.cost.bytes, three.cost.bytes);
    SimDevice sim;
    const auto sim_stream = sim.create_stream({.name = "compute"});
    const Outcome simulated = run_mlp(sim, *sim_stream, As::kOneOperation, options);
    EXPECT_EQ(simulated.uses, one.uses);
    EXPECT_EQ(simulated.peak, one.peak);
  }
}

TEST_F(Mlp, SkipsGradientsThatAreNotWanted) {
  for (unsigned frozen = 0; frozen < 16; ++frozen) {
    SCOPED_TRACE(frozen);
    const unsigned mask = frozen << 2U;  // the MLP's four
    EXPECT_EQ(run_mlp(*device_, *stream_, As::kOneOperation, {}, mask).numbers,
              run_mlp(*device_, *stream_, As::kThreeOperations, {}, mask).numbers);
  }
}

TEST_F(Mlp, RefusesShapesBeforeItComputes) {
  run_on(*stream_, [&] {
    OwnedParameter weight(memory_, {8, 5}, random_floats(40, 1));
    OwnedParameter projection(memory_, {3, 7}, random_floats(21, 2));
    Tape tape(memory_, *stream_, {}, {});
    const std::int64_t before = activations();
    Value x = tape.input(tensor({4, 5}, random_floats(20, 3)), true);
    try {
      ops::mlp(tape, std::move(x),
               {.weight = weight.parameter, .projection_weight = projection.parameter});
      FAIL() << "was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("mlp: x (4, 8) does not fit the weight (3, 7)"));
    }
    EXPECT_EQ(activations(), before);
  });
}

}  // namespace
}  // namespace tessera::mlp_test
