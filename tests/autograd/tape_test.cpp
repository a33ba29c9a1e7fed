#include "tessera/autograd/tape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "autograd/op_check.h"
#include "tessera/core/sim_device.h"

namespace tessera {
namespace {

using test::leaf;
using test::OwnedParameter;
using test::random_floats;
using test::run_on;
using test::to_floats;
using ::testing::HasSubstr;

class TapeBehaviour : public test::TapeTest {
 protected:
  std::vector<float> ones(std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count), 1.0F);
  }
};

/// The text of the Error{kInvalidArgument} that `function` throws.
template <typename Function>
std::string refusal(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST_F(TapeBehaviour, GivesTheGradientOfItsInput) {
  run_on(*stream_, [&] {
    OwnedParameter w(memory_, {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({1, 3}, ones(3)), true);
    const Value y = ops::linear(tape, x, w.parameter, nullptr);
    const Tensor dx = tape.backward(y, tensor({1, 2}, std::vector<float>{1, 10}));
    EXPECT_THAT(to_floats(dx), ::testing::ElementsAre(41, 52, 63));
  });
}

TEST_F(TapeBehaviour, AnInputWithoutGradientCostsNone) {
  run_on(*stream_, [&] {
    OwnedParameter w(memory_, {2, 3}, ones(6));
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({1, 3}, ones(3)), false);
    const Value y = ops::linear(tape, x, w.parameter, nullptr);
    const double forward_flops = tape.cost().flops;
    EXPECT_FALSE(tape.backward(y, tensor({1, 2}, ones(2))));
    EXPECT_EQ(tape.cost().flops, 2 * forward_flops);  // dW, and no dx
    EXPECT_THAT(to_floats(w.gradient), ::testing::Each(1.0F));
  });
}

TEST_F(TapeBehaviour, ChargesThreeMatrixProductsForALinear) {
  run_on(*stream_, [&] {
    OwnedParameter w(memory_, {5, 3}, ones(15));
    Tape tape(memory_, *stream_, {}, {});
    const Value y =
        ops::linear(tape, tape.input(tensor({7, 3}, ones(21)), true), w.parameter, nullptr);
    EXPECT_EQ(tape.cost().flops, 2 * 7 * 5 * 3);
    EXPECT_EQ(tape.cost().bytes, 4 * (7 * 3 + 5 * 3 + 7 * 5));
    tape.backward(y, tensor({7, 5}, ones(35)));
    EXPECT_EQ(tape.cost().flops, 3 * 2 * 7 * 5 * 3);
  });
}

TEST_F(TapeBehaviour, LaterWritesOfAMicroStepAdd) {
  run_on(*stream_, [&] {
    OwnedParameter w(memory_, {2, 3}, ones(6));
    OwnedParameter b(memory_, {2}, ones(2));
    for (const float expected : {1.0F, 2.0F}) {
      Tape tape(memory_, *stream_, {}, {});
      const Value x = tape.input(tensor({1, 3}, ones(3)), true);
      const Value y = ops::linear(tape, x, w.parameter, &b.parameter);
      tape.backward(y, tensor({1, 2}, ones(2)));
      EXPECT_THAT(to_floats(w.gradient), ::testing::Each(expected));
      EXPECT_THAT(to_floats(b.gradient), ::testing::Each(expected));
      EXPECT_TRUE(w.parameter.gradient_written);
    }
    w.parameter.gradient_written = false;
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({1, 3}, ones(3)), true);
    tape.backward(ops::linear(tape, x, w.parameter, &b.parameter), tensor({1, 2}, ones(2)));
    EXPECT_THAT(to_floats(w.gradient), ::testing::Each(1.0F));
    EXPECT_THAT(to_floats(b.gradient), ::testing::Each(3.0F));
  });
}

