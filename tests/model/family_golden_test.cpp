#include <gtest/gtest.h>

#include <cmath>

#include "support/golden_run.h"
#include "support/model_run.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/input_file.h"
#include "tessera/model/hugging_face.h"

// Small random models of every family against what transformers computes with the same folders.
namespace tessera::family_golden_test {
namespace {

using namespace test;

constexpr const char* kFamilies = TESSERA_SOURCE_DIR "/tests/model/golden/families/";

const std::vector<std::string> kCases{"llama",        "llama3", "mistral", "qwen2",
                                      "qwen2_window", "qwen3",  "phi3",    "phi3_longrope"};

InitialValues values_in(const PretrainedGpt& folder, const Model& model) {
  InitialValues values;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      auto& own = values[spec.name];
      own.resize(static_cast<std::size_t>(spec.shape.numel()));
      folder.read(spec.name, own);
    }
  }
  return values;
}

/// The tensors of a folder's model.safetensors, all fp32.
InitialValues stored_tensors(const std::string& folder) {
  const InputFile file(folder + "/model.safetensors");
  InitialValues tensors;
  for (const SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
    auto& values = tensors[entry.name];
    values.resize(static_cast<std::size_t>(entry.shape.numel()));
    file.read(entry.begin, std::as_writable_bytes(std::span(values)));
  }
  return tensors;
}

class FamilyGolden : public ::testing::TestWithParam<std::string> {
 protected:
  FamilyGolden()
      : golden_(kFamilies + GetParam()),
        folder_(open_hugging_face(kFamilies + GetParam())),
        model_(make_gpt(folder_.config())),
        initial_(values_in(folder_, model_)) {}

  Golden golden_;
  PretrainedGpt folder_;
  Model model_;
  InitialValues initial_;
};

TEST_P(FamilyGolden, LogitsAndGradientsAreThoseOfTransformers) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto stream = device->create_stream({.name = "compute"});
  const Shape all = golden_.shape("tokens");
  const Shape shape{all[1], all[2]};
  const auto first_batch = [&](const char* name) {
    Tensor tensor = Tensor::empty(memory, shape, DType::kInt32, MemoryCategory::kData, name);
    std::copy_n(golden_.ints(name).begin(), shape.numel(), tensor.as<std::int32_t>());
    return tensor;
  };
  Batch batch{.inputs = first_batch("tokens"), .targets = first_batch("targets")};
  batch.items = shape[0] * (shape[1] - 1);
  Tensor scale = Tensor::empty(memory, Shape{1}, DType::kFloat32, MemoryCategory::kData, "scale");
  *scale.as<float>() = 1.0F / static_cast<float>(batch.items);

  for (const bool selective : {false, true}) {
    WholeModel whole(model_, memory, DType::kFloat32, DType::kFloat32);
    for (const auto& [name, values] : initial_) copy_to(whole.value(name), values);
    run_on(*stream, [&] {
      const Tensor logits = gpt_logits(model_, whole.parameters(), memory, *stream, batch.inputs,
                                       LogitPositions::kAll);
      EXPECT_LT(relative_error(to_floats(logits), golden_.floats("logits")), 1e-5);
      whole.forward_backward(memory, *stream, batch,
                             {.tape = {.selective = selective, .loss_scale = scale, .threads = 1}});
    });
    // Written as a folder they have transformers' names and shapes.
    TemporaryFolder written;
    PretrainedWriter writer = write_hugging_face(written.path("gradients"), folder_.config());
    for (const auto& [name, values] : initial_) writer.write(name, to_floats(whole.gradient(name)));
    writer.finish();
    std::size_t compared = 0;
    for (const auto& [name, gradient] : stored_tensors(written.path("gradients"))) {
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), 1e-5) << name;
      ++compared;
    }
    EXPECT_EQ(compared, stored_tensors(folder_.path()).size());
  }
}

TEST_P(FamilyGolden, TwentyStepsStayWithTransformersUnderEveryStrategy) {
  for (const Strategy& strategy : strategies()) {
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(strategy.name);
      const Trained trained = train_golden(golden_, model_, initial_, strategy.name, ranks);
      EXPECT_LT(relative_error(trained.losses, golden_.floats("step_loss")), 1e-5);
      EXPECT_LT(relative_error(trained.norms, golden_.floats("step_gradient_norm")), 1e-4);
    }
  }
}

/// A folder that is read and written again has the same tensors and the same configuration.
TEST_P(FamilyGolden, FoldersGoRoundTrip) {
  TemporaryFolder written;
  PretrainedWriter writer = write_hugging_face(written.path("copy"), folder_.config());
  for (const auto& [name, values] : initial_) writer.write(name, values);
  writer.finish();
  EXPECT_EQ(stored_tensors(written.path("copy")), stored_tensors(folder_.path()));
  EXPECT_EQ(open_hugging_face(written.path("copy")).config(), folder_.config());
  EXPECT_EQ(parse_gpt_configuration(configuration_of(folder_.config())), folder_.config());
}

INSTANTIATE_TEST_SUITE_P(All, FamilyGolden, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tessera::family_golden_test
