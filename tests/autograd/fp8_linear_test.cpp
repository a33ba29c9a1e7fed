#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autograd/op_check.h"

// Linear layers whose products are in fp8, held to torchao's Float8Linear and to products of bf16
// whose operands have been rounded before.
namespace tessera::fp8_linear_test {
namespace {

using test::copy_to;
using test::random_floats;
using test::run_on;
using test::to_floats;
using ::testing::Each;
using Floats = std::vector<float>;

constexpr Fp8Products kAll{.forward = true, .input_gradient = true, .weight_gradient = true};

/// The numbers of make_fp8_linear_golden.py.
Floats golden_numbers(std::int64_t numel, std::uint64_t seed, float unit) {
  Floats values;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(numel); ++i) {
    const std::uint64_t hash = ((i + 1000 * seed + 1) * 2654435761U) & 0xffffffffU;
    values.push_back(static_cast<float>(static_cast<int>(hash >> 24) - 128) * unit);
  }
  return values;
}

Floats bfloat16_of(const std::string& digits) {
  Floats values;
  for (std::size_t i = 0; i < digits.size(); i += 4) {
    const auto low = std::stoul(digits.substr(i, 2), nullptr, 16);
    const auto high = std::stoul(digits.substr(i + 2, 2), nullptr, 16);
    bfloat16 number;
    number.bits = static_cast<std::uint16_t>(low | high << 8);
    values.push_back(static_cast<float>(number));
  }
  return values;
}

Floats rounded_to_bfloat16(Floats values) {
  for (float& value : values) value = static_cast<float>(bfloat16(value));
  return values;
}

/// A tensor rounded to fp8 by the definition.
Floats rounded_to_fp8(Floats values, Fp8Format format) {
  float amax = 0.0F;
  for (const float value : values) amax = std::max(amax, std::abs(value));
  const float scale = fp8_scale(std::bit_cast<std::uint32_t>(amax), format, Fp8Scales::kPowerOfTwo);
  for (float& value : values) value = fp8_value(fp8_code(value * scale, format), format) / scale;
  return values;
}

struct Sizes {
  std::int64_t rows, inputs, outputs;
};

struct Operands {
  Floats x, weight, dy, bias{}, residual{};
};

struct Results {
  Floats y, dx, dw, db;
  bool operator==(const Results&) const = default;
};

class Fp8Linear : public test::TapeTest {
 protected:
  Tensor bf16(const Shape& shape, const Floats& values) {
    Tensor result =
        Tensor::empty(memory_, shape, DType::kBFloat16, MemoryCategory::kActivations, "test");
    copy_to(result, values);
    return result;
  }
  Tensor gradient(const Shape& shape, DType dtype = DType::kFloat32) {
    return Tensor::empty(memory_, shape, dtype, MemoryCategory::kGradients, "gradient");
  }

  static TensorView words_of(std::vector<std::int32_t>& words) {
    return TensorView(words.data(), DType::kInt32, Shape{kFp8Tensors});
  }

  struct How {
    Fp8Products products = kAll;
    TapeOptions tape{};
    bool splits = false;
    bool remakes_input = false;  ///< the input is what GELU gives, and is dropped
    int passes = 1;              ///< gradients of parameters add up
    DType gradients = DType::kFloat32;
    /// With delayed scaling: the words that scales are made of, by Fp8Tensor, and those that are
    /// taken.
    std::vector<std::int32_t>* scale_words = nullptr;
    std::vector<std::int32_t>* maxima = nullptr;
  };

