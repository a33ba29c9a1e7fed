#include "tessera/model/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/golden.h"
#include "support/model_run.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"
#include "tessera/core/sim_device.h"

namespace tessera {
namespace {

using test::Golden;
using test::relative_error;
using test::run_on;
using test::to_floats;
using test::WholeModel;

constexpr const char* kGolden = TESSERA_SOURCE_DIR "/tests/model/golden/gpt2";

GptConfig config_of(const Golden& golden) {
  const auto& c = golden.index().at("config");
  return {.vocab_size = c.at("vocab_size").get<std::int64_t>(),
          .context_length = c.at("context_length").get<std::int64_t>(),
          .layers = c.at("layers").get<std::int64_t>(),
          .heads = c.at("heads").get<std::int64_t>(),
          .width = c.at("width").get<std::int64_t>()};
}

/// The golden model on a CPU stream, and its first batch.
class GoldenGpt : public ::testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 3;
  static constexpr std::int64_t kLength = 32;

  GoldenGpt()
      : golden_(kGolden),
        model_(make_gpt(config_of(golden_))),
        device_(make_cpu_device()),
        memory_(*device_),
        stream_(device_->create_stream({.name = "compute", .threads = 2})) {
    batch_.inputs = ints("tokens");
    batch_.targets = ints("targets");
    const auto* targets = batch_.targets.as<std::int32_t>();
    batch_.items = std::count_if(targets, targets + kBatch * kLength,
                                 [](std::int32_t target) { return target >= 0; });
    loss_scale_ = Tensor::empty(memory_, Shape{1}, DType::kFloat32, MemoryCategory::kData, "scale");
    *loss_scale_.as<float>() = 1.0F / static_cast<float>(batch_.items);
  }

  /// The first batch of a golden tensor of batches.
  Tensor ints(const std::string& name) {
    Tensor tensor =
        Tensor::empty(memory_, Shape{kBatch, kLength}, DType::kInt32, MemoryCategory::kData, name);
    const std::vector<std::int32_t> all = golden_.ints(name);
    std::copy_n(all.begin(), kBatch * kLength, tensor.as<std::int32_t>());
    return tensor;
  }

  WholeModel load(DType compute) { return load(model_, compute); }
  WholeModel load(const Model& model, DType compute) {
    WholeModel whole(model, memory_, compute, DType::kFloat32);
    for (const std::string& name : whole.names()) {
      test::copy_to(whole.value(name), golden_.floats("initial/" + name));
    }
    return whole;
  }

  WholeModel::Options options() const {
    return {.tape = {.loss_scale = loss_scale_, .threads = 2}};
  }

