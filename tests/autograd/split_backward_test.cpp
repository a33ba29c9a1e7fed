#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "autograd/op_check.h"
#include "tessera/autograd/tape.h"

// Backward in two parts: what the tape keeps in between, in which order it writes, and what it
// refuses. That every operation gives the same bits in two parts, op_check.h checks.
namespace tessera {
namespace {

using test::OwnedParameter;
using test::random_floats;
using test::run_on;
using test::to_floats;
using ::testing::HasSubstr;

class SplitBackward : public test::TapeTest {
 protected:
  static std::vector<float> ones(std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count), 1.0F);
  }
  /// The text of the Error{kInvalidArgument} that `function` throws.
  static std::string refusal(const std::function<void()>& function) {
    try {
      function();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "no error";
  }
};

TEST_F(SplitBackward, KeepsWhatGradientsAreMadeOfUntilTheyAreWritten) {
  constexpr std::int64_t kTensor = 64 * 32 * 4;
  run_on(*stream_, [&] {
    OwnedParameter w1(memory_, {32, 32}, random_floats(1024, 1));
    OwnedParameter w2(memory_, {32, 32}, random_floats(1024, 2));
    Tape tape(memory_, *stream_, {}, {});
    Value x = tape.input(tensor({64, 32}, random_floats(2048, 3)), true);
    x = ops::gelu(tape, ops::linear(tape, x, w1.parameter, nullptr));
    x = ops::linear(tape, x, w2.parameter, nullptr);
    Tensor dy = tensor({64, 32}, ones(2048));
    x.tensor = {};
    Tensor dx = tape.backward_input(x, std::move(dy));
    // Of each linear its input and the gradient of its output, and dx.
    EXPECT_EQ(activations(), 5 * kTensor);
    dx = {};
    EXPECT_EQ(activations(), 4 * kTensor);
    memory_.take_recent_peak();
    tape.backward_weights();
    EXPECT_EQ(activations(), 0);
    EXPECT_EQ(memory_.take_recent_peak().by_category[MemoryCategory::kActivations], 4 * kTensor);
  });
}

TEST_F(SplitBackward, KeepsNothingForWhatIsFrozen) {
  run_on(*stream_, [&] {
    OwnedParameter w(memory_, {32, 32}, random_floats(1024, 1));
    OwnedParameter gamma(memory_, {32}, ones(32)), beta(memory_, {32}, ones(32));
    for (OwnedParameter* p : {&w, &gamma, &beta}) {
      p->parameter.trainable = false;
      p->parameter.gradient = {};
    }
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({8, 32}, random_floats(256, 3)), true);
    Value y = ops::linear(tape, ops::layer_norm(tape, x, gamma.parameter, beta.parameter),
                          w.parameter, nullptr);
    y.tensor = {};
    const Tensor dx = tape.backward_input(y, tensor({8, 32}, ones(256)));
    EXPECT_EQ(activations(), 2 * x.tensor.bytes());  // the input, which is held here, and dx
    tape.backward_weights();
  });
}

TEST_F(SplitBackward, KeepsOfANormItsSumsAlone) {
  for (const float before : {0.0F, 3.0F}) {
    run_on(*stream_, [&] {
      OwnedParameter gamma(memory_, {64}, ones(64)), beta(memory_, {64}, ones(64));
      for (OwnedParameter* p : {&gamma, &beta}) {
        test::copy_to(p->gradient, std::vector<float>(64, before));
        p->parameter.gradient_written = before > 0.0F;
      }
      Tape tape(memory_, *stream_, {}, {});
      const Value x = tape.input(tensor({512, 64}, random_floats(512 * 64, 3)), true);
      Value y = ops::layer_norm(tape, x, gamma.parameter, beta.parameter);
      y.tensor = {};
      tape.backward_input(y, tensor({512, 64}, ones(512 * 64)));
      EXPECT_EQ(activations(), x.tensor.bytes() + 2 * 64 * 4);  // the input is held here
      tape.backward_weights();
      EXPECT_EQ(to_floats(beta.gradient), std::vector<float>(64, 512.0F + before));
    });
  }
}