  Results run(const Sizes& s, const Operands& o, const How& how) {
    Results results;
    run_on(*stream_, [&] {
      const Tensor w = bf16({s.outputs, s.inputs}, o.weight);
      const Tensor b = bf16(
          {s.outputs},
          o.bias.empty() ? Floats(o.weight.size() / static_cast<std::size_t>(s.inputs)) : o.bias);
      const Tensor dw = gradient(w.shape(), how.gradients), db = gradient(b.shape());
      Parameter weight{.value = w, .gradient = dw, .fp8 = how.products};
      Parameter bias{.value = b, .gradient = db};
      if (how.scale_words != nullptr) weight.scale_words = words_of(*how.scale_words);
      if (how.maxima != nullptr) weight.maxima = words_of(*how.maxima);
      for (int pass = 0; pass < how.passes; ++pass) {
        Tape tape(memory_, *stream_, {}, how.tape);
        Value x = tape.input(bf16({s.rows, s.inputs}, o.x), true);
        const Value root = {.tensor = {}, .id = x.id};
        if (how.remakes_input) x = ops::gelu(tape, std::move(x));
        Value residual;
        if (!o.residual.empty()) residual.tensor = bf16({s.rows, s.outputs}, o.residual);
        Value y = ops::linear(tape, x, weight, &bias, o.residual.empty() ? nullptr : &residual);
        results.y = to_floats(y.tensor);
        if (!how.tape.record) return;
        x.tensor = {};
        y.tensor = {};
        Tensor dy = bf16({s.rows, s.outputs}, o.dy);
        const Tensor dx =
            how.splits ? tape.backward_input(y, std::move(dy)) : tape.backward(y, std::move(dy));
        if (how.splits) tape.backward_weights();
        results.dx = to_floats(dx);
      }
      results.dw = to_floats(dw);
      results.db = to_floats(db);
    });
    EXPECT_EQ(activations(), 0);
    return results;
  }
  Results run(const Sizes& s, const Operands& o) { return run(s, o, How()); }
};

constexpr Sizes kSizes{.rows = 24, .inputs = 40, .outputs = 16};

Operands random_operands() {
  return {.x = rounded_to_bfloat16(random_floats(24 * 40, 1)),
          .weight = rounded_to_bfloat16(random_floats(16 * 40, 2)),
          .dy = rounded_to_bfloat16(random_floats(24 * 16, 3)),
          .bias = rounded_to_bfloat16(random_floats(16, 4)),
          .residual = rounded_to_bfloat16(random_floats(24 * 16, 5))};
}

/// Within a unit in the last place of bf16.
void expect_within_an_ulp(const Floats& actual, const Floats& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i]), 0x1p-7F * std::abs(expected[i]))
        << what << " " << i << ": " << actual[i] << " and " << expected[i];
  }
}

TEST_F(Fp8Linear, HasTheBitsOfTorchao) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/autograd/golden/fp8_linear.json");
  const auto cases = nlohmann::json::parse(file).at("cases");
  ASSERT_EQ(cases.size(), 12U);
  for (const nlohmann::json& golden : cases) {
    const auto number = [&](const char* name) { return golden.at(name).get<std::int64_t>(); };
    const Sizes s{number("tokens"), number("inputs"), number("outputs")};
    const bool exact = golden.at("exact").get<bool>();
    How how;
    if (exact) how.products.scales = Fp8Scales::kExact;
    if (!golden.at("hybrid").get<bool>()) how.products.gradient_format = Fp8Format::kE4M3;
    SCOPED_TRACE(concat(s.rows, " x ", s.inputs, " x ", s.outputs, exact ? ", exact" : ""));
    const Results results = run(s,
                                {.x = golden_numbers(s.rows * s.inputs, 1, 0x1p-6F),
                                 .weight = golden_numbers(s.outputs * s.inputs, 2, 0x1p-10F),
                                 .dy = golden_numbers(s.rows * s.outputs, 4, 0x1p-14F)},
                                how);
    const auto expected = [&](const char* name) {
      return bfloat16_of(golden.at(name).get<std::string>());
    };
    if (exact) {
      expect_within_an_ulp(results.y, expected("y"), "y");
      expect_within_an_ulp(results.dx, expected("dx"), "dx");
      expect_within_an_ulp(rounded_to_bfloat16(results.dw), expected("dw"), "dw");
    } else {
      EXPECT_EQ(results.y, expected("y"));
      EXPECT_EQ(results.dx, expected("dx"));
      EXPECT_EQ(rounded_to_bfloat16(results.dw), expected("dw"));
    }
    EXPECT_EQ(rounded_to_bfloat16(results.db), expected("db"));
  }
}

