#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/checkpointed_run.h"
#include "support/extent.h"
#include "temporary_folder.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/collectives/listening_socket.h"
#include "tessera/core/error.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/same_bits.h"
#include "tessera/trainer/session.h"
#include "tessera/trainer/trainer.h"

// A run that goes on from a checkpoint gives the bits of the run that was never interrupted,
// whatever ranks and strategy either of them has.
namespace tessera::resume_test {
namespace {

using test::describe;
using test::Numbers;
using test::RandomTokens;
using test::TemporaryFolder;
using test::Variant;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 6;
constexpr std::int64_t kSavedAt = 3;

TrainerOptions options_of(const Variant& variant) { return test::options_of(variant, kSteps); }

Numbers train(const TrainerOptions& options, std::int64_t from = 0) {
  return test::train_numbers(options, from);
}

/// Saves a run of `first` at kSavedAt, and goes on from there with each of `others`.
void expect_same_bits(const Variant& first, const std::vector<Variant>& others) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of(first);
  const Numbers whole = train(options, kSavedAt);
  options.checkpoints.folder = folder.path("run");
  options.stop_after = kSavedAt;
  train(options);
  for (const Variant& other : others) {
    SCOPED_TRACE(concat(describe(first), " -> ", describe(other)));
    TrainerOptions rest = options_of(other);
    rest.checkpoints.resume = folder.path("run");
    ASSERT_EQ(hash_of_sums(test::checkpointed_gpt(), resolved(rest)),
              hash_of_sums(test::checkpointed_gpt(), resolved(options)))
        << "there is something to compare";
    EXPECT_EQ(train(rest), whole);
  }
}

TEST(Resume, GivesTheBitsOfTheWholeRunWithAnyStrategyOnAnyNumberOfRanks) {
  expect_same_bits({"full_shard", 4},
                   {{"no_shard", 1}, {"full_shard", 3}, {"zero2", 2}, {"full_shard", 4}});
  expect_same_bits({"no_shard", 1}, {{"full_shard", 3}, {"zero2", 4}});
  expect_same_bits({"zero2", 3}, {{"hybrid_shard", 4}, {"full_shard", 1}});
  // With one micro-step per step, every strategy adds alike.
  expect_same_bits({"no_shard", 4, 4},
                   {{"zero1", 4, 4}, {"hybrid_shard", 4, 4}, {"hybrid_full_optimizer", 4, 4}});
  expect_same_bits({"zero1", 3, 3}, {{"no_shard", 3, 3}, {"full_shard", 1, 3}});
  expect_same_bits({"hybrid_shard_zero2", 4, 4}, {{"zero1", 4, 4}, {"zero2", 2, 4}});
  const WrapPolicy whole_model{.kind = WrapPolicy::Kind::kNone};
  expect_same_bits({.ranks = 2, .wrap = whole_model},
                   {{.strategy = "zero2", .ranks = 3, .prefetch = 3}});
}

/// From one strategy and precision, to every other strategy and number of ranks.
using From = std::tuple<std::string, DType>;

class ResumeMatrix : public testing::TestWithParam<From> {
 protected:
  /// Both numbers of ranks divide the samples of a step.
  static Variant variant(const std::string& strategy, int ranks, int samples, DType precision) {
    return {.strategy = strategy,
            .ranks = ranks,
            .samples_per_step = samples,
            .precision = precision,
            .stochastic_rounding = precision == DType::kBFloat16 && ranks % 2 == 1};
  }
};

TEST_P(ResumeMatrix, GivesTheBitsOfTheWholeRunWhereverGradientsAreAddedAlike) {
  const auto& [strategy, precision] = GetParam();
  const std::vector<int> worlds{1, 2, 3, 4, 5, 7};
  const auto& all = strategies();
  const auto place = static_cast<std::size_t>(&find_strategy(strategy) - all.data());
  std::int64_t compared = 0;
  for (std::size_t from = 0; from < worlds.size(); ++from) {
    for (std::size_t to = 0; to < worlds.size(); ++to) {
      // The sample has of each strategy every number of ranks, once before and once after.
      if (!test::runs_long_tests() && (from + to + place) % worlds.size() != 0) continue;
      const int samples = std::lcm(worlds[from], worlds[to]);
      Variant first = variant(strategy, worlds[from], samples, precision);
      const std::uint64_t sums =
          hash_of_sums(test::checkpointed_gpt(), resolved(options_of(first)));
      std::vector<Variant> others;
      for (std::size_t s = 0; s < all.size(); ++s) {
        if (!test::runs_long_tests() && (s + to + 2 * from) % all.size() != place) continue;
        Variant other = variant(std::string(all[s].name), worlds[to], samples, precision);
        other.stochastic_rounding = first.stochastic_rounding;
        const TrainerOptions options = resolved(options_of(other));
        if (hash_of_sums(test::checkpointed_gpt(), options) == sums) others.push_back(other);
      }
      compared += static_cast<std::int64_t>(others.size());
      if (!others.empty()) expect_same_bits(first, others);
    }
  }
  EXPECT_GT(compared, test::runs_long_tests() ? 40 : 0);
}

std::vector<std::string> names_of_strategies() {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.emplace_back(strategy.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Presets, ResumeMatrix,
                         testing::Combine(testing::ValuesIn(names_of_strategies()),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& chosen) {
                           return concat(std::get<0>(chosen.param), "_",
                                         to_string(std::get<1>(chosen.param)));
                         });

TEST(Resume, GivesTheBitsOfBFloat16RunsStochasticRoundingIncluded) {
  for (const bool stochastic : {false, true}) {
    const auto setup = [&](const std::string& strategy, int ranks, int samples) {
      return Variant{strategy, ranks, samples, DType::kBFloat16, stochastic};
    };
    expect_same_bits(setup("full_shard", 3, 12), {setup("zero2", 2, 12), setup("no_shard", 1, 12)});
    expect_same_bits(setup("zero1", 4, 4),
                     {setup("hybrid_shard", 4, 4), setup("full_shard", 2, 4)});
  }
}

// Dynamic loss scaling is on, by default.
TEST(Resume, GivesTheBitsOfFp16Runs) {
  const auto setup = [&](const std::string& strategy, int ranks, int samples) {
    return Variant{strategy, ranks, samples, DType::kFloat16};
  };
  expect_same_bits(setup("full_shard", 3, 12), {setup("zero2", 2, 12), setup("no_shard", 1, 12)});
  expect_same_bits(setup("zero1", 4, 4), {setup("hybrid_shard", 4, 4), setup("full_shard", 2, 4)});
}

TEST(Resume, TakesWhatEachOptimizerKeeps) {
  Variant first{"full_shard", 2}, other{"zero2", 3};
  first.optimizer = other.optimizer = "sgd";
  expect_same_bits(first, {other});
}

void expect_same_bits_on_any_number_of_ranks(const std::string& optimizer) {
  for (const bool stochastic : {false, true}) {
    const auto setup = [&](const std::string& strategy, int ranks, int samples = 12) {
      return Variant{.strategy = strategy,
                     .ranks = ranks,
                     .samples_per_step = samples,
                     .precision = stochastic ? DType::kBFloat16 : DType::kFloat32,
                     .stochastic_rounding = stochastic,
                     .optimizer = optimizer};
    };
    expect_same_bits(setup("full_shard", 3), {setup("zero2", 2), setup("no_shard", 1)});
    expect_same_bits(setup("no_shard", 1), {setup("full_shard", 4)});
    expect_same_bits(setup("zero1", 4, 4), {setup("hybrid_shard", 4, 4), setup("zero2", 2, 4)});
  }
}

TEST(Resume, TakesStatesOfBlocksOnAnyNumberOfRanks) {
  expect_same_bits_on_any_number_of_ranks("adamw8bit");
}

TEST(Resume, TakesMomentsOfRowsAndColumnsOnAnyNumberOfRanks) {
  expect_same_bits_on_any_number_of_ranks("adafactor");
}

// Codes are of other states than fp32 moments: neither is taken for the other.
TEST(Resume, BeginsCodedStatesFromZeroBesideOthers) {
  const TemporaryFolder folder;
  TrainerOptions begin = options_of({});
  begin.checkpoints.folder = folder.path("run");
  begin.stop_after = 2;
  train(begin);
  TrainerOptions rest = options_of({.optimizer = "adamw8bit"});
  rest.checkpoints.resume = folder.path("run");
  rest.checkpoints.allow_other_optimizer = true;
  const Model model = test::checkpointed_gpt();
  const RandomTokens data = test::checkpointed_data();
  std::string notes;
  const Trainer trainer(model, data, rest);
  for (const std::string& note : trainer.plan().notes) notes += note + "\n";
  EXPECT_THAT(notes, testing::HasSubstr("first-moment-codes (not there: from zero)"));
  const Numbers numbers = train(rest, 2);
  EXPECT_TRUE(std::isfinite(numbers.losses.back()));
}

TEST(Resume, FilesHaveEveryElementOnceAndAsManyBytesAsPlanned) {
  const Model model = test::checkpointed_gpt();
  const RandomTokens data = test::checkpointed_data();
  for (const char* strategy : {"no_shard", "zero1", "full_shard", "hybrid_shard"}) {
    SCOPED_TRACE(strategy);
    const TemporaryFolder folder;
    TrainerOptions options = options_of({strategy, 4});
    options.checkpoints.folder = folder.path("run");
    options.checkpoints.every = 2;
    std::vector<SaveRecord> saves;
    const Trainer trainer(model, data, options);
    const TrainingSummary summary =
        trainer.train({}, {}, {}, [&](const SaveRecord& record) { saves.push_back(record); });
    EXPECT_EQ(summary.saves, 3);
    ASSERT_EQ(saves.size(), 3U);
    EXPECT_EQ(saves.back().path, folder.path("run/step_6"));
    const Manifest manifest = read_manifest(saves.back().path);  // checks that all is there, once
    EXPECT_EQ(manifest.step, 6);
    EXPECT_EQ(manifest.samples, 72);
    ASSERT_EQ(manifest.files.size(), 4U);
    std::int64_t bytes = 0;
    for (const SavedFile& file : manifest.files) {
      const auto on_disk = std::filesystem::file_size(concat(saves.back().path, "/", file.name));
      EXPECT_EQ(static_cast<std::int64_t>(on_disk), file.bytes);
      bytes += file.bytes;
    }
    EXPECT_EQ(manifest.files[0].bytes, trainer.plan().checkpoint_bytes);
    EXPECT_EQ(bytes, saves.back().bytes);
    EXPECT_EQ(verify_files(manifest, saves.back().path), bytes);
    const std::int64_t state_bytes = 3 * 4 * parameter_count(model);
    EXPECT_GT(bytes, state_bytes);
    EXPECT_LT(bytes, state_bytes + 4 * 16384) << "only headers besides";
  }
}

TEST(Resume, GoesOnTwiceAndKeepsTheNewestOnly) {
  const TemporaryFolder folder;
  const Numbers whole = train(options_of({}), 4);
  for (int part = 0; part < 3; ++part) {
    TrainerOptions options = options_of({"zero2", part + 1});
    options.checkpoints = {
        .folder = folder.path("run"), .every = 1, .total_limit = 2, .resume = "auto"};
    options.stop_after = 2;
    const Numbers numbers = train(options, 4);
    EXPECT_EQ(numbers == whole, part == 2);
    const auto found = list_checkpoints(folder.path("run"));
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found.back().step, 2 * (part + 1));
  }
}

/// Remembers the first sample that it was asked for.
struct WatchedTokens : RandomTokens {
  WatchedTokens() : RandomTokens(test::checkpointed_data()) {}
  std::int64_t fill(std::int64_t first, std::int64_t n, TensorView inputs,
                    TensorView targets) const override {
    if (watches) smallest = std::min(smallest, first);
    return RandomTokens::fill(first, n, inputs, targets);
  }
  mutable std::int64_t smallest = 1 << 20;
  mutable bool watches = false;
};

/// Samples go on where they were, also with another size of a step.
TEST(Resume, GoesOnAtTheNextSampleIfAStepHasMoreOfThem) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of({});
  options.checkpoints.folder = folder.path("run");
  options.stop_after = kSavedAt;
  train(options);
  const Model model = test::checkpointed_gpt();
  const WatchedTokens data;
  TrainerOptions rest = options_of({});
  rest.accumulate = 5;
  rest.checkpoints.resume = folder.path("run");
  const Trainer trainer(model, data, rest);
  data.watches = true;  // no longer to compare the data
  trainer.train();
  EXPECT_EQ(data.smallest, 12 * kSavedAt);
}