  Golden golden_;
  Model model_;
  std::unique_ptr<Device> device_;
  Memory memory_;
  std::unique_ptr<Stream> stream_;
  Batch batch_;
  Tensor loss_scale_;
};

TEST_F(GoldenGpt, LogitsAreThoseOfPyTorch) {
  WholeModel whole = load(DType::kFloat32);
  run_on(*stream_, [&] {
    const Tensor logits = gpt_logits(model_, whole.parameters(), memory_, *stream_, batch_.inputs,
                                     LogitPositions::kAll, 2);
    EXPECT_EQ(logits.shape(), golden_.shape("logits"));
    EXPECT_LT(relative_error(to_floats(logits), golden_.floats("logits")), 1e-5);
  });
}

TEST_F(GoldenGpt, LogitsOfTheLastPositionAreTheLastOfAll) {
  WholeModel whole = load(DType::kFloat32);
  run_on(*stream_, [&] {
    const Tensor first = batch_.inputs.narrow(0, 0, 1);
    const Tensor last =
        gpt_logits(model_, whole.parameters(), memory_, *stream_, first, LogitPositions::kLast, 2);
    EXPECT_EQ(last.shape(), (Shape{1, 1, 65}));
    const std::vector<float> all = golden_.floats("logits");
    EXPECT_LT(relative_error(to_floats(last), std::span(all).subspan((kLength - 1) * 65, 65)),
              1e-5);
    EXPECT_THROW(gpt_logits(model_, whole.parameters(), memory_, *stream_, batch_.inputs), Error);
  });
}

TEST_F(GoldenGpt, LossesAndEveryGradientAreThoseOfPyTorch) {
  WholeModel whole = load(DType::kFloat32);
  run_on(*stream_, [&] {
    const Tensor losses = whole.forward_backward(memory_, *stream_, batch_, options());
    EXPECT_LT(relative_error(to_floats(losses), golden_.floats("losses")), 1e-5);
  });
  for (const std::string& name : whole.names()) {
    EXPECT_LT(relative_error(to_floats(whole.gradient(name)), golden_.floats("gradient/" + name)),
              1e-5)
        << name;
  }
}

TEST_F(GoldenGpt, GradientsOfASecondMicroBatchAreAdded) {
  WholeModel whole = load(DType::kFloat32);
  run_on(*stream_, [&] {
    whole.forward_backward(memory_, *stream_, batch_, options());
    whole.forward_backward(memory_, *stream_, batch_, options(), /*accumulate=*/true);
  });
  for (const std::string& name : whole.names()) {
    std::vector<float> twice = golden_.floats("gradient/" + name);
    for (float& value : twice) value *= 2.0F;
    EXPECT_LT(relative_error(to_floats(whole.gradient(name)), twice), 1e-5) << name;
  }
}

TEST_F(GoldenGpt, RecomputationChangesNoBitNorDoesItChangeDropout) {
  GptConfig config = config_of(golden_);
  config.dropout = 0.2F;
  const Model model = make_gpt(config);
  const auto gradients = [&](bool selective, bool full, std::uint64_t seed) {
    WholeModel whole = load(model, DType::kFloat32);
    WholeModel::Options run_options = options();
    run_options.tape.selective = selective;
    run_options.seed = seed;
    run_options.recompute = full;
    run_on(*stream_, [&] { whole.forward_backward(memory_, *stream_, batch_, run_options); });
    std::vector<std::vector<float>> all;
    for (const std::string& name : whole.names()) all.push_back(to_floats(whole.gradient(name)));
    return all;
  };
  const auto kept = gradients(false, false, 1);
  EXPECT_EQ(kept, gradients(true, false, 1));
  EXPECT_EQ(kept, gradients(false, true, 1));
  EXPECT_EQ(kept, gradients(true, true, 1));
  EXPECT_NE(kept, gradients(false, false, 2));
}

TEST_F(GoldenGpt, BFloat16StaysWithinItsPrecision) {
  WholeModel whole = load(DType::kBFloat16);
  run_on(*stream_, [&] {
    const Tensor losses = whole.forward_backward(memory_, *stream_, batch_, options());
    const std::vector<float> actual = to_floats(losses);
    const std::vector<float> expected = golden_.floats("losses");
    const double mean = std::accumulate(actual.begin(), actual.end(), 0.0);
    const double expected_mean = std::accumulate(expected.begin(), expected.end(), 0.0);
    EXPECT_NEAR(mean / expected_mean, 1.0, 2e-3);
    EXPECT_LT(relative_error(actual, expected), 2e-2);
  });
  for (const std::string& name : whole.names()) {
    EXPECT_LT(relative_error(to_floats(whole.gradient(name)), golden_.floats("gradient/" + name)),
              5e-2)
        << name;
  }
}

TEST(Gpt, PresetsHaveTheSizesOfGpt2) {
  const auto millions = [](std::string_view name) {
    return std::llround(static_cast<double>(parameter_count(make_gpt(gpt_preset(name)))) / 1e6);
  };
  // The counts of the published weights, 124,439,808 to 1,557,611,200.
  EXPECT_EQ(parameter_count(make_gpt(gpt_preset("gpt2-124m"))), 124'439'808);
  EXPECT_EQ(parameter_count(make_gpt(gpt_preset("gpt2-1558m"))), 1'557'611'200);
  EXPECT_EQ(millions("gpt2-350m"), 355);
  EXPECT_EQ(millions("gpt2-774m"), 774);
}

// The counts of the published weights.
TEST(Gpt, PresetsOfOtherFamiliesHaveTheSizesOfTheirModels) {
  const std::map<std::string, std::int64_t> published{
      {"llama2-7b", 6'738'415'616},   {"llama3-8b", 8'030'261'248},
      {"llama3.1-8b", 8'030'261'248}, {"llama3.2-1b", 1'235'814'400},
      {"llama3.2-3b", 3'212'749'824}, {"llama3-70b", 70'553'706'496},
      {"mistral-7b", 7'241'732'096},  {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-7b", 7'615'616'512},  {"qwen3-0.6b", 596'049'920},
      {"phi3-mini", 3'821'079'552},   {"gemma2-2b", 2'614'341'888},
      {"gemma2-9b", 9'241'705'984},   {"gemma2-27b", 27'227'128'320},
      {"gemma3-1b", 999'885'952},     {"gemma3-27b", 27'009'346'304},
  };
  for (const auto& [name, count] : published) {
    EXPECT_EQ(parameter_count(make_gpt(gpt_preset(name))), count) << name;
  }
}

// A window of half the context leaves out a quarter of the scores below the diagonal.
TEST(Gpt, FlopsLeaveOutWhatWindowsHide) {
  GptConfig config = gpt_preset("mistral-7b");
  config.context_length = 8192;
  const double windowed = gpt_flops_per_token(config);
  config.window = 0;
  const double attention = 6.0 * 32 * 8192 * 4096;
  EXPECT_DOUBLE_EQ(gpt_flops_per_token(config) - windowed, attention / 4);
}

TEST(Gpt, FlopsOfLayersWithoutAWindowBetweenOthersAreTheirs) {
  GptConfig config = gpt_preset("gemma3-1b");  // 26 layers, of which each sixth attends to all
  const double windowed = gpt_flops_per_token(config);
  config.window = 0;
  const double length = 32768, outside = length - 512;
  EXPECT_NEAR(gpt_flops_per_token(config) - windowed,
              6.0 * 22 * outside * outside / length * 4 * 256, 1.0);
}

/// Weights of norms are differences from 1; both norms behind attention and MLP are there.
TEST(Gpt, ABlockOfGemmaHasFourNormsThatBeginAsOnes) {
  const Model model = make_gpt(gpt_preset("gemma3-tiny"));
  std::vector<std::string> names;
  for (const ParameterSpec& spec : model.layers[1]->parameters()) {
    names.push_back(spec.name);
    if (spec.shape.rank() == 1) {
      EXPECT_EQ(spec.initializer.mean, 0.0F) << spec.name;
    }
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre(
                  "layers.0.input_layernorm.weight", "layers.0.self_attn.qkv_proj.weight",
                  "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight",
                  "layers.0.self_attn.o_proj.weight", "layers.0.post_attention_layernorm.weight",
                  "layers.0.pre_feedforward_layernorm.weight", "layers.0.mlp.gate_up_proj.weight",
                  "layers.0.mlp.down_proj.weight", "layers.0.post_feedforward_layernorm.weight"));
}

TEST(Gpt, PresetsHaveTheNamesOfHuggingFaceToo) {
  EXPECT_EQ(gpt_preset("gpt2").layers, 12);
  EXPECT_EQ(gpt_preset("openai-community/gpt2-xl").width, 1600);
  EXPECT_EQ(gpt_preset_name("gpt2-large"), "gpt2-774m");
  EXPECT_EQ(gpt_preset_name("gpt2-tiny"), "gpt2-tiny");
  for (const char* name : {"", "openai-community/", "openai-community/gpt2-124m", "me/gpt2"}) {
    EXPECT_EQ(gpt_preset_name(name), "") << name;
  }
}

TEST(Gpt, AnUnknownPresetNamesTheChoices) {
  try {
    gpt_preset("gpt3");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("gpt3"));
    for (const std::string& name : gpt_preset_names()) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(name));
    }
  }
}

