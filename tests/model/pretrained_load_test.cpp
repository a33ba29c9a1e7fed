#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/checkpoint/parameter_checkpoint.h"
#include "tessera/core/cpu_device.h"
#include "tessera/model/pretrained.h"
#include "tessera/trainer/training_plan.h"

// What each rank reads of published weights, and what it has then.
namespace tessera::pretrained_load_test {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = TESSERA_SOURCE_DIR "/tests/model/golden";

/// One rank's state; everything else that it needs.
struct Rank {
  Rank(const Model& model, const TrainerOptions& options, int number)
      : layout(make_layout(model, options.wrap, options.ranks)),
        state(layout, plan_options(options).state(), number, memory),
        stream(device->create_stream({})) {
    state.initialize(0, *stream);
  }

  std::unique_ptr<Device> device = make_cpu_device();
  Memory memory{*device};
  ModelLayout layout;
  TrainingState state;
  std::unique_ptr<Stream> stream;
};

std::vector<std::vector<std::byte>> contents(const TrainingState& state) {
  std::vector<std::vector<std::byte>> all;
  for (const StateTensor& tensor : state) {
    const auto* const begin = static_cast<const std::byte*>(tensor.view.data);
    all.emplace_back(begin, begin + tensor.view.bytes());
  }
  return all;
}

/// Elements of parameters that the rank has, and the most that is read besides of transposed
/// matrices: the rest of the first and the last row of each piece.
struct Owned {
  std::int64_t elements = 0, rest = 0;
};
Owned owned_by(const TrainingState& state) {
  Owned owned;
  for (const StateTensor& tensor : state) {
    if (tensor.role != Role::kParameter) continue;
    for (const StatePiece& piece : state.pieces(tensor)) {
      owned.elements += piece.elements.numel;
      if (piece.parameter->shape.rank() == 2) owned.rest += 2 * piece.parameter->shape[1];
    }
  }
  return owned;
}

struct Case {
  std::string path;
  std::int64_t element_bytes;
  bool transposes;
};

TEST(PretrainedLoad, ReadsWhatTheRankHasAndNoMore) {
  const std::vector<Case> cases{{kGolden / "hugging_face/v5", 4, true},
                                {kGolden / "hugging_face/untied", 4, true},
                                {kGolden / "hugging_face/hub", 2, true},
                                {kGolden / "llm_c_fp32.bin", 4, false},
                                {kGolden / "llm_c_bf16.bin", 2, false}};
  for (const Case& c : cases) {
    const PretrainedGpt from = open_pretrained(c.path);
    const Model model = make_gpt(from.config());
    for (const char* strategy : {"full_shard", "zero2", "no_shard", "hybrid_shard"}) {
      for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
        for (const int ranks : {1, 2, 4, 7}) {
          SCOPED_TRACE(testing::Message() << c.path << " " << strategy << " " << ranks);
          TrainerOptions options = resolved({.strategy = strategy, .ranks = ranks});
          options.precision = precision;
          for (int r = 0; r < ranks; ++r) {
            Rank rank(model, options, r), whole(model, options, r);
            const std::int64_t bytes = from.load(rank.state, *rank.stream);
            whole.state.set_parameters(from.values(), *whole.stream);
            EXPECT_TRUE(contents(rank.state) == contents(whole.state));
            const Owned owned = owned_by(rank.state);
            EXPECT_GE(bytes, owned.elements * c.element_bytes);
            EXPECT_LE(bytes, (owned.elements + (c.transposes ? owned.rest : 0)) * c.element_bytes);
            if (owned.elements == parameter_count(model)) {
              EXPECT_EQ(bytes, parameter_count(model) * c.element_bytes);
            }
          }
        }
      }
    }
  }
}

TEST(PretrainedLoad, LeavesTheRestOfACheckpointAlone) {
  const fs::path folder = fs::path(testing::TempDir()) / ("load_" + std::to_string(getpid()));
  const PretrainedGpt from = open_pretrained(kGolden / "hugging_face/v5");
  const Model model = make_gpt(from.config());
  std::vector<ParameterSpec> specs;
  for (const auto& layer : model.layers) {
    specs.insert(specs.end(), layer->parameters().begin(), layer->parameters().end());
  }
  {
    ParameterCheckpoint checkpoint(folder, model.configuration, specs);
    std::vector<float> values;
    for (const ParameterSpec& spec : specs) {
      values.resize(static_cast<std::size_t>(spec.shape.numel()));
      from.read(spec.name, values);
      checkpoint.write(values);
    }
    EXPECT_EQ(checkpoint.finish(), folder / "step_0");
  }
  const PretrainedGpt saved = open_pretrained(folder);
  EXPECT_TRUE(saved.is_checkpoint());
  const TrainerOptions options = resolved({.strategy = "full_shard", .ranks = 3});
  for (int r = 0; r < 3; ++r) {
    Rank rank(model, options, r), other(model, options, r);
    const std::vector<float> ones(1, 1.0F);
    const StateTensor& moment = rank.state.at("h.0.first-moment");
    rank.state.write(moment.name, moment.range.begin, ones, *rank.stream);
    other.state.write(moment.name, moment.range.begin, ones, *other.stream);
    saved.load(rank.state, *rank.stream);
    from.load(other.state, *other.stream);
    EXPECT_TRUE(contents(rank.state) == contents(other.state));
  }
  // Another model's state is refused.
  GptConfig config = from.config();
  config.layers = 1;
  const Model smaller = make_gpt(config);
  Rank rank(smaller, options, 0);
  EXPECT_THROW(saved.load(rank.state, *rank.stream), Error);
  // So are too few parameters, and nothing is left of them.
  {
    ParameterCheckpoint checkpoint(folder.string() + "2", model.configuration, specs);
    EXPECT_THROW(checkpoint.finish(), Error);
  }
  EXPECT_FALSE(fs::exists(folder.string() + "2"));
  EXPECT_THROW(ParameterCheckpoint(folder, model.configuration, specs), Error);
  EXPECT_TRUE(fs::exists(folder / "step_0"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::pretrained_load_test
