#include "tessera/autograd/ops.h"

#include <gtest/gtest.h>

#include "autograd/op_check.h"
#include "autograd/oracles.h"

namespace tessera {
namespace {

using test::at;
using test::attention_oracle;
using test::check_op;
using test::cross_entropy_oracle;
using test::Doubles;
using test::gelu_oracle;
using test::linear_oracle;
using test::norm_oracle;
using test::OpCase;
using test::OwnedParameter;
using test::random_floats;
using test::relu_oracle;
using test::run_on;
using test::silu_oracle;
using test::sum_oracle;
using test::to_floats;
using Values = std::vector<Value>;
using Parameters = std::vector<Parameter*>;

class Ops : public test::TapeTest {};

TEST_F(Ops, Linear) {
  check_op(
      memory_, *stream_,
      {.inputs = {{2, 3, 5}},
       .parameters = {{7, 5}, {7}},
       .run = [](Tape& t, Values& x, Parameters& p) { return ops::linear(t, x[0], *p[0], p[1]); },
       .oracle = [](const auto& a) { return linear_oracle(a[0], a[1], a[2], 5); }});
}

TEST_F(Ops, LinearWithoutBiasOnOneRow) {
  check_op(memory_, *stream_,
           {.inputs = {{1, 17}},
            .parameters = {{3, 17}},
            .run = [](Tape& t, Values& x,
                      Parameters& p) { return ops::linear(t, x[0], *p[0], nullptr); },
            .oracle = [](const auto& a) { return linear_oracle(a[0], a[1], {}, 17); }});
}

/// The residual goes around the whole, as in a block.
TEST_F(Ops, LinearWithResidual) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}},
            .parameters = {{6, 6}, {6}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  const Value y = ops::gelu(t, x[0]);
                  const Value sum = ops::linear(t, y, *p[0], p[1], &x[0]);
                  return ops::linear(t, sum, *p[0], p[1], &sum);
                },
            .oracle =
                [](const auto& a) {
                  const Doubles inner = linear_oracle(gelu_oracle(a[0]), a[1], a[2], 6);
                  const Doubles sum = sum_oracle(inner, a[0]);
                  return sum_oracle(linear_oracle(sum, a[1], a[2], 6), sum);
                }});
}

TEST_F(Ops, AParameterUsedTwiceGetsBothGradients) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}},
            .parameters = {{6, 6}, {6}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  const Value y = ops::linear(t, x[0], *p[0], p[1]);
                  return ops::linear(t, y, *p[0], p[1]);
                },
            .oracle =
                [](const auto& a) {
                  return linear_oracle(linear_oracle(a[0], a[1], a[2], 6), a[1], a[2], 6);
                }});
}

TEST_F(Ops, LayerNorm) {
  check_op(memory_, *stream_,
           {.inputs = {{2, 3, 19}},
            .parameters = {{19}, {19}},
            .run = [](Tape& t, Values& x,
                      Parameters& p) { return ops::layer_norm(t, x[0], *p[0], *p[1]); },
            .oracle = [](const auto& a) { return norm_oracle(a[0], a[1], a[2]); }});
}

TEST_F(Ops, ResidualBlock) {
  // Both outputs of add_layer_norm are used, and the residual goes around the whole, as in a block.
  check_op(memory_, *stream_,
           {.inputs = {{5, 13}, {5, 13}},
            .parameters = {{13}, {13}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value a = ops::layer_norm(t, x[1], *p[0], *p[1]);
                  a = ops::gelu(t, std::move(a));
                  auto [sum, norm] = ops::add_layer_norm(t, std::move(a), x[0], *p[0], *p[1]);
                  return ops::add(t, std::move(norm), sum);
                },
            .oracle =
                [](const auto& a) {
                  const Doubles inner = gelu_oracle(norm_oracle(a[1], a[2], a[3]));
                  const Doubles sum = sum_oracle(inner, a[0]);
                  return sum_oracle(norm_oracle(sum, a[2], a[3]), sum);
                }});
}

