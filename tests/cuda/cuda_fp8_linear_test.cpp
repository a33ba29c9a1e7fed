#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "cuda/cuda_run.h"
#include "fake_cuda.h"
#include "support/model_run.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/memory.h"

// Linear layers in fp8 on an emulated GPU, whose products of codes are those of the stand-in of
// cuBLASLt, beside the same layers on the CPU, where codes are decoded. Memory of the emulated GPU
// is the host's.
namespace tessera::cuda_fp8_linear_test {
namespace {

using test::copy_to;
using test::run_on;
using test::to_floats;
using Floats = std::vector<float>;

struct Sizes {
  std::int64_t rows, inputs, outputs;
};
constexpr Sizes kOfCodes{.rows = 32, .inputs = 48, .outputs = 64};

/// Integers up to 7, which both formats have, times `unit`: sums of their products are exact.
Floats integers(std::int64_t numel, unsigned seed, float unit) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> any(-7, 7);
  Floats values(static_cast<std::size_t>(numel));
  for (float& value : values) value = static_cast<float>(any(generator)) * unit;
  return values;
}

Floats normal(std::int64_t numel, unsigned seed, float spread) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> any(0.5F * spread, spread);
  Floats values(static_cast<std::size_t>(numel));
  for (float& value : values) value = static_cast<float>(bfloat16(any(generator)));
  return values;
}

struct Operands {
  Floats x, weight, dy, bias;
};
Operands exact_operands(const Sizes& s) {
  return {integers(s.rows * s.inputs, 1, 1.0F), integers(s.inputs * s.outputs, 2, 0x1p-4F),
          integers(s.rows * s.outputs, 3, 0x1p-6F), integers(s.outputs, 4, 0x1p-2F)};
}
Operands random_operands(const Sizes& s) {
  return {normal(s.rows * s.inputs, 1, 1.0F), normal(s.inputs * s.outputs, 2, 0.02F),
          normal(s.rows * s.outputs, 3, 1e-3F), normal(s.outputs, 4, 0.1F)};
}

struct How {
  Fp8Products products{.forward = true, .input_gradient = true, .weight_gradient = true};
  TapeOptions tape{};
  bool splits = false, remakes_input = false, gathers_codes = false;
  int passes = 1;  ///< gradients of parameters add up
};

struct Results {
  Floats y, dx, dw, db;
  bool operator==(const Results&) const = default;
};

class Bench {
 public:
  explicit Bench(std::unique_ptr<Device> device)
      : device_(std::move(device)),
        memory_(*device_),
        stream_(device_->create_stream({.name = "test"})) {}

  Results run(const Sizes& s, const Operands& o, How how) {
    how.tape.device = device_->kind();
    const Tensor w = tensor({s.outputs, s.inputs}, o.weight), b = tensor({s.outputs}, o.bias);
    const Tensor dw = empty(w.shape(), DType::kFloat32), db = empty(b.shape(), DType::kFloat32);
    const Tensor codes = empty(w.shape(), DType::kUInt8), amax = empty({1}, DType::kInt32);
    Parameter weight{.value = w, .gradient = dw, .fp8 = how.products};
    Parameter bias{.value = b, .gradient = db};
    const KernelTable& kernels = kernels_for(*device_);
    Tensor y, dx;
    if (how.gathers_codes) {
      run_on(*stream_, [&] {
        kernels.amax({.x = w, .amax = amax}, *stream_);
        kernels.fp8_encode({.x = w, .amax = amax, .codes = codes, .scales = how.products.scales},
                           *stream_);
      });
      weight.codes = codes;
      weight.amax = amax;
      weight.value.data = nullptr;
    }
    for (int pass = 0; pass < how.passes; ++pass) {
      const Tensor input = tensor({s.rows, s.inputs}, o.x);
      Tensor dy = tensor({s.rows, s.outputs}, o.dy);
      run_on(*stream_, [&] {
        Tape tape(memory_, *stream_, {}, how.tape);
        Value x = tape.input(input, true);
        if (how.remakes_input) x = ops::gelu(tape, std::move(x));
        Value out = ops::linear(tape, x, weight, &bias);
        y = out.tensor;
        x.tensor = {};
        out.tensor = {};
        dx = how.splits ? tape.backward_input(out, std::move(dy))
                        : tape.backward(out, std::move(dy));
        if (how.splits) tape.backward_weights();
      });
    }
    return {to_floats(y), to_floats(dx), to_floats(dw), to_floats(db)};
  }

 private:
  Tensor empty(const Shape& shape, DType dtype) {
    return Tensor::empty(memory_, shape, dtype, MemoryCategory::kActivations, "test");
  }
  Tensor tensor(const Shape& shape, const Floats& values) {
    Tensor result = empty(shape, DType::kBFloat16);
    copy_to(result, values);
    return result;
  }

  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
};