TEST_F(TapeBehaviour, FrozenParametersAreSkippedAndPassGradientsOn) {
  run_on(*stream_, [&] {
    OwnedParameter w(memory_, {3, 3}, random_floats(9, 1));
    OwnedParameter gamma(memory_, {3}, ones(3));
    OwnedParameter beta(memory_, {3}, ones(3));
    const auto run = [&] {
      Tape tape(memory_, *stream_, {}, {});
      const Value x = tape.input(tensor({4, 3}, random_floats(12, 2)), true);
      const Value h = ops::linear(tape, x, w.parameter, nullptr);
      const Value y = ops::layer_norm(tape, h, gamma.parameter, beta.parameter);
      return to_floats(tape.backward(y, tensor({4, 3}, random_floats(12, 3))));
    };
    const std::vector<float> expected = run();
    const std::vector<float> d_beta = to_floats(beta.gradient);
    for (OwnedParameter* frozen : {&w, &gamma}) {
      frozen->parameter.gradient = {};
      frozen->parameter.gradient_written = false;
      test::copy_to(frozen->gradient,
                    std::vector<float>(static_cast<std::size_t>(frozen->value.numel()), 7.0F));
    }
    beta.parameter.gradient_written = false;
    EXPECT_EQ(run(), expected);
    EXPECT_EQ(to_floats(beta.gradient), d_beta);  // trainable beside a frozen one
    EXPECT_THAT(to_floats(w.gradient), ::testing::Each(7.0F));
    EXPECT_THAT(to_floats(gamma.gradient), ::testing::Each(7.0F));
    EXPECT_FALSE(w.parameter.gradient_written);
  });
}

TEST_F(TapeBehaviour, ParametersMayMoveBetweenForwardAndBackward) {
  run_on(*stream_, [&] {
    const auto run = [&](bool move) {
      OwnedParameter w(memory_, {4, 3}, random_floats(12, 1));
      OwnedParameter gamma(memory_, {4}, random_floats(4, 2));
      OwnedParameter beta(memory_, {4}, random_floats(4, 3));
      const std::vector<OwnedParameter*> all{&w, &gamma, &beta};
      std::vector<std::unique_ptr<OwnedParameter>> moved;
      if (move) {  // the gradients have no place until backward
        for (OwnedParameter* p : all) p->parameter.gradient = {};
      }
      Tape tape(memory_, *stream_, {}, {});
      const Value x = tape.input(tensor({5, 3}, random_floats(15, 4)), true);
      Value y = ops::linear(tape, x, w.parameter, nullptr);
      y = ops::layer_norm(tape, y, gamma.parameter, beta.parameter);
      if (move) {
        for (OwnedParameter* p : all) {
          moved.push_back(
              std::make_unique<OwnedParameter>(memory_, p->value.shape(), to_floats(p->value)));
          test::copy_to(p->value, std::vector<float>(static_cast<std::size_t>(p->value.numel())));
          p->parameter.value = moved.back()->value;
          p->parameter.gradient = moved.back()->gradient;
        }
      }
      std::vector<std::vector<float>> results{
          to_floats(tape.backward(y, tensor({5, 4}, random_floats(20, 5))))};
      for (OwnedParameter* p : all) {
        results.push_back(test::to_floats(p->parameter.gradient));
      }
      return results;
    };
    EXPECT_EQ(run(true), run(false));
  });
}

TEST_F(TapeBehaviour, ConsumedValuesLendTheirMemoryUnlessShared) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {.record = false});
    const Value b{.tensor = tensor({4}, ones(4))};
    Value a{.tensor = tensor({4}, ones(4))};
    const std::byte* memory = a.tensor.view().data;
    Value sum = ops::add(tape, std::move(a), b);
    EXPECT_EQ(sum.tensor.view().data, memory);

    const Value shared = sum;
    const Value fresh = ops::add(tape, std::move(sum), b);
    EXPECT_NE(fresh.tensor.view().data, memory);
    EXPECT_THAT(to_floats(shared.tensor), ::testing::Each(2.0F));
    EXPECT_THAT(to_floats(fresh.tensor), ::testing::Each(3.0F));

    const std::vector<float> borrowed = ones(4);  // counts as shared: somebody else owns it
    std::vector<float> storage = borrowed;
    Value view{.tensor = Tensor::borrow(TensorView(storage.data(), DType::kFloat32, {4}))};
    ops::gelu(tape, std::move(view));
    EXPECT_EQ(storage, borrowed);
  });
}