std::string refusal(const TrainerOptions& options) {
  try {
    train(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Resume, NamesWhatDiffersAndTheOptionThatAllowsIt) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of({});
  options.checkpoints.folder = folder.path("run");
  options.stop_after = 2;
  train(options);

  TrainerOptions rest = options_of({});
  rest.checkpoints.resume = folder.path("run");
  rest.optimizer.weight_decay = 0.25F;
  EXPECT_THAT(refusal(rest), AllOf(HasSubstr("weight_decay was"), HasSubstr("0.25"),
                                   HasSubstr("`checkpoints.allow_other_optimizer`")));
  rest.checkpoints.allow_other_optimizer = true;
  EXPECT_EQ(refusal(rest), "");
  rest.optimizer.name = "sgd";
  rest.optimizer.hyperparameters = {};
  EXPECT_EQ(refusal(rest), "");
  rest = options_of({});
  rest.seed = 3;
  rest.checkpoints.resume = folder.path("run");
  EXPECT_THAT(refusal(rest),
              AllOf(HasSubstr("seed was 0 and is 3"), HasSubstr("`checkpoints.allow_other_data`")));
  rest = options_of({});
  rest.steps = 2;
  rest.checkpoints.resume = folder.path("run");
  EXPECT_THAT(refusal(rest), HasSubstr("nothing left to train"));
  rest = options_of({});
  rest.checkpoints.folder = folder.path("run");
  EXPECT_THAT(refusal(rest), HasSubstr("has checkpoints already"));
  rest.checkpoints.folder = "";
  rest.checkpoints.resume = "latest";
  EXPECT_THAT(refusal(rest), HasSubstr("`checkpoints.folder`, which is not given"));
  rest.checkpoints.resume = folder.path("nothing");
  EXPECT_THAT(refusal(rest), HasSubstr("there is no checkpoint in"));
}

TEST(Resume, NamesAFlippedBitBeforeAStep) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of({"full_shard", 2});
  options.checkpoints.folder = folder.path("run");
  options.stop_after = 1;
  train(options);
  TrainerOptions rest = options_of({"zero1", 3});
  rest.checkpoints.resume = folder.path("run");
  const std::string checkpoint = folder.path("run/step_1");
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    SCOPED_TRACE(entry.path());
    const auto size = static_cast<std::int64_t>(entry.file_size());
    for (const std::int64_t place : {std::int64_t{3}, size / 3, size - 2}) {
      const auto flip = [&] {
        std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(place);
        const int byte = file.get();
        file.seekp(place);
        file.put(static_cast<char>(byte ^ 16));
      };
      flip();
      EXPECT_THAT(refusal(rest), HasSubstr(entry.path().filename().string())) << place;
      flip();
    }
  }
  EXPECT_EQ(refusal(rest), "");
}

