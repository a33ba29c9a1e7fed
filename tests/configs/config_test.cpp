#include "tessera/compat/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_folder.h"
#include "tessera/compat/launcher.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ConfigTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text) { return folder_.write("config.json", text); }
  std::string error_of_file(const std::string& text) {
    Config config(trainer_settings());
    try {
      config.read_file(write(text));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    ADD_FAILURE() << "accepted: " << text;
    return "";
  }
  std::string error_of_text(const std::string& name, const std::string& text) {
    Config config(trainer_settings());
    try {
      config.set_text(name, text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    ADD_FAILURE() << "accepted: " << name << " " << text;
    return "";
  }

  const test::TemporaryFolder folder_;
};

TEST_F(ConfigTest, FlagsWinOverTheFileAndTheFileOverDefaults) {
  Config config(trainer_settings());
  EXPECT_EQ(config.get<int>("micro_batch"), 4);
  EXPECT_FALSE(config.given("micro_batch"));
  config.read_file(write("{\"micro_batch\": 8, \"ranks\": 3 /* of 4 */}\n// done\n"));
  config.set_text("micro_batch", "16");
  EXPECT_EQ(config.get<int>("micro_batch"), 16);
  EXPECT_EQ(config.get<int>("ranks"), 3);
  EXPECT_TRUE(config.given("ranks"));
}

TEST_F(ConfigTest, StagesDivideTheRanksOfAMesh) {
  const auto text = [](const char* type, const char* axes) {
    return concat(R"({"distributed_type": ")", type, R"(", "num_processes": 8,
        "fsdp_config": {"fsdp_version": 2}, "parallelism_config": {)",
                  axes, "}}");
  };
  constexpr const char* kPrefix = "parallelism_config_";
  const auto axis = [&](const char* name, int size) {
    return concat('"', kPrefix, name, "_size\": ", size);
  };
  Config sharded(trainer_settings());
  const std::string two = axis("pp", 2) + "," + axis("dp_replicate", 2);
  sharded.read_file(write(text("FSDP", (two + "," + axis("dp_shard", 2)).c_str())));
  EXPECT_EQ(sharded.get<int>("pipeline"), 2);
  EXPECT_EQ(sharded.get<int>("replicas"), 2);
  EXPECT_EQ(sharded.get<std::string>("strategy"), "hybrid_shard");
  EXPECT_THAT(error_of_file(text("FSDP", (two + "," + axis("dp_shard", 4)).c_str())),
              HasSubstr("2 x dp_shard_size 4 x pp_size 2 has 16 ranks, but there are 8"));
  EXPECT_THAT(error_of_file(text("MULTI_GPU", axis("pp", 3).c_str())),
              HasSubstr("does not divide 8 ranks"));
  EXPECT_THAT(error_of_file(text("DEEPSPEED", axis("pp", 2).c_str())), HasSubstr("--pipeline"));
  Config replicated(trainer_settings());
  const std::string four = axis("pp", 2) + "," + axis("dp_replicate", 4);
  replicated.read_file(write(text("MULTI_GPU", four.c_str())));
  EXPECT_EQ(replicated.get<int>("pipeline"), 2);
}

TEST_F(ConfigTest, DeepSpeedsBatchIsOfTheRanksOfAStage) {
  Config config(trainer_settings());
  config.set_text("ranks", "4");
  config.set_text("pipeline", "2");
  config.read_file(write(R"({"train_batch_size": 8, "gradient_accumulation_steps": 2})"));
  EXPECT_EQ(config.get<int>("micro_batch"), 2);
}

TEST_F(ConfigTest, EverySettingRoundTripsThroughAFile) {
  const Config defaults(trainer_settings());
  Config config(trainer_settings());
  config.read_file(write(defaults.values().dump()));
  EXPECT_EQ(config.values(), defaults.values());
  for (const Setting& setting : config.table()) EXPECT_TRUE(config.given(setting.name));
}

TEST_F(ConfigTest, DefaultsAreThoseOfTheLibraryAsAPersonWouldWriteThem) {
  Config config(trainer_settings());
  set_effective(config, trainer_options(config));
  EXPECT_EQ(config.values()["strategy"], TrainerOptions{}.strategy);
  EXPECT_EQ(config.values()["beta1"].dump(), "0.9");
  EXPECT_EQ(config.values()["beta2"].dump(), "0.95");
  EXPECT_EQ(config.values()["epsilon"].dump(), "1e-08");
  EXPECT_EQ(config.values()["timeout"].dump(), "120.0");
}

TEST_F(ConfigTest, EverySettingIsExplained) {
  for (const Setting& setting : trainer_settings()) {
    EXPECT_FALSE(setting.help.empty()) << setting.name;
    EXPECT_FALSE(setting.group.empty()) << setting.name;
  }
}

TEST_F(ConfigTest, KeysMayBeSpeltAsFlags) {
  Config config(trainer_settings());
  config.read_file(write(R"({"micro-batch": 8, "memory-limit": "2MiB"})"));
  EXPECT_EQ(config.get<int>("micro_batch"), 8);
  EXPECT_EQ(config.get<std::int64_t>("memory_limit"), 2 << 20);
}

TEST_F(ConfigTest, UnknownKeysNameTheNearest) {
  EXPECT_THAT(error_of_file(R"({"micro_bacth": 8})"),
              AllOf(HasSubstr(".json:1: "), HasSubstr("micro_bacth"), HasSubstr("'micro_batch'")));
  EXPECT_THAT(error_of_file(R"({"zzzzzzzzzzzzzz": 8})"), HasSubstr("unknown key"));
  EXPECT_THAT(error_of_file("{\"ranks\": 2,\n\"stpes\": 8,\n\"sead\": 1}"),
              AllOf(HasSubstr(".json:2: stpes: unknown key; did you mean 'steps'?"),
                    HasSubstr(".json:3: sead: unknown key; did you mean 'seed'?")));
}

TEST_F(ConfigTest, KeysOfTrackersHaveNoEffectAndSayWhatHas) {
  Config config(trainer_settings());
  config.read_file(write("{\"ranks\": 2,\n\"report_to\": \"wandb\",\n\"log_with\": \"mlflow\"}"));
  EXPECT_EQ(config.get<int>("ranks"), 2);
  EXPECT_THAT(config.announcements(),
              ElementsAre(HasSubstr(".json:2: report_to: metrics go to files"),
                          AllOf(HasSubstr(".json:3: log_with: "), HasSubstr("tessera.track"))));
}

TEST_F(ConfigTest, BadFilesSayWhatIsWrong) {
  EXPECT_THAT(error_of_file("{\"ranks\": 2,\n \"steps\" 3}"),
              AllOf(HasSubstr("not valid JSON"), HasSubstr("line 2")));
  EXPECT_THAT(error_of_file("[1]"), HasSubstr("expected one object"));
  for (const char* empty : {"", " \n"}) {
    EXPECT_THAT(error_of_file(empty), HasSubstr(": is empty; write settings into it"));
  }
  for (const char* toml : {"ranks = 2\n", "# ours\n\n[training.first]  # one\nranks = 2\n",
                           "[[runs]]\nranks = 2\n", "\"ranks\"=2\n"}) {
    EXPECT_THAT(error_of_file(toml), HasSubstr("is a TOML file; settings are read from YAML or"));
  }
  EXPECT_THAT(error_of_file("data: a = b\nrank: 3\n"), Not(HasSubstr("TOML")));
  EXPECT_THAT(error_of_file(R"({"device": "c\u0000pu"})"), HasSubstr(":1: a text holds a NUL"));
  EXPECT_THAT(error_of_file(R"({"micro_batch": 1, "micro-batch": 2})"), HasSubstr("twice"));
  EXPECT_THAT(error_of_file(R"({"ranks": "2"})"), AllOf(HasSubstr("ranks"), HasSubstr("integer")));
  EXPECT_THAT(error_of_file(R"({"ranks": {"n": 2}})"), HasSubstr("integer"));
  EXPECT_THAT(error_of_file(R"({"ranks": 2.5})"), HasSubstr("integer"));
  EXPECT_THAT(error_of_file(R"({"ranks": null})"), HasSubstr("integer"));
  EXPECT_THAT(error_of_file(R"({"seed": 18446744073709551615})"),
              HasSubstr("out of range; allowed: 0 to 9223372036854775807"));
  EXPECT_THAT(error_of_file(R"({"time_actions": 1})"), HasSubstr("true or false"));
  Config config(trainer_settings());
  EXPECT_THROW(config.read_file("/nonexistent/x.json"), Error);
  for (const char* open : {"device: \"cpu\n", "device: 'cpu"}) {
    try {
      config.read_file(folder_.write("open.yaml", open));
      ADD_FAILURE() << "accepted " << open;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("a quote that was opened is not closed"));
    }
  }
  try {
    config.read_file(folder_.write("config.yaml", "seed: 1\nsteps: 010\n"));
    ADD_FAILURE() << "accepted 010";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(".yaml:2: steps: \"010\" is not an integer; "),
                                    HasSubstr("leave out the leading zero")));
  }
}

