#include "tessera/model/pretrained.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "cli/launched_program.h"
#include "tessera/model/dataset.h"
#include "tessera/model/hugging_face.h"
#include "tessera/trainer/parameter_hash.h"
#include "tessera/trainer/session.h"

// --init and --export.
namespace tessera::pretrained_test {
namespace {

namespace fs = std::filesystem;
using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

const fs::path kGolden = TESSERA_SOURCE_DIR "/tests/model/golden";
const std::string kFolder = kGolden / "hugging_face/v5";
const std::string kLlmC = kGolden / "llm_c_fp32.bin";

class Pretrained : public test::LaunchTest {
 protected:
  /// Tokens below the golden models' vocabulary of 65.
  std::string write_tokens() const {
    std::string bytes;
    for (int i = 0; i < 4000; ++i) {
      bytes += static_cast<char>((i * i + i / 7) % 65);
      bytes += '\0';
    }
    return write("tokens.bin", bytes);
  }
  Words words(const Words& more) const {
    Words all{"--data",
              write_tokens(),
              "--sequence-length",
              "12",
              "--micro-batch",
              "1",
              "--threads-per-rank",
              "1",
              "--sample-tokens",
              "0",
              "--no-default-config"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult train_from(const std::string& init, const Words& more) const {
    Words all = words(more);
    all.insert(all.begin(), {"train", "--init", init});
    return run(all);
  }
};

TEST_F(Pretrained, WhatIsExportedAtOnceHasTheBytesOfTheFolder) {
  for (const std::string strategy : {"full_shard", "zero2", "no_shard"}) {
    for (const std::string ranks : {"1", "2", "3"}) {
      const std::string out = path(strategy + ranks);
      // At a rate of 0 a step changes nothing.
      const ProgramResult result =
          train_from(kFolder, {"--strategy", strategy, "--ranks", ranks, "--steps", "1",
                               "--learning-rate", "0", "--export", out});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.out, AllOf(HasSubstr("GPT of 2 layers x 12, 3 heads"),
                                    HasSubstr("is a Hugging Face folder: 28 tensors, F32"),
                                    HasSubstr("exported  " + out)));
      EXPECT_EQ(read_file(out + "/model.safetensors"), read_file(kFolder + "/model.safetensors"));
      EXPECT_FALSE(fs::exists(out + ".tmp"));
    }
  }
}

TEST_F(Pretrained, SeveralProcessesStartFromAFileAndOneWrites) {
  Words more = words({"--init", kLlmC, "--steps", "1", "--learning-rate", "0", "--strategy",
                      "zero2", "--export", path("out")});
  more.insert(more.begin(),
              {"launch", "--processes", "2", "--ranks-per-process", "1", "--", "train"});
  const ProgramResult result = run(more);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(path("out/model.safetensors")), read_file(kFolder + "/model.safetensors"));
}

TEST_F(Pretrained, TrainsAsTheLibraryDoesFromTheSameValues) {
  const ProgramResult result = train_from(
      kFolder, {"--ranks", "2", "--steps", "3", "--log", path("log"), "--export", path("out")});
  ASSERT_EQ(result.exit_code, 0) << result.err;

  const PretrainedGpt pretrained = open_pretrained(kFolder);
  const Model model = make_gpt(pretrained.config());
  const TokenDataset data(DatasetOptions{.path = path("tokens.bin"), .sequence_length = 12});
  const TrainerOptions options{.ranks = 2,
                               .steps = 3,
                               .micro_batch = 1,
                               .device = DeviceChoice::kCpu,
                               .threads_per_rank = 1};
  Session session(model, data, options);
  session.set_parameters(pretrained.values());
  std::vector<double> losses;
  while (const auto record = session.step()) losses.push_back(record->loss);
  const std::vector<FullParameter> trained = session.parameters();

  const auto log = read_log("log");
  ASSERT_EQ(losses.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(log.at(i + 1)["loss"].get<double>(), losses[i]);
  EXPECT_EQ(log.back()["parameters_sha256"], parameters_sha256(trained));
  EXPECT_EQ(log.front()["model"], nullptr);
  EXPECT_EQ(log.front()["width"], 12);
  const PretrainedGpt exported = open_pretrained(path("out"));
  for (const FullParameter& parameter : trained) {
    std::vector<float> values(parameter.values.size());
    exported.read(parameter.name, values);
    EXPECT_EQ(values, parameter.values) << parameter.name;
  }
}

TEST_F(Pretrained, EvaluatesToTheLossOfTransformers) {
  const auto golden = nlohmann::json::parse(read_file(kGolden / "hugging_face.json"));
  for (const std::string name : {"v5", "hub", "v4", "untied"}) {
    double sum = 0.0;
    for (const auto& sequence : golden.at("tokens")) {
      std::string bytes;
      for (const int token : sequence) bytes += std::string{static_cast<char>(token), '\0'};
      const ProgramResult result =
          run({"evaluate", "--no-default-config", "--init", kGolden / "hugging_face" / name,
               "--eval-data", write("sequence.bin", bytes), "--sequence-length", "9", "--ranks",
               "2", "--format", "json"});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      sum += nlohmann::json::parse(result.out)["loss"].get<double>();
    }
    EXPECT_NEAR(sum / 2.0, golden.at("folders").at(name).at("loss").get<double>(), 1e-5) << name;
  }
}

TEST_F(Pretrained, RefusesASecondModelAndPathsThatCannotWork) {
  const auto refused = [&](const std::string& init, const Words& more) {
    return error_of(train_from(init, more));
  };
  EXPECT_THAT(refused(kFolder, {"--layers", "3"}),
              AllOf(HasSubstr("--layers is 3, and the model of --init"),
                    HasSubstr("has 2; leave out --layers")));
  EXPECT_THAT(refused(kFolder, {"--model", "gpt2"}),
              HasSubstr("--model is gpt2, whose --layers is 12, and the model of --init"));
  EXPECT_THAT(refused(path("none"), {}),
              AllOf(HasSubstr("--init: '"), HasSubstr("hf download NAME")));
  EXPECT_THAT(refused(write_tokens(), {}), HasSubstr("is not a model file of llm.c"));
  fs::create_directory(path("there"));
  EXPECT_THAT(refused(kFolder, {"--export", path("there")}),
              HasSubstr("--export: '" + path("there") + "' exists already"));
  const ProgramResult blocked = train_from(kFolder, {"--export", path("tokens.bin/out")});
  EXPECT_EQ(blocked.exit_code, 1);
  EXPECT_THAT(blocked.err, HasSubstr("Not a directory"));
  EXPECT_EQ(blocked.out, "");
  // Saying the same twice is no contradiction.
  const ProgramResult same =
      train_from(kFolder, {"--layers", "2", "--width", "12", "--steps", "1", "--quiet"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

}  // namespace
}  // namespace tessera::pretrained_test
