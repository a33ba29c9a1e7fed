// Operations of one's own, and last layers that return no losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tessera/autograd/ops.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer.h"

namespace tessera::own_operation_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using End = std::function<Value(Tape& tape, Value y)>;

class Dense : public Layer {
 public:
  Dense(const std::string& name, std::int64_t inputs, std::int64_t outputs, End end)
      : Layer(name, "Dense"), end_(std::move(end)) {
    parameters_ = {{name + ".weight", {outputs, inputs}, Initializer::normal(0.5F)}};
  }
  Value forward(Tape& tape, const Value& x, std::span<Parameter> p) const override {
    return end_(tape, ops::linear(tape, x, p[0], nullptr));
  }

 private:
  const End end_;
};

/// Of `outputs` numbers, or of a class among them.
class Numbers : public BatchSource {
 public:
  Numbers(std::int64_t outputs, bool classes) : outputs_(outputs), classes_(classes) {}
  Shape input_shape(std::int64_t n) const override { return {n, 3}; }
  DType input_dtype() const override { return DType::kFloat32; }
  Shape target_shape(std::int64_t n) const override {
    return classes_ ? Shape{n} : Shape{n, outputs_};
  }
  DType target_dtype() const override { return classes_ ? DType::kInt32 : DType::kFloat32; }
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    for (std::int64_t i = 0; i < inputs.numel(); ++i) {
      inputs.as<float>()[i] = static_cast<float>((first * 3 + i) % 7) / 7.0F;
    }
    for (std::int64_t i = 0; i < targets.numel(); ++i) {
      if (classes_) targets.as<std::int32_t>()[i] = 1;
      if (!classes_) targets.as<float>()[i] = 1.0F;
    }
    return n;
  }

 private:
  const std::int64_t outputs_;
  const bool classes_;
};

/// The error of a training; empty: it trains.
std::string error_of(const End& first, const End& last, bool classes) {
  Model model;
  model.layers.push_back(std::make_unique<Dense>("hidden", 3, 4, first));
  model.layers.push_back(std::make_unique<Dense>("output", 4, 2, last));
  const Numbers data(2, classes);
  try {
    Trainer(model, data, {.ranks = 2, .steps = 2, .micro_batch = 3}).train();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Value relu(Tape& tape, Value y) { return ops::relu(tape, std::move(y)); }
Value squared_error(Tape& tape, Value y) {
  return ops::squared_error(tape, std::move(y), tape.batch().targets);
}
Value cross_entropy(Tape& tape, Value y) {
  return ops::cross_entropy(tape, std::move(y), tape.batch().targets);
}

TEST(LastLayer, ThatReturnsNoLossesIsNamed) {
  EXPECT_EQ(error_of(relu, cross_entropy, true), "");
  EXPECT_EQ(error_of(relu, squared_error, false), "");
  for (const bool classes : {false, true}) {
    EXPECT_THAT(error_of(relu, relu, classes),
                AllOf(HasSubstr("layer 'output' comes last and returned 6 numbers, (3, 2)"),
                      HasSubstr("BatchSource::fill returned 3"), HasSubstr("ops::cross_entropy")));
  }
}

/// Doubles its input in a task of its own, which runs too late.
Value submits(Tape& tape, Value y) {
  Tensor twice = tape.activation(y.shape(), y.dtype(), "twice");
  tape.stream().submit({.name = "twice"}, [from = y.tensor, to = twice] {
    for (std::int64_t i = 0; i < to.numel(); ++i) to.as<float>()[i] = 2.0F * from.as<float>()[i];
  });
  return tape.output(std::move(twice), [id = y.id](Tape& t, Tensor gradient) {
    t.add_gradient(id, std::move(gradient));
  });
}

TEST(OwnOperation, ThatHandsNoGradientOnIsNamed) {
  const End none = [](Tape& tape, Value y) {
    return squared_error(tape, tape.output(std::move(y.tensor), [](Tape&, const Tensor&) {}));
  };
  const End cut = [](Tape& tape, Value y) {
    return squared_error(tape, Value{.tensor = std::move(y.tensor)});
  };
  for (const End& end : {none, cut}) {
    EXPECT_THAT(error_of(relu, end, false),
                AllOf(HasSubstr("backward of layer 'output' gave its input no gradient"),
                      HasSubstr("Tape::add_gradient")));
  }
}

TEST(OwnOperation, ThatSubmitsToTheTapesStreamIsToldTheRemedy) {
  const End end = [](Tape& tape, Value y) {
    return squared_error(tape, submits(tape, std::move(y)));
  };
  EXPECT_THAT(error_of(relu, end, false),
              AllOf(HasSubstr("Stream::submit was called by a task of the same stream"),
                    HasSubstr("compute at once, in the calling thread")));
}

}  // namespace
}  // namespace tessera::own_operation_test