TEST_F(ConfigTest, BadTextsNameFlagValueAndWhatIsAllowed) {
  EXPECT_THAT(error_of_text("micro_batch", "four"),
              AllOf(HasSubstr("--micro-batch"), HasSubstr("'four'"), HasSubstr("integer")));
  EXPECT_THAT(error_of_text("micro_batch", ""), HasSubstr("integer"));
  EXPECT_THAT(error_of_text("micro_batch", "4x"), HasSubstr("'4x'"));
  EXPECT_THAT(error_of_text("micro_batch", "0"), AllOf(HasSubstr("0"), HasSubstr("1 to")));
  EXPECT_THAT(error_of_text("seed", "-1"), HasSubstr("at least 0"));
  EXPECT_THAT(error_of_text("seed", "99999999999999999999"),
              HasSubstr("out of range; allowed: 0 to 9223372036854775807"));
  EXPECT_THAT(error_of_text("clip_norm", "1e999"), HasSubstr("1e999 is out of range"));
  EXPECT_THAT(error_of_text("learning_rate", "nan"), HasSubstr("finite"));
  EXPECT_THAT(error_of_text("learning_rate", "inf"), HasSubstr("finite"));
  EXPECT_THAT(error_of_text("learning_rate", "-0.1"), HasSubstr("at least 0"));
  EXPECT_THAT(error_of_text("beta1", "1"), HasSubstr("below 1"));
  EXPECT_THAT(error_of_text("beta2", "0.9999999999"), HasSubstr("is 1 in fp32"));
  EXPECT_THAT(error_of_text("epsilon", "0"), HasSubstr("above 0"));
  for (const char* bad : {"1e308", "1e-320"}) {
    EXPECT_THAT(error_of_text("epsilon", bad), HasSubstr("out of range of fp32; it must be"));
  }
  for (const char* name : {"weight_decay", "learning_rate", "minimum_learning_rate"}) {
    EXPECT_THAT(error_of_text(name, "1e308"), HasSubstr("1e+308 is out of range of fp32"));
  }
  EXPECT_THAT(error_of_text("precision", "int8"), AllOf(HasSubstr("fp32"), HasSubstr("bf16")));
  EXPECT_THAT(error_of_text("recompute", "ful"),
              HasSubstr("unknown value 'ful'; did you mean 'full'? allowed: none"));
  EXPECT_THAT(error_of_text("strategy", "zero9"), HasSubstr("zero"));
  EXPECT_THAT(error_of_text("wrap", "size:0"), HasSubstr("size:N"));
  EXPECT_THAT(error_of_text("parameter_placement", "shards"), HasSubstr("shard"));
  EXPECT_THAT(error_of_text("memory_limit", "4 parsecs"), HasSubstr("4GiB"));
  EXPECT_THAT(error_of_text("time_actions", "perhaps"), HasSubstr("true or false"));
}