// Each product takes fp8 or bf16 by itself.
TEST_F(Fp8Linear, IsTheLinearLayerOfRoundedOperands) {
  const Operands o = random_operands();
  const How bf16_only{.products = {}};
  const auto rounded = [&](bool x, bool weight, bool dy) {
    Operands r = o;
    if (x) r.x = rounded_to_fp8(r.x, Fp8Format::kE4M3);
    if (weight) r.weight = rounded_to_fp8(r.weight, Fp8Format::kE4M3);
    if (dy) r.dy = rounded_to_fp8(r.dy, Fp8Format::kE5M2);
    return run(kSizes, r, bf16_only);
  };
  const Results plain = rounded(false, false, false), inputs = rounded(true, true, false),
                outputs = rounded(false, true, true), both = rounded(true, false, true);
  ASSERT_NE(inputs.y, plain.y);
  ASSERT_NE(outputs.dx, plain.dx);
  ASSERT_NE(both.dw, plain.dw);
  for (int set = 0; set < 8; ++set) {
    const Fp8Products products{.forward = (set & 1) != 0,
                               .input_gradient = (set & 2) != 0,
                               .weight_gradient = (set & 4) != 0};
    const Results results = run(kSizes, o, {.products = products});
    EXPECT_EQ(results.y, products.forward ? inputs.y : plain.y) << set;
    EXPECT_EQ(results.dx, products.input_gradient ? outputs.dx : plain.dx) << set;
    EXPECT_EQ(results.dw, products.weight_gradient ? both.dw : plain.dw) << set;
    EXPECT_EQ(results.db, plain.db) << set << ": column sums are of what came, not of codes";
  }
}

TEST_F(Fp8Linear, HasTheSameBitsInTwoPartsAndWithAnInputThatIsRemade) {
  const Operands o = random_operands();
  for (const Fp8Scales scales : {Fp8Scales::kPowerOfTwo, Fp8Scales::kExact}) {
    for (int set = 1; set < 8; ++set) {
      const Fp8Products products{.forward = (set & 1) != 0,
                                 .input_gradient = (set & 2) != 0,
                                 .weight_gradient = (set & 4) != 0,
                                 .scales = scales};
      for (const bool remakes : {false, true}) {
        const Results whole = run(kSizes, o, {.products = products, .remakes_input = remakes});
        for (const bool selective : {false, true}) {
          for (const bool splits : {false, true}) {
            EXPECT_EQ(run(kSizes, o,
                          {.products = products,
                           .tape = {.selective = selective},
                           .splits = splits,
                           .remakes_input = remakes}),
                      whole)
                << set << " selective " << selective << " split " << splits;
          }
        }
      }
    }
  }
}

/// The word of a tensor's largest magnitude.
std::int32_t amax_of(const Floats& values) {
  float amax = 0.0F;
  for (const float value : values) amax = std::max(amax, std::abs(value));
  return std::bit_cast<std::int32_t>(amax);
}