/// As in a block of Gemma: what is added to the residual is normalised, and so is the sum.
TEST_F(Ops, ResidualBlockWithFourNorms) {
  constexpr float kEpsilon = 1e-4F;
  const auto norm = [](const Doubles& x, const Doubles& w) { return test::rms_oracle(x, w, 1e-4); };
  check_op(memory_, *stream_,
           {.inputs = {{5, 6}},
            .parameters = {{6}, {6}, {12, 6}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::gelu(t, ops::rms_norm(t, x[0], *p[0], kEpsilon, 1.0F));
                  y = ops::rms_norm(t, y, *p[1], kEpsilon, 1.0F);
                  auto [sum, normalized] =
                      ops::add_rms_norm(t, std::move(y), x[0], *p[0], kEpsilon, 1.0F);
                  y = ops::linear(t, normalized, *p[2], nullptr);
                  y = ops::rms_norm(t, ops::geglu(t, std::move(y)), *p[1], kEpsilon, 1.0F);
                  return ops::add(t, std::move(y), sum);
                },
            .oracle =
                [&](const auto& a) {
                  const Doubles attended = norm(gelu_oracle(norm(a[0], a[1])), a[2]);
                  const Doubles sum = sum_oracle(attended, a[0]);
                  const Doubles gates = linear_oracle(norm(sum, a[1]), a[3], {}, 6);
                  Doubles gate, up;
                  for (std::size_t i = 0; i < gates.size(); ++i) {
                    (i % 12 < 6 ? gate : up).push_back(gates[i]);
                  }
                  const Doubles hidden = test::product_oracle(gelu_oracle(gate), up);
                  return sum_oracle(norm(hidden, a[2]), sum);
                }});
}

TEST_F(Ops, Gelu) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 11}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::gelu(t, x[0]); },
            .oracle = [](const auto& a) { return gelu_oracle(a[0]); }});
}

TEST_F(Ops, Silu) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 11}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::silu(t, x[0]); },
            .oracle = [](const auto& a) { return silu_oracle(a[0]); }});
}

TEST_F(Ops, Relu) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 11}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::relu(t, x[0]); },
            .oracle = [](const auto& a) { return relu_oracle(a[0]); }});
}

// ReLU is taken in place of what nothing else holds; SiLU's output is remade from its input, which
// is ReLU's output and somebody else's operand.
/// y (..., C) with columns [first, first + scale.size()) times `scale`.
Doubles scale_oracle(Doubles y, const Doubles& scale, std::size_t columns, std::size_t first) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t column = i % columns;
    if (column >= first && column < first + scale.size()) y[i] *= scale[column - first];
  }
  return y;
}

// All columns of a value that others read, too, and of one that recomputation drops.
TEST_F(Ops, ScaleColumnsOfAnInput) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}},
            .parameters = {{1, 6}, {6, 6}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::scale_columns(t, ops::gelu(t, x[0]), *p[0]);
                  y = ops::linear(t, y, *p[1], nullptr, &x[0]);
                  return ops::linear(t, ops::scale_columns(t, y, *p[0]), *p[1], nullptr, &y);
                },
            .oracle =
                [](const auto& a) {
                  Doubles y = scale_oracle(gelu_oracle(a[0]), a[1], 6, 0);
                  y = sum_oracle(linear_oracle(y, a[2], {}, 6), a[0]);
                  return sum_oracle(linear_oracle(scale_oracle(y, a[1], 6, 0), a[2], {}, 6), y);
                }});
}

// Some columns, in place; what comes after reads the others as well.
TEST_F(Ops, ScaleColumnsOfAnOutput) {
  check_op(memory_, *stream_,
           {.inputs = {{2, 3, 5}},
            .parameters = {{7, 5}, {7}, {3, 1}, {2, 1}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::linear(t, x[0], *p[0], p[1]);
                  y = ops::scale_columns(t, std::move(y), *p[2], 1);
                  y = ops::scale_columns(t, std::move(y), *p[3], 5);
                  return ops::gelu(t, std::move(y));
                },
            .oracle =
                [](const auto& a) {
                  Doubles y = linear_oracle(a[0], a[1], a[2], 5);
                  y = scale_oracle(std::move(y), a[3], 7, 1);
                  return gelu_oracle(scale_oracle(std::move(y), a[4], 7, 5));
                }});
}

/// y whose columns from `first` on are divided by the norms of the rows of weight + scale * b a.
Doubles row_norm_oracle(Doubles y, const Doubles& weight, const Doubles& b, const Doubles& a,
                        std::size_t inputs, double scale, std::size_t columns, std::size_t first) {
  const std::size_t rank = a.size() / inputs, outputs = weight.size() / inputs;
  for (std::size_t o = 0; o < outputs; ++o) {
    double sum = 0.0;
    for (std::size_t i = 0; i < inputs; ++i) {
      double value = weight[o * inputs + i];
      for (std::size_t r = 0; r < rank; ++r) {
        value += scale * b[o * rank + r] * a[r * inputs + i];
      }
      sum += value * value;
    }
    for (std::size_t row = 0; row < y.size() / columns; ++row) {
      y[row * columns + first + o] /= std::sqrt(sum);
    }
  }
  return y;
}

