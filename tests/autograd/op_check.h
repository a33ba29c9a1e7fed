#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/model_run.h"
#include "tessera/autograd/ops.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"

namespace tessera::test {

using Doubles = std::vector<double>;

/// A CPU device with one stream, on which each test's body runs.
class TapeTest : public ::testing::Test {
 protected:
  TapeTest()
      : device_(make_cpu_device()),
        memory_(*device_),
        stream_(device_->create_stream({.name = "compute", .threads = kThreads})) {}

  static constexpr int kThreads = 2;

  std::int64_t activations() const { return memory_.current()[MemoryCategory::kActivations]; }

  Tensor tensor(const Shape& shape, std::span<const float> values,
                MemoryCategory category = MemoryCategory::kActivations) {
    Tensor result = Tensor::empty(memory_, shape, DType::kFloat32, category, "test");
    copy_to(result, values);
    return result;
  }
  Tensor ints(const Shape& shape, const std::vector<std::int32_t>& values) {
    Tensor result = Tensor::empty(memory_, shape, DType::kInt32, MemoryCategory::kData, "test");
    std::copy(values.begin(), values.end(), result.as<std::int32_t>());
    return result;
  }

  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
  std::array<std::int64_t, kRandomKeyWords> key_words_{3, 4};
  const TensorView key_{key_words_.data(), DType::kInt64, Shape{kRandomKeyWords}};
};

/// `count` fp32 numbers about as large as 1, the same for the same `seed`.
inline std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

/// A parameter with memory of its own. The gradient starts as NaN: whoever only adds is caught.
struct OwnedParameter {
  Tensor value, gradient;
  Parameter parameter;

  OwnedParameter(Memory& memory, const Shape& shape, std::span<const float> values)
      : value(Tensor::empty(memory, shape, DType::kFloat32, MemoryCategory::kParameters, "p")),
        gradient(Tensor::empty(memory, shape, DType::kFloat32, MemoryCategory::kGradients, "g")),
        parameter{.value = value, .gradient = gradient} {
    copy_to(value, values);
    const std::vector<float> nan(values.size(), std::numeric_limits<float>::quiet_NaN());
    copy_to(gradient, nan);
  }
};

/// A differentiable input of a tape that a test looks at: an operation without inputs.
inline Value leaf(Tape& tape, Tensor tensor, Tensor& gradient) {
  return tape.split_output(std::move(tensor),
                           [&gradient](Tape&, Tensor arrived) { gradient = std::move(arrived); });
}

/// A function of several tensors, as the tape computes it and as a double-precision oracle does.
struct OpCase {
  std::vector<Shape> inputs;
  std::vector<Shape> parameters;
  std::function<Value(Tape&, std::vector<Value>&, std::vector<Parameter*>&)> run;
  /// Arguments: the inputs, then the parameters.
  std::function<Doubles(const std::vector<Doubles>&)> oracle;
  Batch batch = {};
  TapeOptions options = {};
};

/// d sum(weights * oracle(arguments)) / d arguments[which], by central differences.
inline Doubles numeric_gradient(const OpCase& op, std::vector<Doubles> arguments, std::size_t which,
                                const std::vector<float>& weights) {
  constexpr double kStep = 1e-5;
  const auto objective = [&] {
    const Doubles y = op.oracle(arguments);
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(weights[i]) * y[i];
    return sum;
  };
  Doubles gradient(arguments[which].size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double& x = arguments[which][i];
    const double at = x;
    x = at + kStep;
    const double above = objective();
    x = at - kStep;
    gradient[i] = (above - objective()) / (2 * kStep);
    x = at;
  }
  return gradient;
}

inline void expect_near(const std::vector<float>& actual, const Doubles& expected,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(actual[i]), expected[i], 5e-6 * largest + 1e-9)
        << what << " at " << i;
  }
}

/// The tape's output against the oracle, and its gradients of every input and parameter against
/// central differences of the oracle, with and without selective recomputation; all activation
/// memory comes back. The two parts of backward give the bits of the whole, the first of them
/// without the memory of gradients, the second without parameters.
inline void check_op(Memory& memory, Stream& stream, const OpCase& op) {
  std::vector<std::vector<float>> floats;
  std::vector<Doubles> arguments;
  for (const auto* shapes : {&op.inputs, &op.parameters}) {
    for (const Shape& shape : *shapes) {
      floats.push_back(random_floats(shape.numel(), static_cast<unsigned>(floats.size()) + 1));
      arguments.emplace_back(floats.back().begin(), floats.back().end());
    }
  }
  const Doubles expected = op.oracle(arguments);
  const auto weights = random_floats(static_cast<std::int64_t>(expected.size()), 99);
  for (const bool selective : {false, true}) {
    std::vector<std::vector<float>> whole;
    for (const bool split : {false, true}) {
      const MemoryUse before = memory.current();
      run_on(stream, [&] {
        std::vector<OwnedParameter> owned;
        owned.reserve(op.parameters.size());
        std::vector<Parameter*> parameters;
        for (std::size_t i = 0; i < op.parameters.size(); ++i) {
          owned.emplace_back(memory, op.parameters[i], floats[op.inputs.size() + i]);
          parameters.push_back(&owned.back().parameter);
        }
        TapeOptions options = op.options;
        options.selective = selective;
        options.threads = 2;
        Tape tape(memory, stream, op.batch, options);
        std::vector<Tensor> gradients(op.inputs.size());
        Value y;
        {
          std::vector<Value> inputs;
          for (std::size_t i = 0; i < op.inputs.size(); ++i) {
            Tensor tensor = Tensor::empty(memory, op.inputs[i], DType::kFloat32,
                                          MemoryCategory::kActivations, "input");
            copy_to(tensor, floats[i]);
            inputs.push_back(leaf(tape, std::move(tensor), gradients[i]));
          }
          y = op.run(tape, inputs, parameters);
        }
        EXPECT_TRUE(tape.can_split());
        expect_near(to_floats(y.tensor), expected, "output");
        Tensor dy = Tensor::empty(memory, y.shape(), y.dtype(), MemoryCategory::kActivations, "dy");
        copy_to(dy, weights);
        y.tensor = {};
        if (split) {
          for (Parameter* parameter : parameters) parameter->gradient = {};
          tape.backward_input(y, std::move(dy));
          for (OwnedParameter& parameter : owned) {
            EXPECT_FALSE(parameter.parameter.gradient_written);
            parameter.parameter.gradient = parameter.gradient;
            parameter.parameter.value.data = nullptr;
          }
          tape.backward_weights();
        } else {
          tape.backward(y, std::move(dy));
        }
        for (std::size_t i = 0; i < floats.size(); ++i) {
          const bool input = i < gradients.size();
          const Tensor& gradient = input ? gradients[i] : owned[i - gradients.size()].gradient;
          ASSERT_TRUE(gradient) << "argument " << i;
          const std::string what =
              concat("gradient of argument ", i, selective ? ", selective" : "");
          if (split) {
            EXPECT_EQ(to_floats(gradient), whole.at(i)) << what << ", in two parts";
            continue;
          }
          whole.push_back(to_floats(gradient));
          expect_near(whole.back(), numeric_gradient(op, arguments, i, weights), what);
        }
      });
      EXPECT_EQ(memory.current(), before);
    }
  }
}

}  // namespace tessera::test