// A sum of two is the same in both orders; of three it is not.
TEST_F(SplitBackward, AddsToASharedGradientInTheOrderOfBackward) {
  const auto run = [&](bool split) {
    std::vector<float> result;
    run_on(*stream_, [&] {
      OwnedParameter w(memory_, {7, 7}, random_floats(49, 1));
      OwnedParameter gamma(memory_, {7}, random_floats(7, 2));
      Tape tape(memory_, *stream_, {}, {});
      Value x = tape.input(tensor({40, 7}, random_floats(280, 3)), true);
      for (int i = 0; i < 3; ++i) {
        x = ops::rms_norm(tape, x, gamma.parameter, 1e-6F);
        x = ops::linear(tape, x, w.parameter, nullptr);
      }
      Tensor dy = tensor({40, 7}, random_floats(280, 4));
      if (split) {
        tape.backward_input(x, std::move(dy));
        tape.backward_weights();
      } else {
        tape.backward(x, std::move(dy));
      }
      result = to_floats(w.gradient);
      for (const float value : to_floats(gamma.gradient)) result.push_back(value);
    });
    return result;
  };
  EXPECT_EQ(run(true), run(false));
}

// Another layer's contribution is there by the time that the second part runs.
TEST_F(SplitBackward, AddsToWhatAnotherLayerHasWritten) {
  const auto run = [&](bool split) {
    std::vector<float> result;
    run_on(*stream_, [&] {
      OwnedParameter gamma(memory_, {9}, random_floats(9, 2));
      Tape tape(memory_, *stream_, {}, {});
      const Value y = ops::rms_norm(
          tape, tape.input(tensor({200, 9}, random_floats(1800, 3)), true), gamma.parameter, 1e-6F);
      Tensor dy = tensor({200, 9}, random_floats(1800, 4));
      test::copy_to(gamma.gradient, random_floats(9, 5));
      gamma.parameter.gradient_written = true;
      if (split) {
        tape.backward_input(y, std::move(dy));
        tape.backward_weights();
      } else {
        tape.backward(y, std::move(dy));
      }
      result = to_floats(gamma.gradient);
    });
    return result;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(SplitBackward, RunsAnOperationOfOnesOwnWholeInTheFirstPart) {
  run_on(*stream_, [&] {
    OwnedParameter w(memory_, {3, 3}, random_floats(9, 1)), own(memory_, {4, 3}, ones(12));
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({4, 3}, ones(12)), true);
    const Value h = ops::linear(tape, x, w.parameter, nullptr);
    EXPECT_TRUE(tape.can_split());
    const Value y = tape.output(tensor({4, 3}, ones(12)), [&](Tape& t, Tensor dy) {
      test::copy_to(own.parameter.gradient, to_floats(dy));
      own.parameter.gradient_written = true;
      t.add_gradient(h.id, std::move(dy));
    });
    EXPECT_FALSE(tape.can_split());
    EXPECT_TRUE(tape.backward_input(y, tensor({4, 3}, ones(12))));
    EXPECT_EQ(to_floats(own.gradient), ones(12));
    EXPECT_FALSE(w.parameter.gradient_written);
    tape.backward_weights();
    EXPECT_EQ(to_floats(w.gradient), std::vector<float>(9, 4.0F));
  });
}

TEST_F(SplitBackward, RefusesMisuse) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({3}, ones(3)), true);
    EXPECT_THAT(refusal([&] { tape.backward_weights(); }), HasSubstr("after backward_input"));
    tape.backward_input(x, tensor({3}, ones(3)));
    EXPECT_THAT(refusal([&] { tape.backward_input(x, tensor({3}, ones(3))); }), HasSubstr("once"));
    tape.backward_weights();
    EXPECT_THAT(refusal([&] { tape.backward_weights(); }), HasSubstr("once"));
    Tape whole(memory_, *stream_, {}, {});
    const Value y = whole.input(tensor({3}, ones(3)), true);
    whole.backward(y, tensor({3}, ones(3)));
    EXPECT_THAT(refusal([&] { whole.backward_weights(); }), HasSubstr("after backward_input"));
  });
}

}  // namespace
}  // namespace tessera
