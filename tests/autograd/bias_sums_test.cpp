#include <gtest/gtest.h>

#include <vector>

#include "autograd/op_check.h"

// Gradients of biases that the norm behind a linear layer adds up on its way to the gradient of the
// layer's output.
namespace tessera::bias_sums_test {
namespace {

using test::copy_to;
using test::random_floats;
using test::run_on;
using test::to_floats;
using Floats = std::vector<float>;

int norms_that_add = 0;
int passes_over_gradients = 0;

/// Kernels that count where gradients of biases come from.
const KernelTable& counting_kernels() {
  static const KernelTable table = [] {
    KernelTable counting = cpu_kernels();
    counting.layer_norm_backward = [](const LayerNormBackwardArgs& args, Stream& stream) {
      norms_that_add += args.dx_sums ? 1 : 0;
      cpu_kernels().layer_norm_backward(args, stream);
    };
    counting.bias_gradient = [](const BiasGradientArgs& args, Stream& stream) {
      ++passes_over_gradients;
      cpu_kernels().bias_gradient(args, stream);
    };
    return counting;
  }();
  return table;
}

/// How a linear layer with a bias is followed by a norm.
enum class Graph {
  kNorm,
  kResidual,  ///< what is normalised is also added to what follows, as in GPT-2's block
  kSum,       ///< something else reads it, too, and hands its gradient on after the norm has
  kFrozen,    ///< the bias is not trained
};

class BiasSums : public test::TapeTest {
 protected:
  struct How {
    Graph graph = Graph::kNorm;
    DType dtype = DType::kBFloat16;
    DType gradients = DType::kFloat32;
    DeviceKind device = DeviceKind::kCuda;
    bool splits = false;
    bool fp8 = false;
    int passes = 1;  ///< gradients of parameters add up
  };
  struct Results {
    Floats db, dw, dx;
    bool operator==(const Results&) const = default;
  };

  Tensor of(DType dtype, const Shape& shape, const Floats& values) {
    Tensor result = Tensor::empty(memory_, shape, dtype, MemoryCategory::kActivations, "test");
    copy_to(result, values);
    return result;
  }

  Results run(const How& how) {
    norms_that_add = passes_over_gradients = 0;
    Results results;
    run_on(*stream_, [&] {
      const std::int64_t c = 24, rows = 40;
      const auto vector = [&](unsigned seed) { return of(how.dtype, {c}, random_floats(c, seed)); };
      const Tensor w = of(how.dtype, {c, c}, random_floats(c * c, 1)), b = vector(2);
      const Tensor gain = vector(3), shift = vector(4);
      const Tensor dw = of(DType::kFloat32, w.shape(), Floats(576, 0.0F));
      const Tensor db = of(how.gradients, {c}, Floats(24, 0.0F));
      const Tensor d_gain = of(DType::kFloat32, {c}, Floats(24)),
                   d_shift = of(DType::kFloat32, {c}, Floats(24));
      Parameter weight{.value = w, .gradient = dw}, bias{.value = b, .gradient = db};
      Parameter gamma{.value = gain, .gradient = d_gain}, beta{.value = shift, .gradient = d_shift};
      if (how.fp8) weight.fp8 = {.forward = true, .input_gradient = true, .weight_gradient = true};
      if (how.graph == Graph::kFrozen) {
        bias.trainable = false;
        bias.gradient = {};
      }
      for (int pass = 0; pass < how.passes; ++pass) {
        Tape tape(memory_, *stream_, {}, {.device = how.device, .kernels = &counting_kernels()});
        Value x = tape.input(of(how.dtype, {rows, c}, random_floats(rows * c, 5)), true);
        Value y = ops::linear(tape, x, weight, &bias);
        Value out, other;
        if (how.graph == Graph::kSum) other = ops::gelu(tape, y);
        out = ops::layer_norm(tape, y, gamma, beta);
        if (how.graph == Graph::kSum) out = ops::add(tape, std::move(out), other);
        if (how.graph == Graph::kResidual) out = ops::add(tape, std::move(out), y);
        x = y = other = {};
        out.tensor = {};
        Tensor d_out = of(how.dtype, {rows, c}, random_floats(rows * c, 6));
        const Tensor dx = how.splits ? tape.backward_input(out, std::move(d_out))
                                     : tape.backward(out, std::move(d_out));
        if (how.splits) tape.backward_weights();
        results.dx = to_floats(dx);
      }
      results.dw = to_floats(dw);
      results.db = to_floats(db);
    });
    EXPECT_EQ(activations(), 0);
    return results;
  }
};

TEST_F(BiasSums, AreThoseOfAPassAndTheSameInTwoParts) {
  for (const Graph graph : {Graph::kNorm, Graph::kResidual}) {
    for (const DType gradients : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool fp8 : {false, true}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(graph) << to_string(gradients) << fp8);
        How how{.graph = graph, .gradients = gradients, .fp8 = fp8};
        const Results added = run(how);
        EXPECT_EQ(norms_that_add, 1);
        EXPECT_EQ(passes_over_gradients, 0);
        how.device = DeviceKind::kCpu;
        const Results passed = run(how);
        EXPECT_EQ(norms_that_add, 0);
        EXPECT_EQ(passes_over_gradients, 1);
        EXPECT_EQ(added, passed);  // the CPU's norm adds up by such a pass
      }
    }
  }
}

TEST_F(BiasSums, AddUpOverMicroStepsWithTheSameBitsInTwoParts) {
  for (const DType gradients : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool fp8 : {false, true}) {
      How how{.graph = Graph::kResidual, .gradients = gradients, .fp8 = fp8, .passes = 3};
      const Results whole = run(how);
      EXPECT_EQ(norms_that_add, 3);
      how.splits = true;
      EXPECT_EQ(run(how), whole);
      EXPECT_EQ(norms_that_add, 3);
      EXPECT_EQ(passes_over_gradients, 0);
      how.passes = 1;
      const Floats once = run(how).db;
      for (std::size_t i = 0; i < once.size(); ++i) {
        EXPECT_NEAR(whole.db[i], 3.0F * once[i], 0.02F * std::abs(once[i]) + 1e-5F);
      }
    }
  }
}

// Nobody reads the sums then, or they are not those of the whole gradient.
TEST_F(BiasSums, AreNotMadeOrNotReadWhereTheyAreNotTheGradient) {
  EXPECT_EQ(run({.graph = Graph::kSum}), run({.graph = Graph::kSum, .device = DeviceKind::kCpu}));
  run({.graph = Graph::kSum});
  EXPECT_EQ(passes_over_gradients, 1);
  run({.graph = Graph::kFrozen});
  EXPECT_EQ(norms_that_add, 0);
  EXPECT_EQ(passes_over_gradients, 0);
  run({.dtype = DType::kFloat32});
  EXPECT_EQ(norms_that_add, 0);
  EXPECT_EQ(passes_over_gradients, 1);
}

}  // namespace
}  // namespace tessera::bias_sums_test