// Of neighbouring columns, beside others that are as they were. The matrix of which norms are taken
// is no parameter here, so that they are constants.
TEST_F(Ops, DividesByRowNorms) {
  Doubles weight(10), a(10), b(4);  // (2, 5), (2, 5), (2, 2)
  for (std::size_t i = 0; i < 10; ++i) weight[i] = 0.3 + 0.1 * static_cast<double>(i % 4);
  for (std::size_t i = 0; i < 10; ++i) a[i] = 0.2 - 0.1 * static_cast<double>(i % 3);
  for (std::size_t i = 0; i < 4; ++i) b[i] = 0.5 - 0.3 * static_cast<double>(i);
  const auto floats = [](const Doubles& from) {
    return std::vector<float>(from.begin(), from.end());
  };
  auto w = floats(weight), af = floats(a), bf = floats(b);
  const auto view = [](std::vector<float>& values, Shape shape) {
    return TensorView(values.data(), DType::kFloat32, std::move(shape));
  };
  Parameter low_a{.value = view(af, {2, 5}), .gradient = {}};
  Parameter low_b{.value = view(bf, {2, 2}), .gradient = {}};
  check_op(memory_, *stream_,
           {.inputs = {{2, 3, 5}},
            .parameters = {{7, 5}},
            .run =
                [&](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::linear(t, x[0], *p[0], nullptr);
                  y = ops::divide_by_row_norms(
                      t, std::move(y), view(w, {2, 5}),
                      {.a = low_a, .b = low_b, .scale = 0.7F, .first_column = 3});
                  return ops::gelu(t, std::move(y));
                },
            .oracle =
                [&](const auto& in) {
                  return gelu_oracle(row_norm_oracle(linear_oracle(in[0], in[1], {}, 5), weight, b,
                                                     a, 5, 0.7, 7, 3));
                }});
}

TEST_F(Ops, AddsAFrozenBias) {
  std::vector<float> values{0.5F, -1.0F, 2.0F};
  const Parameter bias{.value = TensorView(values.data(), DType::kFloat32, Shape{3}),
                       .gradient = {},
                       .trainable = false};
  check_op(memory_, *stream_,
           {.inputs = {{4, 5}},
            .parameters = {{3, 5}},
            .run =
                [&](Tape& t, Values& x, Parameters& p) {
                  return ops::gelu(t, ops::add_bias(t, ops::linear(t, x[0], *p[0], nullptr), bias));
                },
            .oracle =
                [](const auto& a) {
                  return gelu_oracle(linear_oracle(a[0], a[1], {0.5, -1.0, 2.0}, 5));
                }});
}

TEST_F(Ops, ActivationsBetweenProjections) {
  check_op(memory_, *stream_,
           {.inputs = {{5, 4}},
            .parameters = {{6, 4}, {6}, {3, 6}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::relu(t, ops::linear(t, x[0], *p[0], p[1]));
                  y = ops::add(t, ops::silu(t, y), y);
                  return ops::linear(t, y, *p[2], nullptr);
                },
            .oracle =
                [](const auto& a) {
                  const Doubles y = relu_oracle(linear_oracle(a[0], a[1], a[2], 4));
                  return linear_oracle(sum_oracle(silu_oracle(y), y), a[3], {}, 6);
                }});
}

TEST_F(Ops, ReluTakesNoMemoryOfItsOwn) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {});
    OwnedParameter w(memory_, {6, 4}, random_floats(24, 7));
    Value y = ops::linear(tape, tape.input(tensor({5, 4}, random_floats(20, 8)), true), w.parameter,
                          nullptr);
    const std::int64_t before = activations();
    y = ops::relu(tape, std::move(y));
    EXPECT_EQ(activations(), before);
  });
}

TEST_F(Ops, AttentionBetweenProjections) {
  constexpr std::int64_t kB = 2, kL = 7, kH = 3, kD = 4, kC = kH * kD;
  check_op(memory_, *stream_,
           {.inputs = {{kB, kL, kC}},
            .parameters = {{3 * kC, kC}, {kC, kC}},
            .run =
                [](Tape& t, Values& x, Parameters& p) {
                  Value y = ops::linear(t, x[0], *p[0], nullptr);
                  y = ops::attention(t, y, kH);
                  return ops::linear(t, y, *p[1], nullptr);
                },
            .oracle =
                [](const auto& a) {
                  const Doubles qkv = linear_oracle(a[0], a[1], {}, kC);
                  return linear_oracle(attention_oracle(qkv, kB, kL, kH, kD), a[2], {}, kC);
                }});
}

TEST_F(Ops, AttentionThatIsNotCausal) {
  constexpr std::int64_t kB = 2, kL = 7, kH = 3, kD = 4;
  check_op(memory_, *stream_,
           {.inputs = {{kB, kL, 3 * kH * kD}},
            .parameters = {},
            .run = [](Tape& t, Values& x,
                      Parameters&) { return ops::attention(t, x[0], kH, 0, {}, false); },
            .oracle = [](const auto& a) { return attention_oracle(a[0], kB, kL, kH, kD, false); }});
}

