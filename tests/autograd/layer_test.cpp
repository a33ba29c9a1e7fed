#include "tessera/autograd/layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/error.h"

namespace tessera::layer_test {
namespace {

class NamedLayer : public Layer {
 public:
  NamedLayer(std::string name, std::vector<ParameterSpec> parameters,
             std::vector<std::string> tied = {})
      : Layer(std::move(name), "Named") {
    parameters_ = std::move(parameters);
    tied_parameters_ = std::move(tied);
  }
  Value forward(Tape&, const Value& input, std::span<Parameter>) const override { return input; }
};

ParameterSpec spec(const std::string& name, const Shape& shape = {1}) {
  return {.name = name, .shape = shape, .initializer = {}};
}

std::string refusal(const Model& model) {
  try {
    check(model);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

template <typename... Layers>
Model model_of(Layers... layers) {
  Model model;
  model.name = "m";
  (model.layers.push_back(std::make_unique<NamedLayer>(std::move(layers))), ...);
  return model;
}

TEST(Model, ParametersAreCountedOnce) {
  const Model model = model_of(NamedLayer("a", {spec("w", {3, 5}), spec("b", {})}),
                               NamedLayer("b", {spec("v", {7})}, {"w"}));
  check(model);
  EXPECT_EQ(parameter_count(model), 15 + 1 + 7);
  EXPECT_EQ(parameter_count(model_of(NamedLayer("a", {}))), 0);
}

TEST(Model, CheckNamesWhatIsWrong) {
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal(Model{}), HasSubstr("no layers"));
  EXPECT_THAT(refusal(model_of(NamedLayer("a", {}), NamedLayer("a", {}))),
              HasSubstr("two layers named 'a'"));
  EXPECT_THAT(refusal(model_of(NamedLayer("a", {spec("w")}), NamedLayer("b", {spec("w")}))),
              HasSubstr("two parameters named 'w'"));
  EXPECT_THAT(refusal(model_of(NamedLayer("a", {spec("w")}), NamedLayer("b", {}, {"v"}))),
              HasSubstr("tied to 'v'"));
  EXPECT_THAT(refusal(model_of(NamedLayer("a", {spec("w")}, {"w"}))), HasSubstr("tied to 'w'"));
  EXPECT_EQ(refusal(model_of(NamedLayer("a", {}, {"w"}), NamedLayer("b", {spec("w")}))),
            "no error");  // the tied parameter may come later
}

}  // namespace
}  // namespace tessera::layer_test