TEST_F(TapeBehaviour, ASharedGradientIsNeverWrittenTo) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {});
    Tensor dx, dy;
    const Value x = leaf(tape, tensor({3}, ones(3)), dx);
    const Value y = leaf(tape, tensor({3}, ones(3)), dy);
    const Value end = tape.output(tensor({3}, ones(3)), [&](Tape& t, Tensor gradient) {
      t.add_gradient(x.id, gradient);
      t.add_gradient(y.id, gradient);
      t.add_gradient(x.id, std::move(gradient));
    });
    tape.backward(end, tensor({3}, ones(3)));
    EXPECT_THAT(to_floats(dx), ::testing::Each(2.0F));
    EXPECT_THAT(to_floats(dy), ::testing::Each(1.0F));
  });
}

TEST_F(TapeBehaviour, BranchesThatReachNoOutputAreNotRun) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {});
    Tensor dx;
    Tensor unused;
    const Value x = leaf(tape, tensor({3}, ones(3)), dx);
    tape.output(tensor({3}, ones(3)), [](Tape&, const Tensor&) { FAIL() << "was run"; });
    const Value y = ops::gelu(tape, x);
    ops::gelu(tape, y);  // after the output
    tape.backward(y, tensor({3}, ones(3)));
    EXPECT_TRUE(dx);
  });
}

/// A tape with two MLPs in a row; what is in use at the end of each phase.
std::vector<MemoryUse> mlp_memory(Memory& memory, Stream& stream, const TapeOptions& options,
                                  MemoryPeak& peak) {
  constexpr std::int64_t kRows = 64, kC = 32;
  std::vector<MemoryUse> uses;
  run_on(stream, [&] {
    const auto allocate = [&](const Shape& shape, MemoryCategory category) {
      return Tensor::empty(memory, shape, DType::kFloat32, category, "test");
    };
    const Tensor value = allocate({kC, kC}, MemoryCategory::kParameters);
    const Tensor gradient = allocate({kC, kC}, MemoryCategory::kGradients);
    Parameter w{.value = value, .gradient = gradient};
    if (memory.device().kind() == DeviceKind::kCpu) {
      test::copy_to(value, random_floats(kC * kC, 1));
    }
    {
      Tape tape(memory, stream, {}, options);
      const Shape shape{kRows, kC};
      Value x = tape.input(allocate(shape, MemoryCategory::kActivations), true);
      if (memory.device().kind() == DeviceKind::kCpu) {
        test::copy_to(x.tensor, random_floats(kRows * kC, 2));
      }
      for (int i = 0; i < 2; ++i) {
        x = ops::linear(tape, x, w, nullptr);
        x = ops::gelu(tape, std::move(x));
        x = ops::linear(tape, x, w, nullptr);
      }
      uses.push_back(memory.current());
      x.tensor = {};
      if (options.record) {
        Tensor dx = tape.backward(x, allocate(shape, MemoryCategory::kActivations));
        uses.push_back(memory.current());
      }
    }
    uses.push_back(memory.current());
  });
  peak = memory.peak();
  return uses;
}

