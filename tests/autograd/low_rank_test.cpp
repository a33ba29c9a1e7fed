#include <gmock/gmock.h>

#include "autograd/op_check.h"
#include "autograd/oracles.h"
#include "tessera/kernels/kernel_table.h"

// LoRA's products beside a linear layer, each by itself or those of neighbouring a's together.
namespace tessera::low_rank_test {
namespace {

using test::check_op;
using test::copy_to;
using test::Doubles;
using test::linear_oracle;
using test::random_floats;
using test::run_on;
using test::to_floats;

class LowRankProducts : public test::TapeTest {};

/// y (rows, outputs) with `part` (rows, O) added from `first` on.
Doubles with_columns(Doubles y, std::size_t outputs, const Doubles& part, std::size_t columns,
                     std::size_t first, double scale) {
  for (std::size_t i = 0; i < part.size(); ++i) {
    y[i / columns * outputs + first + i % columns] += scale * part[i];
  }
  return y;
}

/// a: x, W, then a and b of two products, of columns 0 to 3 and 5 to 7.
Doubles oracle_of_two(const std::vector<Doubles>& a, std::int64_t inputs, double second_scale) {
  const auto product = [&](std::size_t first, std::int64_t rank) {
    return linear_oracle(linear_oracle(a[0], a[first], {}, inputs), a[first + 1], {}, rank);
  };
  Doubles y = linear_oracle(a[0], a[1], {}, inputs);
  y = with_columns(std::move(y), 8, product(2, 2), 4, 0, 0.5);
  return with_columns(std::move(y), 8, product(4, 3), 3, 5, second_scale);
}

TEST_F(LowRankProducts, FollowTheFormulaForwardAndBackward) {
  for (const bool in_linear : {false, true}) {
    for (const float second_scale : {0.5F, 1.0F}) {
      SCOPED_TRACE(concat(in_linear ? "in linear, " : "apart, ", second_scale));
      check_op(memory_, *stream_,
               {.inputs = {{2, 3, 5}},
                .parameters = {{8, 5}, {2, 5}, {4, 2}, {3, 5}, {3, 3}},
                .run =
                    [&](Tape& t, std::vector<Value>& x, std::vector<Parameter*>& p) {
                      const ops::LowRank products[] = {
                          {.a = *p[1], .b = *p[2], .scale = 0.5F},
                          {.a = *p[3], .b = *p[4], .scale = second_scale, .first_column = 5}};
                      if (in_linear) {
                        return ops::linear(t, x[0], *p[0], nullptr, nullptr, products);
                      }
                      Value y = ops::linear(t, x[0], *p[0], nullptr);
                      return ops::add_low_rank(t, std::move(y), x[0], products);
                    },
                .oracle =
                    [&](const auto& a) {
                      return oracle_of_two(a, 5, static_cast<double>(second_scale));
                    }});
    }
  }
}

TEST_F(LowRankProducts, GoWithABiasAndAResidual) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}, {4, 8}},
            .parameters = {{8, 6}, {8}, {2, 6}, {8, 2}},
            .run =
                [](Tape& t, std::vector<Value>& x, std::vector<Parameter*>& p) {
                  const ops::LowRank product{.a = *p[2], .b = *p[3]};
                  return ops::linear(t, x[0], *p[0], p[1], &x[1], {&product, 1});
                },
            .oracle =
                [](const auto& a) {
                  const Doubles y = test::sum_oracle(linear_oracle(a[0], a[2], a[3], 6), a[1]);
                  const Doubles h = linear_oracle(a[0], a[4], {}, 6);
                  return test::sum_oracle(y, linear_oracle(h, a[5], {}, 2));
                }});
}

TEST_F(LowRankProducts, ReadAnInputThatIsRemade) {
  check_op(memory_, *stream_,
           {.inputs = {{4, 6}},
            .parameters = {{8, 6}, {2, 6}, {4, 2}, {3, 6}, {3, 3}},
            .run =
                [](Tape& t, std::vector<Value>& x, std::vector<Parameter*>& p) {
                  const ops::LowRank products[] = {
                      {.a = *p[1], .b = *p[2], .scale = 0.5F},
                      {.a = *p[3], .b = *p[4], .scale = 2.0F, .first_column = 5}};
                  return ops::linear(t, ops::gelu(t, x[0]), *p[0], nullptr, nullptr, products);
                },
            .oracle =
                [](const auto& a) {
                  std::vector<Doubles> arguments = a;
                  arguments[0] = test::gelu_oracle(a[0]);
                  return oracle_of_two(arguments, 6, 2.0);
                }});
}