// By Fp8Tensor.
TEST_F(Fp8Linear, DelayedScalingTakesGivenScalesAndTellsTheMagnitudes) {
  const Operands o = random_operands();
  const std::vector<std::int32_t> own{amax_of(o.weight), amax_of(o.x), amax_of(o.dy)};
  for (int set = 1; set < 8; ++set) {
    const Fp8Products products{.forward = (set & 1) != 0,
                               .input_gradient = (set & 2) != 0,
                               .weight_gradient = (set & 4) != 0};
    SCOPED_TRACE(set);
    std::vector<std::int32_t> scale_words = own, maxima(kFp8Tensors);
    const How how{.products = products, .scale_words = &scale_words, .maxima = &maxima};
    EXPECT_EQ(run(kSizes, o, how), run(kSizes, o, {.products = products}))
        << "the tensors' own magnitudes";
    EXPECT_EQ(maxima[0], products.forward || products.input_gradient ? own[0] : 0);
    EXPECT_EQ(maxima[1], products.forward || products.weight_gradient ? own[1] : 0);
    EXPECT_EQ(maxima[2], products.input_gradient || products.weight_gradient ? own[2] : 0);
  }
  // A smaller scale rounds otherwise, a larger one saturates: numbers stay finite.
  const Results usual = run(kSizes, o);
  for (const float factor : {64.0F, 0x1p-6F}) {
    std::vector<std::int32_t> words;
    for (const std::int32_t word : own) {
      words.push_back(std::bit_cast<std::int32_t>(std::bit_cast<float>(word) * factor));
    }
    const Results other = run(kSizes, o, {.scale_words = &words});
    EXPECT_NE(other.y, usual.y);
    for (const float value : other.y) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_F(Fp8Linear, AddsUpGradients) {
  const Operands o = random_operands();
  for (const Fp8Scales scales : {Fp8Scales::kPowerOfTwo, Fp8Scales::kExact}) {
    How how;
    how.products.scales = scales;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      how.gradients = dtype;
      how.passes = 1;
      Floats expected = run(kSizes, o, how).dw;
      for (float& value : expected) value *= 2.0F;
      how.passes = 2;
      const Floats sums = run(kSizes, o, how).dw;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        ASSERT_NEAR(sums[i], expected[i],
                    (dtype == DType::kFloat32 ? 1e-5F : 0.02F) * (1.0F + std::abs(expected[i])));
      }
    }
  }
}

// A forward pass that is not for training has no products in fp8.
TEST_F(Fp8Linear, IsInBf16WhereNothingIsTrained) {
  const Operands o = random_operands();
  const Floats plain = run(kSizes, o, {.products = {}}).y;
  EXPECT_EQ(run(kSizes, o, {.tape = {.record = false, .training = false}}).y, plain);
  EXPECT_NE(run(kSizes, o, {.tape = {.record = false}}).y, plain);
}

TEST_F(Fp8Linear, KeepsAByteOfAnElementOfItsInput) {
  run_on(*stream_, [&] {
    const Tensor w = bf16({32, 64}, random_floats(2048, 1)), dw = gradient({32, 64});
    for (const bool is_trained : {true, false}) {
      Parameter weight{.value = w, .gradient = dw, .trainable = is_trained, .fp8 = kAll};
      if (!is_trained) weight.gradient = {};
      Tape tape(memory_, *stream_, {}, {});
      const std::int64_t before = activations();
      Value x = tape.input(bf16({128, 64}, random_floats(8192, 2)), true);
      Value y = ops::linear(tape, x, weight, nullptr);
      x.tensor = {};
      const std::int64_t kept = activations() - before - y.tensor.bytes();
      EXPECT_EQ(kept, is_trained ? 128 * 64 + 64 : 0);  // codes, and a line for the magnitude
      y.tensor = {};
      Tensor dy = bf16({128, 32}, random_floats(4096, 3));
      const Tensor dx = tape.backward(y, std::move(dy));
      EXPECT_EQ(activations() - before, dx.bytes());
    }
  });
}

// The norm is NaN then, and a loss scaler skips the step.
TEST_F(Fp8Linear, GivesNanWhereAnOperandIsNotFinite) {
  Operands o = random_operands();
  o.x[7] = std::numeric_limits<float>::infinity();
  const Results of_x = run(kSizes, o);
  const auto is_nan = ::testing::IsNan();
  EXPECT_THAT(of_x.y, Each(is_nan));
  EXPECT_THAT(of_x.dw, Each(is_nan));
  o = random_operands();
  o.dy[7] = -std::numeric_limits<float>::infinity();
  const Results of_dy = run(kSizes, o);
  EXPECT_THAT(of_dy.dx, Each(is_nan));
  EXPECT_THAT(of_dy.dw, Each(is_nan));
}