TEST_F(Ops, AttentionWithScaledAndCappedScores) {
  constexpr std::int64_t kB = 2, kL = 7, kH = 3, kD = 4;
  const AttentionScores scores{.scale = 0.8F, .soft_cap = 1.5F};
  check_op(
      memory_, *stream_,
      {.inputs = {{kB, kL, 3 * kH * kD}},
       .parameters = {},
       .run = [&](Tape& t, Values& x,
                  Parameters&) { return ops::attention(t, x[0], kH, 0, {}, true, scores); },
       .oracle =
           [&](const auto& a) { return attention_oracle(a[0], kB, kL, kH, kD, true, scores); }});
}

TEST_F(Ops, Multiply) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 7}, {3, 7}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::multiply(t, x[0], x[1]); },
            .oracle = [](const auto& a) { return test::product_oracle(a[0], a[1]); }});
}

TEST_F(Ops, MultiplyOfAValueByItself) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 7}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::multiply(t, x[0], x[0]); },
            .oracle = [](const auto& a) { return test::product_oracle(a[0], a[0]); }});
}

TEST_F(Ops, Softmax) {
  check_op(memory_, *stream_,
           {.inputs = {{2, 3, 11}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::softmax(t, x[0]); },
            .oracle = [](const auto& a) { return test::softmax_oracle(a[0], 11); }});
}

/// In place of what nothing else holds; what was recomputed for backward stays as it is.
TEST_F(Ops, SoftmaxOfAGelu) {
  check_op(
      memory_, *stream_,
      {.inputs = {{4, 6}},
       .parameters = {},
       .run = [](Tape& t, Values& x,
                 Parameters&) { return ops::softmax(t, ops::gelu(t, ops::gelu(t, x[0]))); },
       .oracle =
           [](const auto& a) { return test::softmax_oracle(gelu_oracle(gelu_oracle(a[0])), 6); }});
}

TEST_F(Ops, MatmulOfActivations) {
  check_op(memory_, *stream_,
           {.inputs = {{2, 3, 4, 5}, {2, 3, 5, 7}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::matmul(t, x[0], x[1]); },
            .oracle = [](const auto& a) { return test::matmul_oracle(a[0], a[1], 6, 4, 7, 5); }});
}

TEST_F(Ops, MatmulWithTheSecondTransposed) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 4, 5}, {3, 7, 5}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::matmul(t, x[0], x[1], true); },
            .oracle =
                [](const auto& a) {
                  return test::matmul_oracle(a[0], test::transposed_oracle(a[1], 3, 7, 5), 3, 4, 7,
                                             5);
                }});
}

/// Attention of one head, put together from products and a softmax, is the operation's.
TEST_F(Ops, MatmulsAndSoftmaxMakeAttention) {
  constexpr std::int64_t kB = 2, kL = 6, kD = 4;
  check_op(memory_, *stream_,
           {.inputs = {{kB, kL, kD}, {kB, kL, kD}, {kB, kL, kD}},
            .parameters = {},
            .run =
                [](Tape& t, Values& x, Parameters&) {
                  const Value p = ops::softmax(t, ops::matmul(t, x[0], x[1], true));
                  return ops::matmul(t, p, x[2]);
                },
            .oracle =
                [](const auto& a) {
                  Doubles qkv;  // (B, L, 3, D); the operation divides scores by the root of D
                  for (std::size_t row = 0; row < kB * kL; ++row) {
                    for (std::size_t part = 0; part < 3; ++part) {
                      for (std::size_t d = 0; d < kD; ++d) {
                        qkv.push_back(a[part][row * kD + d] * (part == 0 ? std::sqrt(kD) : 1.0));
                      }
                    }
                  }
                  return attention_oracle(qkv, kB, kL, 1, kD, false);
                }});
}

TEST_F(Ops, MeanRows) {
  check_op(memory_, *stream_,
           {.inputs = {{3, 5, 7}},
            .parameters = {},
            .run = [](Tape& t, Values& x, Parameters&) { return ops::mean_rows(t, x[0]); },
            .oracle = [](const auto& a) { return test::mean_rows_oracle(a[0], 3, 5, 7); }});
}

TEST_F(Ops, AValueWithManyConsumers) {
  // The gradient of x[0] arrives four times, twice from one addition.
  check_op(memory_, *stream_,
           {.inputs = {{3, 7}, {3, 7}},
            .parameters = {},
            .run =
                [](Tape& t, Values& x, Parameters&) {
                  Value y = ops::add(t, x[0], x[0]);
                  y = ops::add(t, std::move(y), x[1]);
                  Value z = ops::add(t, ops::gelu(t, x[0]), x[0]);
                  return ops::add(t, std::move(z), y);
                },
            .oracle =
                [](const auto& a) {
                  Doubles y = sum_oracle(sum_oracle(a[0], a[0]), a[1]);
                  return sum_oracle(sum_oracle(gelu_oracle(a[0]), a[0]), y);
                }});
}

