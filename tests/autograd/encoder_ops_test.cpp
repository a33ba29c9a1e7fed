#include <gtest/gtest.h>

#include <cmath>

#include "autograd/op_check.h"
#include "autograd/oracles.h"
#include "tessera/autograd/ops.h"

// The operations that encoders have beyond decoders'.
namespace tessera::encoder_ops_test {
namespace {

using test::check_op;
using test::Doubles;
using test::OwnedParameter;
using test::random_floats;
using test::run_on;
using test::to_floats;
using Values = std::vector<Value>;
using Parameters = std::vector<Parameter*>;

class EncoderOps : public test::TapeTest {};

Doubles each(Doubles values, double (*function)(double)) {
  for (double& value : values) value = function(value);
  return values;
}

double exact_gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

TEST_F(EncoderOps, ExactGeluAndTanh) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 7}},
            .parameters = {},
            .run = [](Tape& t, Values& x,
                      Parameters&) { return ops::tanh(t, ops::gelu(t, x[0], GeluForm::kErf)); },
            .oracle =
                [](const std::vector<Doubles>& a) {
                  return each(each(a[0], exact_gelu), [](double x) { return std::tanh(x); });
                }});
}

// The row is added in each place, twice, and the others have gradients of zero.
TEST_F(EncoderOps, ARowIsAddedInEachPlace) {
  check_op(memory_, *stream_,
           {.inputs = {{2, 3, 5}},
            .parameters = {{4, 5}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::gelu(t, x[0], GeluForm::kErf);
                  y = ops::add_row(t, std::move(y), *p[0], 2);
                  return ops::add_row(t, ops::gelu(t, std::move(y), GeluForm::kErf), *p[0], 2);
                },
            .oracle =
                [](const std::vector<Doubles>& a) {
                  Doubles y = each(a[0], exact_gelu);
                  for (std::size_t i = 0; i < y.size(); ++i) {
                    const double row = a[1][10 + i % 5];
                    y[i] = exact_gelu(y[i] + row) + row;
                  }
                  return y;
                }});
}

TEST_F(EncoderOps, LayerNormsTakeAnEpsilon) {
  const auto norm = [](const Doubles& x, const Doubles& gamma, const Doubles& beta) {
    Doubles y(x.size());
    const std::size_t c = gamma.size();
    for (std::size_t row = 0; row < x.size(); row += c) {
      double mean = 0.0, square = 0.0;
      for (std::size_t i = 0; i < c; ++i) mean += x[row + i] / static_cast<double>(c);
      for (std::size_t i = 0; i < c; ++i) {
        square += std::pow(x[row + i] - mean, 2) / static_cast<double>(c);
      }
      for (std::size_t i = 0; i < c; ++i) {
        y[row + i] = (x[row + i] - mean) / std::sqrt(square + 0.25) * gamma[i] + beta[i];
      }
    }
    return y;
  };
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}},
            .parameters = {{6}, {6}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::layer_norm(t, x[0], *p[0], *p[1], 0.25F);
                  return ops::add_layer_norm(t, std::move(y), x[0], *p[0], *p[1], 0.25F).norm;
                },
            .oracle =
                [&](const std::vector<Doubles>& a) {
                  return norm(test::sum_oracle(norm(a[0], a[1], a[2]), a[0]), a[1], a[2]);
                }});
}

// The fused loss with a bias against the two operations.
TEST_F(EncoderOps, TheFusedLossTakesABias) {
  constexpr std::int64_t kRows = 70, kClasses = 11, kC = 5;  // two chunks
  constexpr float kScale = 0.5F;
  std::vector<std::int32_t> wanted;
  for (std::int32_t row = 0; row < kRows; ++row) wanted.push_back(row % 12 - 1);
  const Tensor targets = ints({kRows}, wanted);
  struct Result {
    std::vector<float> losses, dx, dw, db;
  };
  const auto run = [&](bool fused) {
    Result result;
    run_on(*stream_, [&] {
      OwnedParameter w(memory_, {kClasses, kC}, random_floats(kClasses * kC, 7));
      OwnedParameter b(memory_, {kClasses}, random_floats(kClasses, 9));
      float loss_scale = kScale;
      Tape tape(
          memory_, *stream_, {},
          {.loss_scale = TensorView(&loss_scale, DType::kFloat32, Shape{1}), .threads = kThreads});
      Tensor dx;
      Value x = test::leaf(tape, tensor({kRows, kC}, random_floats(kRows * kC, 8)), dx);
      Value losses;
      if (fused) {
        losses = ops::linear_cross_entropy(tape, std::move(x), w.parameter, targets, -1, 0.0F,
                                           &b.parameter);
      } else {
        losses = ops::cross_entropy(tape, ops::linear(tape, x, w.parameter, &b.parameter), targets);
      }
      const std::vector<float> scale(kRows, kScale);
      tape.backward(losses, tensor(losses.shape(), scale));
      result = {to_floats(losses.tensor), to_floats(dx), to_floats(w.gradient),
                to_floats(b.gradient)};
    });
    EXPECT_EQ(activations(), 0);
    return result;
  };
  const Result fused = run(true), apart = run(false);
  const auto doubles = [](const std::vector<float>& v) { return Doubles(v.begin(), v.end()); };
  test::expect_near(fused.losses, doubles(apart.losses), "losses");
  test::expect_near(fused.dx, doubles(apart.dx), "dx");
  test::expect_near(fused.dw, doubles(apart.dw), "dw");
  test::expect_near(fused.db, doubles(apart.db), "db");
}

}  // namespace
}  // namespace tessera::encoder_ops_test