TEST_F(Fp8Linear, TakesZerosAndNoRows) {
  const Operands zeros{.x = Floats(24 * 40), .weight = Floats(16 * 40), .dy = Floats(24 * 16)};
  const Results results = run(kSizes, zeros);
  EXPECT_THAT(results.y, Each(0.0F));
  EXPECT_THAT(results.dx, Each(0.0F));
  EXPECT_THAT(results.dw, Each(0.0F));
  const Results none = run({.rows = 0, .inputs = 40, .outputs = 16},
                           {.x = {}, .weight = Floats(640, 1.0F), .dy = {}});
  EXPECT_THAT(none.dw, Each(0.0F));
}

TEST_F(Fp8Linear, RefusesOtherPrecisions) {
  run_on(*stream_, [&] {
    test::OwnedParameter w(memory_, {4, 4}, random_floats(16, 1));
    w.parameter.fp8 = kAll;
    Tape tape(memory_, *stream_, {}, {});
    const Value x = tape.input(tensor({2, 4}, random_floats(8, 2)), true);
    try {
      ops::linear(tape, x, w.parameter, nullptr);
      ADD_FAILURE() << "fp32 was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("take bf16"));
    }
  });
}

// GELU lies between two layers, each with its own products.
TEST_F(Fp8Linear, MakesAnMlpOfThreeOperations) {
  const auto outcome = [&](bool whole, bool selective) {
    std::vector<Floats> all;
    run_on(*stream_, [&] {
      const Tensor w1 = bf16({48, 16}, random_floats(768, 1)),
                   w2 = bf16({16, 48}, random_floats(768, 2));
      const Tensor dw1 = gradient({48, 16}), dw2 = gradient({16, 48});
      Parameter first{.value = w1, .gradient = dw1, .fp8 = kAll};
      Parameter second{.value = w2, .gradient = dw2, .fp8 = kAll};
      Tape tape(memory_, *stream_, {}, {.selective = selective});
      Value x = tape.input(bf16({8, 16}, random_floats(128, 3)), true);
      const Value residual = x;
      Value y;
      if (whole) {
        y = ops::mlp(tape, std::move(x), {.weight = first, .projection_weight = second}, &residual);
      } else {
        x = ops::gelu(tape, ops::linear(tape, x, first, nullptr));
        y = ops::linear(tape, x, second, nullptr, &residual);
      }
      all.push_back(to_floats(y.tensor));
      all.push_back(to_floats(tape.backward(y, bf16({8, 16}, random_floats(128, 4)))));
      all.push_back(to_floats(dw1));
      all.push_back(to_floats(dw2));
    });
    return all;
  };
  const auto expected = outcome(false, false);
  EXPECT_EQ(outcome(true, false), expected);
  EXPECT_EQ(outcome(true, true), expected);
}

int amax_calls = 0;

/// Kernels that count passes which look for a magnitude.
const KernelTable& counting_kernels() {
  static const KernelTable table = [] {
    KernelTable counting = cpu_kernels();
    counting.amax = [](const AmaxArgs& args, Stream& stream) {
      ++amax_calls;
      cpu_kernels().amax(args, stream);
    };
    return counting;
  }();
  return table;
}