TEST_F(Ops, Dropout) {
  // The mask is found by dropping out ones under the same key; the operation is linear in x.
  const Shape shape{9, 31};
  const TapeOptions options{.random_key = key_};
  Doubles mask;
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, options);
    const std::vector<float> ones(9 * 31, 1.0F);
    const Value y = ops::dropout(tape, {.tensor = tensor(shape, ones)}, 0.25F);
    for (const float value : to_floats(y.tensor)) mask.push_back(static_cast<double>(value));
  });
  const auto dropped = std::count(mask.begin(), mask.end(), 0.0);
  EXPECT_GT(dropped, 9 * 31 / 8);
  EXPECT_LT(dropped, 9 * 31 / 2);
  check_op(memory_, *stream_,
           {.inputs = {shape, shape},
            .parameters = {},
            .run =
                [](Tape& t, Values& x, Parameters&) {
                  // x[0]'s gradient is shared with x[1]'s when dropout's backward gets it.
                  return ops::add(t, ops::dropout(t, x[0], 0.25F), x[1]);
                },
            .oracle =
                [&](const auto& a) {
                  Doubles y = a[1];
                  for (std::size_t i = 0; i < y.size(); ++i) y[i] += mask[i] * a[0][i];
                  return y;
                },
            .options = options});
}

TEST_F(Ops, Embedding) {
  const Tensor tokens = ints({2, 4}, {5, 0, 5, 2, 1, 5, 3, 0});
  const std::vector<std::int32_t> rows(tokens.as<std::int32_t>(), tokens.as<std::int32_t>() + 8);
  check_op(memory_, *stream_,
           {.inputs = {},
            .parameters = {{6, 3}, {9, 3}},  // a context of 9, of which 4 are used
            .run = [&](Tape& t, Values&,
                       Parameters& p) { return ops::embedding(t, tokens, *p[0], p[1]); },
            .oracle =
                [&](const auto& a) {
                  Doubles y;
                  for (std::int64_t i = 0; i < 8; ++i) {
                    for (std::int64_t c = 0; c < 3; ++c) {
                      y.push_back(a[0][at(rows[at(i)] * 3 + c)] + a[1][at(i % 4 * 3 + c)]);
                    }
                  }
                  return y;
                }});
}

TEST_F(Ops, EmbeddingWithoutPositions) {
  const Tensor tokens = ints({2, 4}, {5, 0, 5, 2, 1, 5, 3, 0});
  const std::vector<std::int32_t> rows(tokens.as<std::int32_t>(), tokens.as<std::int32_t>() + 8);
  check_op(memory_, *stream_,
           {.inputs = {},
            .parameters = {{6, 3}},
            .run = [&](Tape& t, Values&,
                       Parameters& p) { return ops::embedding(t, tokens, *p[0], nullptr); },
            .oracle =
                [&](const auto& a) {
                  Doubles y;
                  for (std::int64_t i = 0; i < 24; ++i)
                    y.push_back(a[0][at(rows[at(i / 3)] * 3 + i % 3)]);
                  return y;
                }});
}

TEST_F(Ops, ScaledEmbedding) {
  const Tensor tokens = ints({1, 4}, {5, 0, 5, 2});
  const std::vector<std::int32_t> rows(tokens.as<std::int32_t>(), tokens.as<std::int32_t>() + 4);
  check_op(
      memory_, *stream_,
      {.inputs = {},
       .parameters = {{6, 3}},
       .run = [&](Tape& t, Values&,
                  Parameters& p) { return ops::embedding(t, tokens, *p[0], nullptr, {}, 7.5F); },
       .oracle =
           [&](const auto& a) {
             Doubles y;
             for (std::int64_t i = 0; i < 12; ++i)
               y.push_back(7.5 * a[0][at(rows[at(i / 3)] * 3 + i % 3)]);
             return y;
           }});
}

/// A tensor of bf16 with that number would have 59.75.
TEST_F(Ops, TheScaleOfAnEmbeddingIsRoundedAsTheEmbeddingIs) {
  const Tensor tokens = ints({1, 1}, {0});
  run_on(*stream_, [&] {
    const Tensor one =
        Tensor::empty(memory_, {1, 1}, DType::kBFloat16, MemoryCategory::kParameters, "wte");
    test::copy_to(one, std::vector<float>{1.25F});
    Parameter wte{.value = one, .gradient = {}};
    Tape tape(memory_, *stream_, {}, {.record = false});
    const Value x = ops::embedding(tape, tokens, wte, nullptr, {}, std::sqrt(3584.0F));
    EXPECT_EQ(to_floats(x.tensor)[0], static_cast<float>(bfloat16(1.25F * 59.75F)));
  });
}