/// A folder with checkpoints of steps 1, 2 and 3, by two ranks.
class DamagedCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    TrainerOptions options = options_of({"full_shard", 2});
    options.checkpoints = {.folder = folder_.path("run"), .every = 1};
    options.stop_after = 3;
    train(options);
  }
  std::string at(const std::string& name) const { return folder_.path("run/" + name); }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void write(const std::string& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  /// Every way to be damaged that shows without reading what is in the files.
  struct Damage {
    std::string name;
    std::function<void(const std::string& checkpoint)> make;
    std::string said;
  };
  static std::vector<Damage> damages() {
    const auto manifest = [](const std::string& c) { return c + "/manifest.json"; };
    const auto shard = [](const std::string& c) { return c + "/rank_00001.safetensors"; };
    return {
        {"empty manifest", [=](const std::string& c) { write(manifest(c), ""); }, "it is empty"},
        {"cut manifest",
         [=](const std::string& c) {
           const std::string text = text_of(manifest(c));
           write(manifest(c), text.substr(0, text.size() / 2));
         },
         "it was cut off or changed"},
        {"changed manifest",
         [=](const std::string& c) {
           std::string text = text_of(manifest(c));
           text.replace(text.find("full_shard"), 4, "FULL");
           write(manifest(c), text);
         },
         "its hash does not match its text"},
        {"no manifest", [=](const std::string& c) { std::filesystem::remove(manifest(c)); },
         "has no manifest.json"},
        {"no shard", [=](const std::string& c) { std::filesystem::remove(shard(c)); },
         "rank_00001.safetensors' is missing"},
        {"empty shard", [=](const std::string& c) { write(shard(c), ""); }, "has 0 bytes"},
        {"long shard", [=](const std::string& c) { write(shard(c), text_of(shard(c)) + "x"); },
         "that the manifest says"},
        {"nothing", [](const std::string& c) { std::filesystem::remove_all(c); }, "is missing"}};
  }
  TrainerOptions resuming(const std::string& from = "auto", const std::string& save = "run") const {
    TrainerOptions options = options_of({"full_shard", 3});
    options.checkpoints = {.folder = folder_.path(save), .resume = from};
    return options;
  }
  /// The notes of planning the run.
  static std::vector<std::string> notes(const TrainerOptions& options) {
    const Model model = test::checkpointed_gpt();
    const RandomTokens data = test::checkpointed_data();
    return Trainer(model, data, options).plan().notes;
  }
  TemporaryFolder folder_;
};