// A norm, the activation between two layers and their gradients leave the magnitudes of what they
// write; other operands are looked through.
TEST_F(Fp8Linear, TakesMagnitudesThatKernelsHaveLeft) {
  enum Activation { kGelu, kSwiglu };
  struct Outcome {
    std::vector<Floats> all;
    int passes = 0;
  };
  const auto outcome = [&](Activation activation, bool leaves, bool selective, bool splits) {
    Outcome result;
    amax_calls = 0;
    run_on(*stream_, [&] {
      const std::int64_t inner = activation == kSwiglu ? 24 : 48;
      const Tensor w1 = bf16({48, 16}, random_floats(768, 1)),
                   w2 = bf16({16, inner}, random_floats(16 * inner, 2));
      const Tensor w0 = bf16({16, 16}, random_floats(256, 5)), dw0 = gradient(w0.shape());
      const Tensor dw1 = gradient({48, 16}), dw2 = gradient(w2.shape());
      Parameter before{.value = w0, .gradient = dw0, .fp8 = kAll};
      const Tensor gain = bf16({16}, Floats(16, 1.5F)), d_gain = gradient({16});
      Parameter first{.value = w1, .gradient = dw1, .fp8 = kAll};
      Parameter second{.value = w2, .gradient = dw2, .fp8 = kAll};
      Parameter gamma{.value = gain, .gradient = d_gain};
      Tape tape(
          memory_, *stream_, {},
          {.selective = selective, .leaves_magnitudes = leaves, .kernels = &counting_kernels()});
      Value x = tape.input(bf16({8, 16}, random_floats(128, 3)), true);
      Value sum = ops::linear(tape, x, before, nullptr, &x);
      Value y = ops::rms_norm(tape, sum, gamma, 1e-5F);
      y = ops::linear(tape, y, first, nullptr);
      y = activation == kGelu ? ops::gelu(tape, std::move(y)) : ops::swiglu(tape, std::move(y));
      y = ops::linear(tape, y, second, nullptr, &sum);
      result.all.push_back(to_floats(y.tensor));
      Tensor dy = bf16({8, 16}, random_floats(128, 4));
      x = sum = {};
      y.tensor = {};
      const Tensor dx =
          splits ? tape.backward_input(y, std::move(dy)) : tape.backward(y, std::move(dy));
      if (splits) tape.backward_weights();
      for (const Tensor& tensor : {dx, dw0, dw1, dw2, d_gain})
        result.all.push_back(to_floats(tensor));
    });
    EXPECT_EQ(activations(), 0);
    result.passes = amax_calls;
    return result;
  };
  for (const Activation activation : {kGelu, kSwiglu}) {
    for (const bool selective : {false, true}) {
      for (const bool splits : {false, true}) {
        SCOPED_TRACE(testing::Message() << activation << selective << splits);
        const Outcome plain = outcome(activation, false, selective, splits);
        const Outcome left = outcome(activation, true, selective, splits);
        EXPECT_EQ(left.all, plain.all);
        // Two operands of forward and two gradients. What is dropped and computed again is looked
        // through twice otherwise, and so are gradients in a backward of two parts.
        EXPECT_EQ(plain.passes - left.passes, 4 + (selective ? 1 : 0) + (splits ? 2 : 0));
      }
    }
  }
}

// A gradient that two operations hand on is not what either of them has left the magnitude of.
TEST_F(Fp8Linear, LooksThroughGradientsThatAreSums) {
  std::vector<Floats> all[2];
  for (const bool leaves : {false, true}) {
    run_on(*stream_, [&] {
      const Tensor w = bf16({16, 16}, random_floats(256, 1)), dw = gradient({16, 16});
      Parameter weight{.value = w, .gradient = dw, .fp8 = kAll};
      Tape tape(memory_, *stream_, {},
                {.leaves_magnitudes = leaves, .kernels = &counting_kernels()});
      const Value x = tape.input(bf16({8, 16}, random_floats(128, 3)), true);
      const Value y = ops::linear(tape, x, weight, nullptr);
      const Value sum = ops::add(tape, ops::gelu(tape, y), ops::gelu(tape, y));
      amax_calls = 0;
      const Tensor dx = tape.backward(sum, bf16({8, 16}, random_floats(128, 4)));
      EXPECT_EQ(amax_calls, 2);  // of dy and of the weight
      for (const Tensor& tensor : {dx, dw}) all[leaves ? 1 : 0].push_back(to_floats(tensor));
    });
  }
  EXPECT_EQ(all[0], all[1]);
}

}  // namespace
}  // namespace tessera::fp8_linear_test