/// Losses of the tape and their gradients against the oracle's; the losses' own weights must all be
/// loss_scale.
class Losses : public Ops {
 protected:
  static constexpr float kScale = 0.125F;

  struct Result {
    std::vector<float> losses, dx, dw;
  };

  Result run(bool fused, const Shape& x_shape, std::int64_t vocab_size, const Tensor& targets,
             bool apart = false, float soft_cap = 0.0F) {
    const std::int64_t c = x_shape[x_shape.rank() - 1];
    Result result;
    run_on(*stream_, [&] {
      OwnedParameter w(memory_, {vocab_size, c}, random_floats(vocab_size * c, 7));
      float loss_scale = kScale;
      Tape tape(memory_, *stream_, {},
                {.loss_scale = TensorView(&loss_scale, DType::kFloat32, Shape{1}),
                 .loss_backward_apart = apart,
                 .threads = kThreads});
      if (apart) w.parameter.gradient = {};
      Tensor dx;
      Value x = test::leaf(tape, tensor(x_shape, random_floats(x_shape.numel(), 8)), dx);
      Value losses;
      if (fused) {
        losses = ops::linear_cross_entropy(tape, std::move(x), w.parameter, targets, -1, soft_cap);
      } else {
        losses = ops::cross_entropy(tape, ops::linear(tape, x, w.parameter, nullptr), targets);
      }
      const std::vector<float> scale(static_cast<std::size_t>(losses.tensor.numel()), kScale);
      w.parameter.gradient = w.gradient;
      tape.backward(losses, tensor(losses.shape(), scale));
      result = {to_floats(losses.tensor), to_floats(dx), to_floats(w.gradient)};
    });
    EXPECT_EQ(activations(), 0);
    return result;
  }
};

TEST_F(Losses, CrossEntropyAndTheFusedLinear) {
  constexpr std::int64_t kV = 11, kC = 5;
  const std::vector<std::int32_t> targets{3, -1, 10, 0, 7, 7};
  const OpCase op{
      .inputs = {{6, kC}}, .parameters = {{kV, kC}}, .run = {}, .oracle = [&](const auto& a) {
        return cross_entropy_oracle(linear_oracle(a[0], a[1], {}, kC), targets);
      }};
  const auto x = random_floats(6 * kC, 8);
  const auto w = random_floats(kV * kC, 7);
  const std::vector<Doubles> arguments{{x.begin(), x.end()}, {w.begin(), w.end()}};
  const std::vector<float> weights(6, kScale);
  for (const bool fused : {false, true}) {
    // As (B, L, C) and (B, L): rows are rows.
    const Result result = run(fused, {2, 3, kC}, kV, ints({2, 3}, targets));
    test::expect_near(result.losses, op.oracle(arguments), "losses");
    test::expect_near(result.dx, numeric_gradient(op, arguments, 0, weights), "dx");
    test::expect_near(result.dw, numeric_gradient(op, arguments, 1, weights), "dw");
  }
}

TEST_F(Losses, LogitsOfTheFusedLinearMayBeCapped) {
  constexpr std::int64_t kV = 11, kC = 5;
  constexpr double kCap = 1.5;
  const std::vector<std::int32_t> targets{3, -1, 10, 0, 7, 7};
  const OpCase op{
      .inputs = {{6, kC}}, .parameters = {{kV, kC}}, .run = {}, .oracle = [&](const auto& a) {
        Doubles logits = linear_oracle(a[0], a[1], {}, kC);
        for (double& logit : logits) logit = kCap * std::tanh(logit / kCap);
        return cross_entropy_oracle(logits, targets);
      }};
  const auto x = random_floats(6 * kC, 8);
  const auto w = random_floats(kV * kC, 7);
  const std::vector<Doubles> arguments{{x.begin(), x.end()}, {w.begin(), w.end()}};
  const std::vector<float> weights(6, kScale);
  for (const bool apart : {false, true}) {
    const Result result =
        run(true, {6, kC}, kV, ints({6}, targets), apart, static_cast<float>(kCap));
    test::expect_near(result.losses, op.oracle(arguments), "losses");
    test::expect_near(result.dx, numeric_gradient(op, arguments, 0, weights), "dx");
    test::expect_near(result.dw, numeric_gradient(op, arguments, 1, weights), "dw");
  }
}