TEST_F(DamagedCheckpoints, ArePassedOverForTheNewestThatIsWholeWithAWarning) {
  const std::filesystem::path whole(folder_.path("run"));
  for (const Damage& damage : damages()) {
    for (const bool two : {false, true}) {
      SCOPED_TRACE(concat(damage.name, two ? " in two" : " in one"));
      const std::string copy = folder_.path("copy");
      std::filesystem::remove_all(copy);
      std::filesystem::copy(whole, copy, std::filesystem::copy_options::recursive);
      damage.make(copy + "/step_3");
      if (two) damage.make(copy + "/step_2");
      const std::string taken = copy + (two ? "/step_1" : "/step_2");
      for (const std::string& resume : {std::string("auto"), std::string("latest"), copy}) {
        EXPECT_THAT(notes(resuming(resume, "copy")),
                    testing::Contains(AllOf(HasSubstr("WARNING"), HasSubstr("step_3"),
                                            HasSubstr(damage.said), HasSubstr(taken))));
      }
    }
  }
}

/// Bytes that changed in a file show when they are read, by the ranks that need them: here not by
/// rank 0 of three.
class ChangedBytes : public DamagedCheckpoints {
 protected:
  static void change(const std::string& checkpoint) {
    const std::string path = checkpoint + "/rank_00001.safetensors";
    std::string text = text_of(path);
    text[text.size() - 2] = static_cast<char>(text[text.size() - 2] ^ 16);
    write(path, text);
  }
  /// The numbers after `from` steps of a run that goes on, and what it notes.
  static Numbers go_on(const TrainerOptions& options, std::int64_t from,
                       std::vector<std::string>& notes) {
    const Model model = test::checkpointed_gpt();
    const RandomTokens data = test::checkpointed_data();
    Numbers numbers;
    numbers.sha256 = Trainer(model, data, options)
                         .train(
                             [&](const StepRecord& record) {
                               if (record.step <= from) return true;
                               numbers.losses.push_back(record.loss);
                               numbers.norms.push_back(record.gradient_norm);
                               return true;
                             },
                             [&](const std::string& note) { notes.push_back(note); })
                         .parameters_sha256;
    return numbers;
  }
};

