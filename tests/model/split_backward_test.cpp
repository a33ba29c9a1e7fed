#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/model_run.h"
#include "support/small_run.h"
#include "tessera/model/gpt_family.h"

// Every layer of every family: backward in two parts, gradients of parameters after all others and
// the loss's backward apart, gives the losses and gradients of backward in one.
namespace tessera::test::split_backward_test {
namespace {

/// What is trained.
enum class Trained : std::uint8_t {
  kAll,
  kLora,
  kJoined,
  kIa3,
  kPrompt,
  kEncoder,
  kPrefix,
  kProjection,
  kEmbeddings
};

struct Case {
  GptFamily family;
  std::string name;
  DType dtype;
  Trained trained = Trained::kAll;
  bool packed = false;
};

GptConfig config_of(const Case& c) {
  GptConfig config = small_gpt(0.1F, c.family);
  switch (c.trained) {
    case Trained::kAll:
      break;
    case Trained::kLora:
      config.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dropout = 0.1F},
                        .target_pattern = "all-linear"};
      break;
    case Trained::kJoined:  // A's of one matrix are neighbours
      config.adapter = {.kind = LoraOptions{.rank = 32, .alpha = 16.0},
                        .target_pattern = "all-linear"};
      break;
    case Trained::kIa3:
      config.adapter = {.kind = Ia3Options{.feedforward_pattern = ".*(down|o|mlp.c)_proj"},
                        .target_pattern = "all-linear"};
      break;
    case Trained::kPrompt:
      config.adapter = {.kind = PromptOptions{.tokens = 3}};
      break;
    case Trained::kEncoder:
      config.adapter = {.kind = PromptEncoderOptions{.tokens = 3, .hidden = 5}};
      break;
    case Trained::kEmbeddings:
      config.adapter = {.kind = LoraOptions{.rank = 3, .alpha = 6.0, .dropout = 0.1F},
                        .targets = {"embed_tokens", "lm_head", "wte"}};
      break;
    case Trained::kPrefix:
      config.adapter = {.kind = PrefixOptions{.tokens = 3}};
      break;
    case Trained::kProjection:
      config.adapter = {.kind = PrefixOptions{.tokens = 3, .projection = true, .hidden = 5}};
      break;
  }
  return config;
}

/// Losses, and gradients by name.
struct Result {
  std::vector<float> losses;
  std::map<std::string, std::vector<float>> gradients;
};

Result run(const Case& c, Recompute recompute, bool split) {
  const GptConfig config = config_of(c);
  const Model model = make_gpt(config);
  const auto device = make_cpu_device();
  Memory memory(*device);
  const auto stream = device->create_stream({.name = "compute"});
  constexpr std::int64_t kBatch = 2, kLength = 8;
  const auto empty = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(memory, shape, dtype, MemoryCategory::kData, "test");
  };
  const Shape rows{kBatch, kLength};
  Batch batch{.inputs = empty(c.packed ? Shape{2, kBatch, kLength} : rows, DType::kInt32),
              .targets = empty(rows, DType::kInt32)};
  const RandomTokens source(kLength, config.vocab_size, true);
  batch.items =
      source.fill(0, kBatch, {batch.inputs.view().data, DType::kInt32, rows}, batch.targets);
  for (std::int64_t i = 0; c.packed && i < kBatch * kLength; ++i) {  // two documents
    batch.inputs.as<std::int32_t>()[kBatch * kLength + i] = i % kLength < 3 ? 0 : 3;
  }
  const Tensor scale = empty({1}, DType::kFloat32);
  *scale.as<float>() = 1.0F / static_cast<float>(batch.items);
  WholeModel whole(model, memory, c.dtype, DType::kFloat32);
  for (const std::string& name : whole.names()) {
    std::vector<float> values(static_cast<std::size_t>(whole.value(name).numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.2F * random_normal({1, stream_of(name)}, static_cast<std::int64_t>(i));
    }
    copy_to(whole.value(name), values);
  }
  const MemoryUse before = memory.current();
  Result result;
  run_on(*stream, [&] {
    result.losses = to_floats(whole.forward_backward(
        memory, *stream, batch,
        {.tape = {.selective = recompute == Recompute::kSelective, .loss_scale = scale},
         .recompute = recompute == Recompute::kFull,
         .split = split}));
  });
  EXPECT_EQ(memory.current(), before);
  for (const std::string& name : whole.names()) {
    if (whole.gradient(name)) result.gradients[name] = to_floats(whole.gradient(name));
  }
  return result;
}

/// The sample of a run without --long, or the other cases. It has every family and every kind of
/// trained parameters in both dtypes.
std::vector<Case> cases(bool sampled) {
  constexpr std::pair<Trained, const char*> kTrained[] = {{Trained::kAll, ""},
                                                          {Trained::kLora, "_lora"},
                                                          {Trained::kJoined, "_joined"},
                                                          {Trained::kIa3, "_ia3"},
                                                          {Trained::kPrompt, "_prompt"},
                                                          {Trained::kEncoder, "_encoder"},
                                                          {Trained::kPrefix, "_prefix"},
                                                          {Trained::kProjection, "_projection"},
                                                          {Trained::kEmbeddings, "_embeddings"}};
  std::vector<Case> some;
  std::size_t families = 0;
  for (const FamilyRow& family : gpt_families()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::string name = concat(family.name, '_', to_string(dtype));
      std::size_t kinds = dtype == DType::kFloat32 ? 0 : 1;
      const auto add = [&](const char* suffix, Trained trained, bool packed) {
        const bool in_sample = (families + kinds++) % 4 == 0;
        if (in_sample != sampled) return;
        some.push_back({family.family, name + suffix, dtype, trained, packed});
      };
      for (const auto& [trained, suffix] : kTrained) {
        if (family.encoder && trained >= Trained::kPrompt) continue;  // refused
        add(suffix, trained, false);
      }
      add("_packed", Trained::kAll, true);
    }
    ++families;
  }
  return some;
}

class SplitBackwardOfFamilies : public testing::TestWithParam<Case> {};

TEST_P(SplitBackwardOfFamilies, GivesTheBitsOfBackwardInOne) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    SCOPED_TRACE(to_string(recompute));
    const Result whole = run(GetParam(), recompute, false);
    const Result split = run(GetParam(), recompute, true);
    EXPECT_EQ(whole.losses, split.losses);
    EXPECT_FALSE(whole.gradients.empty());
    for (const auto& [name, gradient] : whole.gradients) {
      EXPECT_EQ(gradient, split.gradients.at(name)) << name;
    }
  }
}

constexpr auto kCaseName = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(All, SplitBackwardOfFamilies, testing::ValuesIn(cases(true)), kCaseName);
INSTANTIATE_TEST_SUITE_P(LongAll, SplitBackwardOfFamilies, testing::ValuesIn(cases(false)),
                         kCaseName);

TEST(SplitBackwardOfModels, IsDeclaredByEveryLayer) {
  for (const FamilyRow& family : gpt_families()) {
    const Model model = make_gpt(small_gpt(0.0F, family.family));
    for (const auto& layer : model.layers) {
      EXPECT_TRUE(layer->splits_backward()) << family.name << ' ' << layer->name();
    }
  }
}

}  // namespace
}  // namespace tessera::test::split_backward_test