// The fused one in chunks that differ in size.
TEST_F(Losses, WithBackwardApartGiveTheSameBits) {
  constexpr std::int64_t kV = 300'000, kC = 3, kRows = 70;
  std::vector<std::int32_t> targets(kRows);
  for (std::int32_t i = 0; i < kRows; ++i) {
    targets[static_cast<std::size_t>(i)] = i % 9 == 0 ? -1 : i * 7;
  }
  for (const bool fused : {false, true}) {
    const Result one = run(fused, {kRows, kC}, kV, ints({kRows}, targets));
    const Result two = run(fused, {kRows, kC}, kV, ints({kRows}, targets), true);
    EXPECT_EQ(one.losses, two.losses);
    EXPECT_EQ(one.dx, two.dx);
    EXPECT_EQ(one.dw, two.dw);
  }
}

// Whether the predictions are the operation's to overwrite, or somebody else holds them.
TEST_F(Losses, SquaredError) {
  const auto targets = random_floats(12, 9);
  const Tensor target_tensor = tensor({2, 2, 3}, targets);
  const auto x = random_floats(12, 8);
  const OpCase op{.inputs = {{2, 2, 3}}, .parameters = {}, .run = {}, .oracle = [&](const auto& a) {
                    Doubles losses;
                    for (std::int64_t row = 0; row < 4; ++row) {
                      double sum = 0.0;
                      for (std::int64_t i = 3 * row; i < 3 * row + 3; ++i) {
                        sum += std::pow(a[0][at(i)] - static_cast<double>(targets[at(i)]), 2);
                      }
                      losses.push_back(sum / 3.0);
                    }
                    return losses;
                  }};
  const std::vector<Doubles> arguments{{x.begin(), x.end()}};
  const std::vector<float> weights(4, kScale);
  for (const bool shared : {false, true}) {
    run_on(*stream_, [&] {
      float loss_scale = kScale;
      Tape tape(memory_, *stream_, {},
                {.loss_scale = TensorView(&loss_scale, DType::kFloat32, Shape{1})});
      Tensor dx;
      Value predictions = test::leaf(tape, tensor({2, 2, 3}, x), dx);
      const Tensor held = shared ? predictions.tensor : Tensor();
      Value losses = ops::squared_error(tape, std::move(predictions), target_tensor);
      tape.backward(losses, tensor({4}, weights));
      test::expect_near(to_floats(losses.tensor), op.oracle(arguments), "losses");
      test::expect_near(to_floats(dx), numeric_gradient(op, arguments, 0, weights), "dx");
      if (shared) {
        EXPECT_EQ(to_floats(held), x);
      }
    });
  }
}

TEST_F(Losses, SquaredErrorNamesTargetsThatDoNotFit) {
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({4, 3}, random_floats(12, 8)), true);
    EXPECT_THROW(ops::squared_error(tape, x, ints({12}, std::vector<std::int32_t>(12))), Error);
    EXPECT_THROW(ops::squared_error(tape, x, tensor({4}, random_floats(4, 1))), Error);
  });
}

TEST_F(Losses, ChunksAreOneSum) {
  constexpr std::int64_t kV = 200'003, kRows = 70;  // 64 rows, and 6
  ASSERT_EQ(ops::cross_entropy_chunk_rows(kRows, kV, DeviceKind::kCpu), 64);
  std::vector<std::int32_t> targets;
  for (std::int32_t i = 0; i < kRows; ++i) targets.push_back(i * 2857);
  const Tensor target_tensor = ints({kRows}, targets);
  const Result whole = run(false, {kRows, 2}, kV, target_tensor);
  const Result chunked = run(true, {kRows, 2}, kV, target_tensor);
  const auto doubles = [](const std::vector<float>& v) { return Doubles(v.begin(), v.end()); };
  test::expect_near(chunked.losses, doubles(whole.losses), "losses");
  test::expect_near(chunked.dx, doubles(whole.dx), "dx");
  test::expect_near(chunked.dw, doubles(whole.dw), "dw");
}

/// Columns, rows and depths of the products that padded_products has seen.
std::vector<std::int64_t>& product_sizes() {
  static std::vector<std::int64_t> sizes;
  return sizes;
}

/// The CPU's kernels, noting the sizes of products.
const KernelTable& noting_products() {
  static const KernelTable table = [] {
    KernelTable kernels = cpu_kernels();
    kernels.gemm = [](const GemmArgs& args, Stream& stream) {
      for (const TensorView& view : {args.a, args.b, args.c}) {
        product_sizes().insert(product_sizes().end(), {view.shape[0], view.shape[1]});
      }
      cpu_kernels().gemm(args, stream);
    };
    return kernels;
  }();
  return table;
}