TEST(Gpt, SizesThatDoNotFitAreRejected) {
  EXPECT_THROW(make_gpt({.heads = 3, .width = 128}), Error);
  EXPECT_THROW(make_gpt({.layers = 0}), Error);
  EXPECT_THROW(make_gpt({.dropout = 1.0F}), Error);
}

TEST(Gpt, LayersParametersAndTying) {
  const GptConfig config{.vocab_size = 7, .context_length = 5, .layers = 2, .heads = 1, .width = 4};
  const Model tied = make_gpt(config);
  ASSERT_EQ(tied.layers.size(), 4U);
  EXPECT_EQ(tied.layers[0]->type(), "Embedding");
  EXPECT_FALSE(tied.layers[0]->backward_reads_parameters());
  EXPECT_EQ(tied.layers[2]->name(), "h.1");
  EXPECT_EQ(tied.layers[2]->parameters().size(), 12U);
  EXPECT_THAT(tied.layers[3]->tied_parameters(), ::testing::ElementsAre("wte.weight"));

  GptConfig untied_config = config;
  untied_config.tie_embedding = false;
  const Model untied = make_gpt(untied_config);
  EXPECT_TRUE(untied.layers[3]->tied_parameters().empty());
  EXPECT_EQ(untied.layers[3]->parameters().back().name, "lm_head.weight");
  EXPECT_EQ(parameter_count(untied), parameter_count(tied) + 7 * 4);
}

TEST(Gpt, InitialisationAndWeightDecayAreGpt2s) {
  const Model model = make_gpt({.layers = 8});
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      const bool matrix = spec.shape.rank() == 2;
      EXPECT_EQ(spec.weight_decay_scale, matrix ? 1.0F : 0.0F) << spec.name;
      if (!matrix) continue;
      const bool residual = spec.name.ends_with("c_proj.weight");
      EXPECT_FLOAT_EQ(spec.initializer.spread, residual ? 0.02F / 4.0F : 0.02F) << spec.name;
    }
  }
}

TEST(Gpt, FlopsPerTokenAreThePaperFormula) {
  const GptConfig config = gpt_preset("gpt2-124m");
  const double block = 12.0 * 768 * 768;
  EXPECT_DOUBLE_EQ(make_gpt(config).flops_per_item,
                   6.0 * (12 * block + 50257.0 * 768) + 6.0 * 12 * 1024 * 768);
}