class CudaFp8Linear : public testing::Test {
 protected:
  Bench cpu_{make_cpu_device()}, gpu_{make_cuda_device()};
};

TEST_F(CudaFp8Linear, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  // Products of codes; a weight gradient of decoded operands; all products of decoded operands.
  for (const Sizes& sizes : {kOfCodes, Sizes{24, 48, 64}, Sizes{32, 40, 64}, Sizes{32, 48, 24}}) {
    SCOPED_TRACE(concat(sizes.rows, " rows, ", sizes.inputs, " to ", sizes.outputs));
    const Operands operands = exact_operands(sizes);
    const Results expected = cpu_.run(sizes, operands, {});
    EXPECT_EQ(gpu_.run(sizes, operands, {}), expected);
    EXPECT_EQ(gpu_.run(sizes, operands, {.splits = true}), expected);
    EXPECT_EQ(gpu_.run(sizes, operands, {.gathers_codes = true}), expected);
    EXPECT_EQ(gpu_.run(sizes, operands, {.splits = true, .gathers_codes = true, .passes = 2}),
              cpu_.run(sizes, operands, {.passes = 2}));
    for (int subset = 1; subset < 7; ++subset) {
      const How some{.products = {.forward = (subset & 1) != 0,
                                  .input_gradient = (subset & 2) != 0,
                                  .weight_gradient = (subset & 4) != 0,
                                  .gradient_format = Fp8Format::kE4M3}};
      EXPECT_EQ(gpu_.run(sizes, operands, some), cpu_.run(sizes, operands, some)) << subset;
    }
  }
}

void expect_near(const Floats& actual, const Floats& expected, double tolerance, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0.0, worst = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    worst = std::max(worst, std::abs(static_cast<double>(actual[i] - expected[i])));
  }
  EXPECT_LE(worst, tolerance * largest) << what;
}

TEST_F(CudaFp8Linear, IsNearTheCpuWithBothRulesOfScales) {
  const Operands operands = random_operands(kOfCodes);
  for (const Fp8Scales scales : {Fp8Scales::kPowerOfTwo, Fp8Scales::kExact}) {
    How how;
    how.products.scales = scales;
    for (const bool remakes : {false, true}) {
      how.remakes_input = remakes;
      how.tape.selective = remakes;
      const Results expected = cpu_.run(kOfCodes, operands, how);
      const Results actual = gpu_.run(kOfCodes, operands, how);
      expect_near(actual.y, expected.y, 0x1p-8, "y");
      // A code of the input may be the next one where GELU rounds differently.
      expect_near(actual.dx, expected.dx, remakes ? 0x1p-6 : 0x1p-8, "dx");
      expect_near(actual.dw, expected.dw, remakes ? 0x1p-5 : 0x1p-16, "dw");
      expect_near(actual.db, expected.db, 0x1p-20, "db");
    }
  }
}

TEST_F(CudaFp8Linear, FastAccumulationChangesForwardProductsOfCodesAlone) {
  const Operands operands = random_operands(kOfCodes);
  How fast;
  fast.tape.cuda_kernels.fp8_fast_accumulation = true;
  const Results accurate = gpu_.run(kOfCodes, operands, {}),
                shortened = gpu_.run(kOfCodes, operands, fast);
  EXPECT_NE(shortened.y, accurate.y);
  EXPECT_EQ(shortened.dx, accurate.dx);
  EXPECT_EQ(shortened.dw, accurate.dw);
  // Without tensor cores for fp8 operands are decoded, as on the CPU.
  fast.tape.cuda_kernels.fp8_gemms = false;
  How decoded;
  decoded.tape.cuda_kernels.fp8_gemms = false;
  EXPECT_EQ(gpu_.run(kOfCodes, operands, fast), gpu_.run(kOfCodes, operands, decoded));
}

TEST(CudaFp8OnAnOlderGpu, OperandsAreDecodedAndANoteSaysSo) {
  const Model model = test::counting_gpt();
  const test::CountingTokens data;
  TrainerOptions options = test::cuda_options("full_shard", 2);
  options.precision = DType::kBFloat16;
  options.fp8.enabled = true;
  options.micro_batch = 2;
  const test::Trained of_codes = test::run(model, options);
  fake_cuda::configure({.major = 8, .minor = 0});
  const test::Trained decoded = test::run(model, options);
  options.steps = 1;
  const auto notes = test::notes_of(Trainer(model, data, options));
  fake_cuda::configure({});
  EXPECT_THAT(notes, testing::Contains(testing::HasSubstr("no tensor cores for fp8")));
  EXPECT_EQ(decoded.summary.measured_memory, decoded.summary.predicted_memory);
  EXPECT_NEAR(decoded.losses.back(), of_codes.losses.back(), 2e-2 * of_codes.losses.back());
}

}  // namespace
}  // namespace tessera::cuda_fp8_linear_test