TEST_F(ChangedBytes, ArePassedOverForTheCheckpointBeforeWithAWarning) {
  change(at("step_3"));
  for (const bool two : {false, true}) {
    if (two) change(at("step_2"));
    const std::int64_t from = two ? 1 : 2;
    const Numbers whole = train(options_of({"full_shard", 2}), from);
    for (const std::string& resume : {std::string("auto"), std::string("latest"), at("")}) {
      for (const int ranks : {1, 3}) {
        SCOPED_TRACE(concat(resume, " on ", ranks, ", from step ", from));
        TrainerOptions options = options_of({"full_shard", ranks});
        options.checkpoints.resume = resume;
        options.checkpoints.folder = resume == at("") ? "" : folder_.path("run");
        const std::string copy = folder_.path("copy");
        std::filesystem::remove_all(copy);
        std::filesystem::copy(at(""), copy, std::filesystem::copy_options::recursive);
        std::vector<std::string> notes;
        const Numbers numbers = go_on(options, from, notes);
        EXPECT_EQ(numbers.losses.size(), static_cast<std::size_t>(kSteps - from));
        EXPECT_EQ(numbers, whole);
        EXPECT_THAT(notes, testing::Contains(AllOf(HasSubstr("WARNING"), HasSubstr("rank_00001"),
                                                   HasSubstr("does not match its hash"),
                                                   HasSubstr(concat("step_", from)))));
        std::filesystem::remove_all(at(""));
        std::filesystem::copy(copy, at(""), std::filesystem::copy_options::recursive);
      }
    }
  }
}