TEST_F(TapeBehaviour, MemoryIsWhatIsSavedAndTheSameOnTheSimDevice) {
  constexpr std::int64_t kTensor = 64 * 32 * 4;
  const std::vector<std::tuple<TapeOptions, std::int64_t, std::int64_t>> cases{
      // Each MLP saves its input, and GELU's input and output; the last output is at hand. Backward
      // frees what a linear saved before its input's gradient needs memory.
      {TapeOptions{}, 7, 7},
      // The second linear has GELU's output at hand, in forward and, remade, in backward.
      {TapeOptions{.selective = true}, 5, 6},
      {TapeOptions{.record = false}, 1, 2},
  };
  for (const auto& [options, tensors, peak_tensors] : cases) {
    Memory memory(*device_);
    MemoryPeak peak;
    const auto uses = mlp_memory(memory, *stream_, options, peak);
    EXPECT_EQ(uses.front()[MemoryCategory::kActivations], tensors * kTensor);
    EXPECT_EQ(peak.by_category[MemoryCategory::kActivations], peak_tensors * kTensor);
    EXPECT_EQ(uses.back()[MemoryCategory::kActivations], 0);
    // After backward there is dx alone; without one, `front` and `back` are all.
    EXPECT_EQ(uses.size(), options.record ? 3U : 2U);
    EXPECT_EQ(uses[1][MemoryCategory::kActivations], options.record ? kTensor : 0);

    SimDevice sim;
    Memory sim_memory(sim);
    const std::unique_ptr<Stream> sim_stream = sim.create_stream({.name = "compute"});
    MemoryPeak sim_peak;
    EXPECT_EQ(mlp_memory(sim_memory, *sim_stream, options, sim_peak), uses);
    EXPECT_EQ(sim_peak, peak);
  }
}

TEST_F(TapeBehaviour, ARemadeTensorIsMadeOnceForAllThatSavedIt) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {.selective = true});
    int remade = 0;
    Value x;
    {
      auto remake = tape.rematerialization([&](Tape& t) {
        ++remade;
        return t.activation({4}, DType::kFloat32, "remade");
      });
      x = tape.output(
          tensor({4}, ones(4)), [](Tape&, const Tensor&) {}, std::move(remake));
    }
    Saved first(x), second(x);
    x = {};
    EXPECT_EQ(activations(), 0);
    EXPECT_EQ(first.get().view().data, second.get().view().data);
    EXPECT_EQ(remade, 1);
    first = {};
    EXPECT_GT(activations(), 0);
    second = {};
  });
}

TEST_F(TapeBehaviour, RandomNumbersAreOfAKeyAndACall) {
  for (const bool record : {true, false}) {
    Tape tape(memory_, *stream_, {}, {.record = record, .random_key = key_});
    for (std::uint64_t call = 0; call < 3; ++call) EXPECT_EQ(tape.next_random_call(), call);
  }
  Tape without(memory_, *stream_, {}, {});
  EXPECT_THAT(refusal([&] { without.next_random_call(); }), HasSubstr("random_key"));
}

TEST_F(TapeBehaviour, DropoutGoesByTrainingAndNotByRecording) {
  run_on(*stream_, [&] {
    const auto run = [&](bool record, bool training) {
      Tape tape(memory_, *stream_, {},
                {.record = record, .training = training, .random_key = key_});
      return to_floats(ops::dropout(tape, {.tensor = tensor({99}, ones(99))}, 0.5F).tensor);
    };
    EXPECT_EQ(run(true, false), ones(99));
    EXPECT_NE(run(true, true), ones(99));
    EXPECT_EQ(run(true, true), run(false, true));
  });
}

TEST_F(TapeBehaviour, TheBatchIsForLayersThatDeclareToReadIt) {
  const Batch batch{.inputs = ints({2, 1}, {4, 5})};
  Tape reads(memory_, *stream_, batch, {});
  EXPECT_EQ(reads.batch().inputs.as<std::int32_t>()[1], 5);
  EXPECT_EQ(reads.samples(), 2);
  Tape hidden(memory_, *stream_, {}, {.without_batch = "h.3", .samples = 7});
  EXPECT_THAT(refusal([&] { hidden.batch(); }),
              HasSubstr("layer 'h.3' reads the batch and does not declare it: set reads_batch_"));
  EXPECT_EQ(hidden.samples(), 7);
}