/// Kernels of a forward and a backward pass.
struct Calls {
  int gemms = 0, casts = 0, adds = 0;
  bool operator==(const Calls&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Calls& calls) {
  return out << calls.gemms << " GEMMs, " << calls.casts << " casts, " << calls.adds << " adds";
}

struct Outcome {
  std::vector<std::vector<float>> numbers;  ///< y, dx and gradients
  Calls calls;
};

constexpr std::int64_t kRows = 24, kInputs = 32, kOutputs = 40, kRank = 4, kProducts = 3;

struct Way {
  std::int64_t gap = 0;  ///< elements between the a's
  bool split = false;
  float last_scale = 0.5F;   ///< of the third product
  bool accumulates = false;  ///< gradients are added to what is there
  bool moves = false;        ///< the a's are apart in backward
};

/// Three products with a's of 4 rows, of which the third adds to columns of the first.
Outcome run_three(Memory& memory, Stream& stream, const Way& way) {
  constexpr std::int64_t kNumel = kRank * kInputs, kColumns = 16;
  Outcome outcome;
  KernelTable kernels = cpu_kernels();
  kernels.gemm = [&](const GemmArgs& args, Stream& s) {
    ++outcome.calls.gemms;
    cpu_kernels().gemm(args, s);
  };
  kernels.cast = [&](const CastArgs& args, Stream& s) {
    ++outcome.calls.casts;
    cpu_kernels().cast(args, s);
  };
  kernels.add = [&](const AddArgs& args, Stream& s) {
    ++outcome.calls.adds;
    cpu_kernels().add(args, s);
  };
  run_on(stream, [&] {
    const auto flat = [&](std::int64_t numel, unsigned seed) {
      Tensor t =
          Tensor::empty(memory, Shape{numel}, DType::kFloat32, MemoryCategory::kParameters, "flat");
      copy_to(t, random_floats(numel, seed));
      return t;
    };
    const std::int64_t stride = kNumel + way.gap;
    const Tensor a = flat(kProducts * stride, 1), da = flat(kProducts * stride, 2);
    const Tensor b = flat(kProducts * kColumns * kRank, 3), db = flat(b.numel(), 4);
    for (std::int64_t p = 0; p < kProducts; ++p) {  // whatever the gap, the same numbers
      copy_to(a.view().narrow(0, p * stride, kNumel),
              random_floats(kNumel, 10 + static_cast<unsigned>(p)));
      copy_to(da.view().narrow(0, p * stride, kNumel),
              random_floats(kNumel, 20 + static_cast<unsigned>(p)));
    }
    test::OwnedParameter weight(memory, {kOutputs, kInputs}, random_floats(kOutputs * kInputs, 5));
    weight.parameter.trainable = false;
    weight.parameter.gradient = {};
    std::vector<Parameter> as, bs;
    for (std::int64_t p = 0; p < kProducts; ++p) {
      const auto part = [&](const Tensor& t, std::int64_t first, Shape shape) {
        return t.view().narrow(0, first, shape.numel()).reshape(shape);
      };
      as.push_back({.value = part(a, p * stride, {kRank, kInputs}),
                    .gradient = part(da, p * stride, {kRank, kInputs}),
                    .gradient_written = way.accumulates});
      bs.push_back({.value = part(b, p * kColumns * kRank, {kColumns, kRank}),
                    .gradient = part(db, p * kColumns * kRank, {kColumns, kRank}),
                    .gradient_written = way.accumulates});
    }
    std::vector<ops::LowRank> products;
    for (std::size_t p = 0; p < kProducts; ++p) {
      products.push_back({.a = as[p],
                          .b = bs[p],
                          .scale = p + 1 == kProducts ? way.last_scale : 0.5F,
                          .first_column = p == 1 ? 20 : 3});
    }
    TapeOptions options;
    options.threads = 2;
    options.kernels = &kernels;
    Tape tape(memory, stream, {}, options);
    const auto activation = [&](std::int64_t columns, unsigned seed) {
      Tensor t = Tensor::empty(memory, Shape{kRows, columns}, DType::kFloat32,
                               MemoryCategory::kActivations, "x");
      copy_to(t, random_floats(kRows * columns, seed));
      return t;
    };
    Tensor dx;
    Value y;
    {
      const Value x = test::leaf(tape, activation(kInputs, 6), dx);
      y = ops::linear(tape, x, weight.parameter, nullptr, nullptr, products);
    }
    outcome.numbers.push_back(to_floats(y.tensor));
    y.tensor = {};
    std::vector<test::OwnedParameter> moved;
    for (Parameter& parameter : as) {
      moved.emplace_back(memory, Shape{kRank + 2, kInputs}, random_floats(kNumel * 3 / 2, 8));
      if (!way.moves) continue;
      const TensorView value = moved.back().value.view().narrow(0, 0, kRank);
      copy_to(value, to_floats(parameter.value));
      parameter.value = value;
    }
    if (way.split) {
      tape.backward_input(y, activation(kOutputs, 7));
      for (Parameter& parameter : as) parameter.value.data = nullptr;
      for (Parameter& parameter : bs) parameter.value.data = nullptr;
      tape.backward_weights();
    } else {
      tape.backward(y, activation(kOutputs, 7));
    }
    outcome.numbers.push_back(to_floats(dx));
    for (const auto* parameters : {&as, &bs}) {
      for (const Parameter& parameter : *parameters) {
        EXPECT_TRUE(parameter.gradient_written);
        outcome.numbers.push_back(to_floats(parameter.gradient));
      }
    }
  });
  return outcome;
}

void expect_same_numbers(const Outcome& actual, const Outcome& expected) {
  ASSERT_EQ(actual.numbers.size(), expected.numbers.size());
  for (std::size_t i = 0; i < actual.numbers.size(); ++i) {
    const std::vector<float>& numbers = expected.numbers[i];
    test::expect_near(actual.numbers[i], Doubles(numbers.begin(), numbers.end()),
                      concat("tensor ", i));
  }
}

// A product has h and the sum, db, dh, da and dx, and two scalings; the layer has its own GEMM and
// its dx.
TEST_F(LowRankProducts, ShareGemmsWhereTheirMatricesAreNeighbours) {
  for (const bool accumulates : {false, true}) {
    SCOPED_TRACE(accumulates ? "a second micro-step" : "the first micro-step");
    const Outcome apart = run_three(memory_, *stream_, {.gap = 64, .accumulates = accumulates});
    const Outcome joined = run_three(memory_, *stream_, {.accumulates = accumulates});
    EXPECT_EQ(apart.calls, (Calls{.gemms = 2 + 3 * 6, .casts = 3 * 2}));
    EXPECT_EQ(joined.calls, (Calls{.gemms = 2 + 3 * 3 + 3, .casts = 2}));
    expect_same_numbers(joined, apart);
  }
}

TEST_F(LowRankProducts, OfAnotherScaleAreAGroupOfTheirOwn) {
  const Outcome apart = run_three(memory_, *stream_, {.gap = 64, .last_scale = 1.0F});
  const Outcome joined = run_three(memory_, *stream_, {.last_scale = 1.0F});
  EXPECT_EQ(apart.calls, (Calls{.gemms = 2 + 3 * 6, .casts = 2 * 2}));
  EXPECT_EQ(joined.calls, (Calls{.gemms = 2 + 3 * 3 + 2 * 3, .casts = 2}));
  expect_same_numbers(joined, apart);
}

TEST_F(LowRankProducts, HaveTheSameBitsInTwoParts) {
  for (const bool accumulates : {false, true}) {
    for (const std::int64_t gap : {0, 64}) {
      Way way{.gap = gap, .accumulates = accumulates};
      const Outcome whole = run_three(memory_, *stream_, way);
      way.split = true;
      const Outcome split = run_three(memory_, *stream_, way);
      EXPECT_EQ(split.numbers, whole.numbers);
      EXPECT_EQ(split.calls, whole.calls);
    }
  }
}

TEST_F(LowRankProducts, ReadMatricesThatWereNeighboursWhereTheyAre) {
  const Outcome moved = run_three(memory_, *stream_, {.moves = true});
  const Outcome joined = run_three(memory_, *stream_, {});
  EXPECT_EQ(moved.calls, (Calls{.gemms = 2 + 3 * 3 + 2 + 3, .casts = 2}));
  expect_same_numbers(moved, joined);
}

TEST_F(LowRankProducts, MustFitTheLayer) {
  test::OwnedParameter weight(memory_, {8, 6}, random_floats(48, 1));
  test::OwnedParameter a(memory_, {2, 6}, random_floats(12, 2));
  test::OwnedParameter b(memory_, {4, 2}, random_floats(8, 3));
  run_on(*stream_, [&] {
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({3, 6}, random_floats(18, 4)), false);
    const ops::LowRank product{.a = a.parameter, .b = b.parameter, .first_column = 5};
    try {
      ops::linear(tape, x, weight.parameter, nullptr, nullptr, {&product, 1});
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("columns 5 to 9 of 3 rows do not fit y"));
    }
  });
}

}  // namespace
}  // namespace tessera::low_rank_test