TEST_F(ChangedBytes, OfAllCheckpointsOrOfANamedOneAreAnError) {
  change(at("step_3"));
  EXPECT_THAT(refusal(resuming(at("step_3"))),
              AllOf(HasSubstr("does not match its hash"),
                    HasSubstr("`checkpoints.resume` " + at("step_2"))));
  change(at("step_2"));
  change(at("step_1"));
  for (const std::string& resume : {std::string("auto"), at("")}) {
    EXPECT_THAT(refusal(resuming(resume)),
                AllOf(HasSubstr("no checkpoint"), HasSubstr("step_3/rank_00001"),
                      HasSubstr("step_2/rank_00001"), HasSubstr("step_1/rank_00001")));
  }
}

/// Only the second process reads what is damaged, and each goes on from the same one.
TEST_F(ChangedBytes, AreFoundByOneProcessAndPassedOverByAll) {
  change(at("step_3"));
  const Numbers whole = train(options_of({"full_shard", 2}), 2);
  const int listener = listen_at(kLoopback, 0).socket;
  const int port = port_of_listener(listener);
  launch_ranks(2, [&](int process) {
    TrainerOptions options = options_of({"full_shard", 4});
    options.world = make_socket_world({.process = process,
                                       .processes = 2,
                                       .address = "127.0.0.1",
                                       .port = port,
                                       .listener = process == 0 ? listener : -1},
                                      {.local_ranks = 2, .timeout = std::chrono::seconds(60)});
    options.checkpoints = {.folder = folder_.path("run"), .resume = "auto"};
    std::vector<std::string> notes;
    const Numbers numbers = go_on(options, 2, notes);
    EXPECT_EQ(numbers.sha256, whole.sha256);
    if (process == 0) {
      EXPECT_EQ(numbers, whole);
      EXPECT_THAT(notes, testing::Contains(AllOf(HasSubstr("WARNING"), HasSubstr("step_2"))));
    }
  });
}

TEST_F(DamagedCheckpoints, GiveTheBitsOfTheWholeRunAfterAll) {
  write(at("step_3/manifest.json"), "");
  EXPECT_EQ(train(resuming(), kSavedAt), train(options_of({"full_shard", 2}), kSavedAt));
  EXPECT_EQ(damage_of(at("step_6")), "");
}

TEST_F(DamagedCheckpoints, AreAllNamedIfNoneIsWholeAndTheRunDoesNotBeginAnew) {
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    if (damage.name == "nothing") continue;
    const std::string copy = folder_.path("copy");
    std::filesystem::remove_all(copy);
    std::filesystem::copy(folder_.path("run"), copy, std::filesystem::copy_options::recursive);
    for (const char* const step : {"/step_1", "/step_2", "/step_3"}) damage.make(copy + step);
    EXPECT_THAT(refusal(resuming("auto", "copy")),
                AllOf(HasSubstr("no checkpoint"), HasSubstr(damage.said), HasSubstr("step_1"),
                      HasSubstr("step_2"), HasSubstr("step_3")));
  }
}

TEST_F(DamagedCheckpoints, ThatAreNamedThemselvesAreRefused) {
  write(at("step_3/manifest.json"), "");
  EXPECT_THAT(refusal(resuming(at("step_3"))),
              AllOf(HasSubstr("step_3/manifest.json"), HasSubstr("it is empty")));
}