TEST_F(TapeBehaviour, RefusesMisuse) {
  run_on(*stream_, [&] {
    Tape forward_only(memory_, *stream_, {}, {.record = false});
    EXPECT_THAT(refusal([&] { forward_only.backward({}, {}); }), HasSubstr("record"));
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({3}, ones(3)), true);
    EXPECT_THAT(refusal([&] { tape.input({}, true); }), HasSubstr("once"));
    EXPECT_THAT(refusal([&] { tape.backward({}, {}); }), HasSubstr("no operation"));
    EXPECT_THAT(refusal([&] { tape.add_gradient(x.id, tensor({4}, ones(4))); }), HasSubstr("(4)"));
    EXPECT_THAT(refusal([&] { tape.add_gradient(5, tensor({4}, ones(4))); }), HasSubstr("5"));
    EXPECT_EQ(to_floats(tape.backward(x, tensor({3}, ones(3)))), ones(3));
    EXPECT_THAT(refusal([&] { tape.backward(x, tensor({3}, ones(3))); }), HasSubstr("once"));
  });
}

TEST_F(TapeBehaviour, OperationsRefuseWhatDoesNotFit) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {});
    const Value x{.tensor = tensor({2, 3}, ones(6))};
    const Value other{.tensor = tensor({3, 2}, ones(6))};
    const Value cube{.tensor = tensor({1, 2, 3}, ones(6))};
    const Value half{
        .tensor = Tensor::empty(memory_, {2, 3}, DType::kBFloat16, MemoryCategory::kData, "x")};
    OwnedParameter w(memory_, {4, 5}, ones(20));
    OwnedParameter three(memory_, {3}, ones(3));
    OwnedParameter four(memory_, {4}, ones(4));
    const Tensor tokens = ints({1, 5}, {0, 0, 0, 0, 0});
    const auto linear = [&] { ops::linear(tape, x, w.parameter, nullptr); };
    EXPECT_THAT(refusal(linear), testing::AllOf(HasSubstr("(2, 3)"), HasSubstr("(4, 5)")));
    EXPECT_THAT(refusal([&] { ops::layer_norm(tape, x, four.parameter, three.parameter); }),
                HasSubstr("gamma"));
    EXPECT_THAT(refusal([&] { ops::layer_norm(tape, half, three.parameter, three.parameter); }),
                HasSubstr("bf16"));
    EXPECT_THAT(refusal([&] { ops::add(tape, x, other); }), HasSubstr("(3, 2)"));
    EXPECT_THAT(
        refusal([&] { ops::add_layer_norm(tape, x, other, three.parameter, three.parameter); }),
        HasSubstr("residual"));
    EXPECT_THAT(refusal([&] { ops::gelu(tape, {.tensor = tokens}); }), HasSubstr("int32"));
    EXPECT_THAT(refusal([&] { ops::attention(tape, x, 1); }), HasSubstr("batch, length"));
    EXPECT_THAT(refusal([&] { ops::attention(tape, cube, 2); }), HasSubstr("3 * heads"));
    EXPECT_THAT(refusal([&] { ops::multiply(tape, x, cube); }), HasSubstr("multiply: b"));
    EXPECT_THAT(refusal([&] { ops::matmul(tape, x, cube); }), HasSubstr("matmul: a"));
    EXPECT_THAT(refusal([&] { ops::mean_rows(tape, x); }), HasSubstr("batch, length"));
    EXPECT_THAT(refusal([&] { ops::dropout(tape, x, 1.0F); }), HasSubstr("[0, 1)"));
    EXPECT_THAT(refusal([&] { ops::embedding(tape, tokens, w.parameter, &w.parameter); }),
                HasSubstr("longer than the context of 4"));
    EXPECT_THAT(refusal([&] { ops::embedding(tape, x.tensor, w.parameter, &w.parameter); }),
                HasSubstr("int32"));
    EXPECT_THAT(refusal([&] { ops::cross_entropy(tape, x, tokens); }), HasSubstr("2 int32"));
    EXPECT_THAT(refusal([&] { ops::linear_cross_entropy(tape, x, w.parameter, tokens); }),
                HasSubstr("(4, 5)"));
    w.parameter.gradient = four.gradient;
    const Value fitting{.tensor = tensor({1, 5}, ones(5))};
    const Value y = ops::linear(tape, fitting, w.parameter, nullptr);
    EXPECT_THAT(refusal([&] {
                  tape.backward(y, tensor({1, 4}, ones(4)));
                }),
                HasSubstr("the gradient of weight"));
  });
}

}  // namespace
}  // namespace tessera
