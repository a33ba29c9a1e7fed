#include <gtest/gtest.h>

#include <numeric>

#include "support/golden_folder.h"
#include "temporary_folder.h"
#include "tessera/model/hugging_face.h"

// Several documents in a sample against what transformers computes with position_ids and a mask.
namespace tessera::packing_golden_test {
namespace {

using namespace test;

const std::string kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/";

class PackingGolden : public ::testing::TestWithParam<std::string> {
 protected:
  PackingGolden()
      : golden_(kGolden + "packed/" + GetParam()),
        folder_(open_hugging_face(
            kGolden + (GetParam() == "gpt2" ? "adapters/gpt2_base" : "families/" + GetParam()))),
        model_(make_gpt(folder_.config())),
        initial_(values_in(folder_, model_)),
        shape_(golden_.shape("tokens")),
        tokens_(golden_.ints("tokens")),
        targets_(golden_.ints("targets")) {}

  /// Tokens and starts, one behind the other.
  Computed compute_packed(bool selective) const {
    std::vector<std::int32_t> inputs = tokens_;
    const std::vector<std::int32_t> starts = golden_.ints("starts");
    inputs.insert(inputs.end(), starts.begin(), starts.end());
    return compute_batch(model_, initial_, inputs, Shape{2, shape_[0], shape_[1]}, targets_,
                         counted(targets_), DType::kFloat32, selective);
  }
  static std::int64_t counted(std::span<const std::int32_t> targets) {
    return std::count_if(targets.begin(), targets.end(), [](auto t) { return t >= 0; });
  }

  Golden golden_;
  PretrainedGpt folder_;
  Model model_;
  InitialValues initial_;
  Shape shape_;
  std::vector<std::int32_t> tokens_, targets_;
};

TEST_P(PackingGolden, LogitsLossAndGradientsAreThoseOfTransformers) {
  for (const bool selective : {false, true}) {
    const Computed computed = compute_packed(selective);
    EXPECT_LT(relative_error(computed.logits, golden_.floats("logits")), 1e-5);
    const double sum = std::accumulate(computed.losses.begin(), computed.losses.end(), 0.0);
    EXPECT_NEAR(sum / static_cast<double>(counted(targets_)), golden_.floats("loss")[0], 1e-5);
    TemporaryFolder written;
    PretrainedWriter writer = write_hugging_face(written.path("gradients"), folder_.config());
    for (const auto& [name, gradient] : computed.gradients) writer.write(name, gradient);
    writer.finish();
    for (const auto& [name, gradient] : stored_tensors(written.path("gradients"))) {
      EXPECT_LT(relative_error(gradient, golden_.floats("gradient/" + name)), 1e-5) << name;
    }
  }
}

TEST_P(PackingGolden, EachDocumentHasTheLossesThatItHasAlone) {
  const Computed packed = compute_packed(false);
  const std::vector<std::int32_t> starts = golden_.ints("starts");
  const auto length = static_cast<std::size_t>(shape_[1]);
  int documents = 0;
  for (std::size_t begin = 0, end = 0; begin < starts.size(); begin = end, ++documents) {
    for (end = begin + 1;
         end < starts.size() && end % length != 0 && starts[end] == starts[begin];) {
      ++end;
    }
    const std::span tokens = std::span(tokens_).subspan(begin, end - begin);
    const std::span targets = std::span(targets_).subspan(begin, end - begin);
    const Computed alone =
        compute_batch(model_, initial_, tokens, Shape{1, static_cast<std::int64_t>(tokens.size())},
                      targets, std::max<std::int64_t>(1, counted(targets)), DType::kFloat32, false);
    for (std::size_t i = begin; i < end; ++i) {
      EXPECT_NEAR(packed.losses[i], alone.losses[i - begin],
                  1e-6 * std::max(1.0F, packed.losses[i]));
    }
  }
  EXPECT_EQ(documents, 9);
}

INSTANTIATE_TEST_SUITE_P(All, PackingGolden,
                         ::testing::Values("llama", "mistral", "qwen2_window", "qwen3", "gpt2",
                                           "gemma2", "gemma3"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tessera::packing_golden_test