TEST_F(DamagedCheckpoints, TheFileLatestStandsForItsFolder) {
  EXPECT_EQ(find_checkpoint(at("latest")), at("step_3"));
  EXPECT_EQ(list_checkpoints(at("latest")).size(), 3U);
  EXPECT_EQ(find_checkpoint(at("lock")), "");
  EXPECT_THAT(notes(resuming(at("latest"))), testing::Contains(HasSubstr("at step 3")));
  write(at("step_3/manifest.json"), "");
  EXPECT_THAT(notes(resuming(at("latest"))), testing::Contains(HasSubstr("at step 2")));
  std::filesystem::remove(at("latest"));
  EXPECT_EQ(find_whole_checkpoint(folder_.path("run")).path, at("step_2"));
}

// A crash between two renames leaves the one that was to be replaced.
TEST_F(DamagedCheckpoints, OneThatWasReplacedIsTakenWhereItsSuccessorIsNot) {
  std::filesystem::copy(at("step_3"), at("step_3.old"));
  write(at("step_3/manifest.json"), "");
  EXPECT_EQ(find_whole_checkpoint(folder_.path("run")).path, at("step_3.old"));
  std::filesystem::remove_all(at("step_3"));
  const WholeCheckpoint found = find_whole_checkpoint(folder_.path("run"));
  EXPECT_EQ(found.path, at("step_3.old"));
  EXPECT_TRUE(found.damages.empty());
}

// Checkpoints of a run that was given up are taken last.
TEST_F(DamagedCheckpoints, StepsBeforeTheLatestComeFirst) {
  write(at("latest"), "step_2\n");
  EXPECT_EQ(find_whole_checkpoint(folder_.path("run")).path, at("step_2"));
  write(at("step_2/manifest.json"), "");
  EXPECT_EQ(find_whole_checkpoint(folder_.path("run")).path, at("step_1"));
  write(at("step_1/manifest.json"), "");
  EXPECT_EQ(find_whole_checkpoint(folder_.path("run")).path, at("step_3"));
}

TEST(Session, SavesWhenItIsAskedTo) {
  const TemporaryFolder folder;
  const Model model = test::checkpointed_gpt();
  const RandomTokens data = test::checkpointed_data();
  TrainerOptions options = options_of({"zero2", 2});
  Session session(model, data, options);
  session.step();
  EXPECT_EQ(session.save(folder.path("a")), folder.path("a/step_1"));
  EXPECT_FALSE(session.poll_save().has_value());
  session.begin_save(folder.path("b"));
  session.step();
  const auto record = session.finish_save();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->step, 1);
  EXPECT_EQ(record->waited_seconds, 0.0) << "the step copied the state";
  EXPECT_EQ(read_manifest(folder.path("a/step_1")).files[1].chunk_hashes,
            read_manifest(record->path).files[1].chunk_hashes)
      << "the step after it changed nothing of it";
  EXPECT_FALSE(session.finish_save().has_value());
}

TEST(Session, CopiesTheStateOfASaveBeforeItsParametersAreOverwritten) {
  const TemporaryFolder folder;
  const Model model = test::checkpointed_gpt();
  const RandomTokens data = test::checkpointed_data();
  Session session(model, data, options_of({"zero2", 2}));
  session.step();
  const std::string before = session.save(folder.path("a"));
  session.begin_save(folder.path("b"));
  EXPECT_FALSE(session.poll_save().has_value());
  const std::vector<float> zeros(static_cast<std::size_t>(parameter_count(model)));
  std::map<std::string, std::size_t> sizes;
  for (const FullParameter& parameter : session.parameters()) {
    sizes[parameter.name] = parameter.values.size();
  }
  session.set_parameters(
      [&](const std::string& name) { return std::span(zeros).first(sizes.at(name)); });
  const auto record = session.finish_save();
  ASSERT_TRUE(record.has_value());
  EXPECT_GT(record->waited_seconds, 0.0);
  EXPECT_EQ(read_manifest(before).files[0].chunk_hashes,
            read_manifest(record->path).files[0].chunk_hashes);
}

}  // namespace
}  // namespace tessera::resume_test