TEST_F(ConfigTest, ALauncherSaysHowManyRanksANodeHas) {
  const auto options_on = [](int machines, bool given) {
    Config config(trainer_settings());
    config.set_text("strategy", "hybrid_shard");
    if (given) config.set_text("ranks_per_node", "2");
    adopt_launcher({.kind = Launcher::Kind::kSockets,
                    .name = "torchrun",
                    .process = 0,
                    .processes = 32,
                    .machines = machines},
                   config);
    return trainer_options(config);
  };
  EXPECT_EQ(options_on(4, false).ranks_per_node, 8);
  EXPECT_EQ(options_on(4, false).replicas, 4);
  EXPECT_EQ(options_on(1, false).replicas, 2);
  EXPECT_EQ(options_on(0, false).replicas, 2);  // not known
  EXPECT_EQ(options_on(4, true).replicas, 16);
}

TEST_F(ConfigTest, OptionsComeOutAsTheyWentIn) {
  Config config(trainer_settings());
  config.read_file(write(R"({"ranks": 4, "replicas": 2, "strategy": "HSDP", "precision": "bf16",
    "optimizer_placement": "replicate+shard", "wrap": "size:1000", "recompute": "selective",
    "learning_rate": 0.02, "learning_rate_schedule": "wsd", "steps": 50, "clip_norm": 0,
    "beta2": 0.99, "timeout": 1.5, "reduction_order": "hierarchical", "accumulate": 3,
    "stochastic_rounding": true})"));
  const TrainerOptions options = trainer_options(config);
  EXPECT_EQ(options.strategy, "hybrid_shard");
  EXPECT_EQ(options.replicas, 2);
  EXPECT_EQ(options.placement->optimizer, (AxisSet{Axis::kReplicate, Axis::kShard}));
  EXPECT_EQ(options.placement->parameter, AxisSet{Axis::kShard});
  EXPECT_EQ(options.precision, DType::kBFloat16);
  EXPECT_EQ(options.wrap.kind, WrapPolicy::Kind::kSize);
  EXPECT_EQ(options.wrap.min_numel, 1000);
  EXPECT_EQ(options.policy.recompute, Recompute::kSelective);
  EXPECT_EQ(options.reduction_order, ReductionOrder::kHierarchical);
  EXPECT_EQ(options.learning_rate.kind, LearningRateSchedule::Kind::kWsd);
  EXPECT_EQ(options.learning_rate.total_steps, 50);
  EXPECT_EQ(options.learning_rate.warmup_steps, 5);
  EXPECT_EQ(options.learning_rate.decay_steps, 10);
  EXPECT_DOUBLE_EQ(*options.learning_rate.minimum, 0.002);
  EXPECT_EQ(options.optimizer.clip_norm, 0.0);
  EXPECT_EQ(options.optimizer.hyperparameters.at("beta2"), 0.99);
  EXPECT_TRUE(options.optimizer.stochastic_rounding);
  EXPECT_EQ(options.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(options.accumulate, 3);

  // What a log says is what a config file may say, and it means the same.
  set_effective(config, options);
  Config again(trainer_settings());
  again.read_file(write(config.values().dump()));
  EXPECT_EQ(again.values(), config.values());
  const TrainerOptions same = trainer_options(again);
  EXPECT_EQ(same.placement, options.placement);
  EXPECT_EQ(same.learning_rate.decay_steps, options.learning_rate.decay_steps);
}

TEST_F(ConfigTest, ATableWithAMistakeIsABug) {
  EXPECT_THROW(Config({{.name = "a"}, {.name = "a"}}), Error);
  EXPECT_THROW(Config({{.name = "a", .type = SettingType::kInteger, .fallback = 0, .minimum = 1}}),
               Error);
}

TEST_F(ConfigTest, AFolderIsNoFile) {
  Config config(trainer_settings());
  try {
    config.read_file(folder_.path());
    ADD_FAILURE() << "read a folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("is a folder"));
  }
}

TEST(ByteSize, FormatsThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "0.98 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{10} << 20), "10.0 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{119} << 30), "119 GiB");
}

TEST(ByteSize, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("1500000"), 1500000);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(parse_bytes("4 GiB"), std::int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("4g"), std::int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("4GB"), 4'000'000'000);
  for (const char* text : {"", "GiB", "-1", "4 GiBs", "1e30", "nan", "4GiB4"}) {
    EXPECT_THROW(parse_bytes(text), Error) << text;
  }
}

}  // namespace
}  // namespace tessera