// torchtitan counts 6 * (parameters - embedding) + 12 * layers * heads * head width * length; here
// the parameters are those of matrices.
TEST(Gpt, FullFlopsCountAllScores) {
  GptConfig config = gpt_preset("mistral-7b");
  config.context_length = 8192;
  const double matrices = 32 * (2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 3.0 * 4096 * 14336);
  const double full = 6.0 * (matrices + 32000.0 * 4096) + 12.0 * 32 * 32 * 128 * 8192;
  EXPECT_DOUBLE_EQ(gpt_full_flops_per_token(config), full);
  config.window = 0;
  EXPECT_DOUBLE_EQ(gpt_full_flops_per_token(config), full);
  EXPECT_DOUBLE_EQ(gpt_flops_per_token(config), full - 6.0 * 32 * 32 * 128 * 8192);
}

/// Peak memory of a pass, and what is left of it afterwards.
struct Footprint {
  MemoryPeak peak;
  std::int64_t left = 0;
  bool operator==(const Footprint&) const = default;
};

Footprint footprint(Device& device, const Model& model, const WholeModel::Options& options) {
  Memory memory(device);
  const std::unique_ptr<Stream> stream =
      device.create_stream({.name = "compute", .threads = options.tape.threads});
  WholeModel whole(model, memory, DType::kBFloat16, DType::kFloat32);
  const Shape shape{3, 37};
  Batch batch{.inputs = Tensor::empty(memory, shape, DType::kInt32, MemoryCategory::kData, "x"),
              .targets = Tensor::empty(memory, shape, DType::kInt32, MemoryCategory::kData, "y")};
  if (device.kind() == DeviceKind::kCpu) {
    std::fill_n(batch.inputs.as<std::int32_t>(), shape.numel(), 1);
    std::fill_n(batch.targets.as<std::int32_t>(), shape.numel(), 2);
    for (const std::string& name : whole.names()) {
      test::copy_to(whole.value(name),
                    std::vector<float>(static_cast<std::size_t>(whole.value(name).numel())));
    }
  }
  run_on(*stream, [&] { whole.forward_backward(memory, *stream, batch, options); });
  return {.peak = memory.peak(), .left = memory.current()[MemoryCategory::kActivations]};
}

TEST(Gpt, ASimulatedPassAllocatesExactlyWhatARealOneDoes) {
  const Model model = make_gpt({.vocab_size = 1001,
                                .context_length = 64,
                                .layers = 3,
                                .heads = 4,
                                .width = 52,
                                .dropout = 0.1F});
  const std::unique_ptr<Device> cpu = make_cpu_device();
  SimDevice sim;
  std::vector<Footprint> footprints;
  for (const bool selective : {false, true}) {
    for (const bool full : {false, true}) {
      const WholeModel::Options options{.tape = {.selective = selective, .threads = 2},
                                        .recompute = full};
      footprints.push_back(footprint(*cpu, model, options));
      EXPECT_EQ(footprints.back(), footprint(sim, model, options)) << selective << full;
      EXPECT_EQ(footprints.back().left, 0);
    }
  }
  const auto activations = [&](int i) {
    return footprints[static_cast<std::size_t>(i)].peak.by_category[MemoryCategory::kActivations];
  };
  EXPECT_LT(activations(2), activations(0));  // selective keeps less than nothing recomputed
  EXPECT_LT(activations(1), activations(2));  // full keeps less still
}

TEST(Gpt, ABlockKeepsWhatTheFormulaSays) {
  constexpr std::int64_t kB = 2, kL = 64, kC = 64, kH = 4, kRows = kB * kL;
  const Model model = make_gpt({.context_length = kL, .layers = 1, .heads = kH, .width = kC});
  SimDevice sim;
  const std::unique_ptr<Stream> stream = sim.create_stream({.name = "compute"});
  for (const bool selective : {false, true}) {
    Memory memory(sim);
    WholeModel whole(model, memory, DType::kBFloat16, DType::kFloat32);
    const Tensor x =
        Tensor::empty(memory, Shape{kB, kL, kC}, DType::kBFloat16, MemoryCategory::kData, "input");
    Tape tape(memory, *stream, {}, {.selective = selective});
    const Value y = model.layers[1]->forward(tape, tape.input(x, true), whole.parameters()[1]);
    // In channels: norm 1, qkv 3, attention 1, residual sum 1, norm 1, MLP 4, GELU 4, output 1;
    // selective recomputation drops attention's and GELU's. In fp32: mean and rstd of two norms,
    // and attention's log-sum-exp.
    const std::int64_t channels = selective ? 11 : 16;
    EXPECT_EQ(memory.current()[MemoryCategory::kActivations],
              kRows * (2 * channels * kC + 4 * (4 + kH)));
    EXPECT_EQ(memory.current()[MemoryCategory::kWorkspace], 0);
  }
}

}  // namespace
}  // namespace tessera