// With zeros behind the weight, a GPU's products have no odd size, and nothing else changes.
TEST_F(Losses, ZerosBehindTheWeightTakePartOnAGpu) {
  constexpr std::int64_t kV = 131, kPadded = 256, kC = 8, kRows = 64;
  std::vector<std::int32_t> numbers;
  for (std::int32_t i = 0; i < kRows; ++i) numbers.push_back(i % 7 == 3 ? -1 : i * 29 % 131);
  const Tensor targets = ints({kRows}, numbers);
  const Result expected = run(true, {kRows, kC}, kV, targets);
  run_on(*stream_, [&] {
    std::vector<float> values = random_floats(kV * kC, 7);
    values.resize(kPadded * kC);
    OwnedParameter w(memory_, {kPadded, kC}, values);
    w.parameter.value = w.parameter.value.narrow(0, 0, kV);
    w.parameter.gradient = w.parameter.gradient.narrow(0, 0, kV);
    w.parameter.padded_rows = kPadded;
    float loss_scale = kScale;
    product_sizes().clear();
    TapeOptions options;
    options.loss_scale = TensorView(&loss_scale, DType::kFloat32, Shape{1});
    options.threads = kThreads;
    options.device = DeviceKind::kCuda;
    options.kernels = &noting_products();
    Tape tape(memory_, *stream_, {}, options);
    Tensor dx;
    Value x = test::leaf(tape, tensor({kRows, kC}, random_floats(kRows * kC, 8)), dx);
    const Value losses = ops::linear_cross_entropy(tape, std::move(x), w.parameter, targets);
    tape.backward(losses, tensor(losses.shape(), std::vector<float>(kRows, kScale)));
    const auto doubles = [](const std::vector<float>& v) { return Doubles(v.begin(), v.end()); };
    test::expect_near(to_floats(losses.tensor), doubles(expected.losses), "losses");
    test::expect_near(to_floats(dx), doubles(expected.dx), "dx");
    std::vector<float> dw = to_floats(w.gradient);
    for (std::size_t i = kV * kC; i < dw.size(); ++i) ASSERT_EQ(dw[i], 0.0F) << i;
    dw.resize(kV * kC);
    test::expect_near(dw, doubles(expected.dw), "dw");
  });
  EXPECT_EQ(product_sizes().size(), 3U * 6U);
  for (const std::int64_t size : product_sizes()) {
    EXPECT_TRUE(size == kRows || size == kC || size == kPadded) << size;
  }
}

TEST_F(Losses, WithoutRecordingThereAreOnlyLosses) {
  const Tensor targets = ints({4}, {1, 0, 2, 2});
  OwnedParameter w(memory_, {3, 2}, random_floats(6, 7));
  const Result recorded = run(true, {4, 2}, 3, targets);
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {.record = false});
    const std::vector<float> values = random_floats(8, 8);
    const Tensor x = tensor({4, 2}, values);
    Value losses;
    losses = ops::linear_cross_entropy(tape, tape.input(x, false), w.parameter, targets);
    EXPECT_EQ(to_floats(losses.tensor), recorded.losses);
    EXPECT_EQ(to_floats(x), values);
  });
  EXPECT_FALSE(w.parameter.gradient_written);
  EXPECT_TRUE(std::isnan(w.gradient.as<float>()[0]));
}

TEST(CrossEntropyChunk, IsAMultipleOf64AndSmall) {
  EXPECT_EQ(ops::cross_entropy_chunk_rows(8192, 50257, DeviceKind::kCpu), 320);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(8192, 256, DeviceKind::kCpu), 8192);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(1'000'000, 256, DeviceKind::kCpu), 62528);  // of 65536
  EXPECT_EQ(ops::cross_entropy_chunk_rows(1000, 300'000, DeviceKind::kCpu), 64);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(96, 65, DeviceKind::kCpu), 128);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(1, 1, DeviceKind::kCpu), 64);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(5312, 50257, DeviceKind::kCuda), 5312);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(8192, 256, DeviceKind::kCuda), 8192);
}

TEST(CrossEntropyChunk, IsAsLargeAsTheOthers) {
  EXPECT_EQ(ops::cross_entropy_chunk_rows(8192, 50257, DeviceKind::kCuda), 4096);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(16384, 50257, DeviceKind::kCuda), 4096);
  EXPECT_EQ(ops::cross_entropy_chunk_rows(32768, 50257, DeviceKind::kCuda), 4736);
  for (const std::int64_t rows : {1, 64, 65, 5312, 5313, 10000, 16384, 100'000}) {
    const std::int64_t chunk = ops::cross_entropy_chunk_rows(rows, 50257, DeviceKind::kCuda);
    const std::int64_t chunks = (rows + chunk - 1) / chunk;
    EXPECT_EQ(chunks, (rows + 5311) / 5312) << rows;
    EXPECT_LT(chunk - (rows - (chunks - 1) * chunk), 64 * chunks) << rows;
  }
}

}  // namespace
}  // namespace tessera
