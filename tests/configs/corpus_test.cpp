// Reads every file of tests/configs/corpus and compares with what is written beside it.
//
// <name>.expected.json holds, for a file that is wrong, the exact "error"; else the "dialect", the
// "settings" that are not at their default, each with its source, and the lines that are
// "announced". "arguments" are given as on the command line, "launch" says what started the
// processes: {"launcher": "torchrun", "machines": 2, "ranks": 4}; "unlike_accelerate" is for
// golden_test.cpp. To write the expectations of new
// files, run with TESSERA_UPDATE_EXPECTATIONS=1 and read the difference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tessera/compat/config.h"
#include "tessera/core/error.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::corpus_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kSuffix = ".expected.json";

fs::path corpus() { return fs::path(TESSERA_SOURCE_DIR) / "tests" / "configs" / "corpus"; }

bool is_expectation(const std::string& name) {
  return name.size() > std::string(kSuffix).size() && name.ends_with(kSuffix);
}

std::vector<std::string> files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(corpus())) {
    const std::string name = entry.path().filename().string();
    if (!is_expectation(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

ordered_json read_json(const fs::path& path) {
  std::ifstream file(path);
  return file.is_open() ? ordered_json::parse(file) : ordered_json();
}

/// Paths in messages are as given: the test runs inside the corpus.
class InsideCorpus {
 public:
  InsideCorpus() : before_(fs::current_path()) { fs::current_path(corpus()); }
  ~InsideCorpus() { fs::current_path(before_); }

 private:
  fs::path before_;
};

/// The settings of a program that trains, and writes files of its steps.
Config make_config() {
  std::vector<Setting> table = trainer_settings();
  for (Setting& setting : output_settings()) table.push_back(std::move(setting));
  table.push_back(state_dict_setting());
  return Config(std::move(table));
}

/// Reads `name` as the program would that the expectation describes.
Config read(
    const std::string& name, const ordered_json& expected,
    const Environment& environment = [](const char*) { return nullptr; },
    const std::vector<std::string>& variables = {}) {
  Config config = make_config();
  const ordered_json none = ordered_json::object();
  const ordered_json arguments = expected.value("arguments", none);
  for (const auto& [flag, value] : arguments.items()) {
    config.set_text(flag, value.get<std::string>());
  }
  const ordered_json launch = expected.value("launch", none);
  if (!launch.empty()) {
    config.set_launch({.launcher = launch.at("launcher"),
                       .machines = launch.value("machines", 0),
                       .ranks = launch.value("ranks", 0)});
  }
  config.read_environment(environment, variables);
  config.read_file(name);
  return config;
}

ordered_json outcome_of(const std::string& name, const ordered_json& expected) {
  const InsideCorpus inside;
  ordered_json result = ordered_json::object();
  for (const char* given : {"arguments", "launch", "unlike_accelerate"}) {
    if (expected.contains(given)) result[given] = expected[given];
  }
  try {
    const Config config = read(name, expected);
    const TrainerOptions options = trainer_options(config);
    static_cast<void>(options);
    const ConfigTranslation& translation = config.translations().at(0);
    result["dialect"] = to_string(translation.dialect);
    ordered_json settings = ordered_json::object();
    for (const auto& [setting, value] : config.values().items()) {
      if (config.given(setting)) settings[setting] = {value, config.source(setting)};
    }
    result["settings"] = settings;
    result["announced"] = translation.announcements();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
    result["error"] = error.what();
  }
  return result;
}

class Corpus : public ::testing::TestWithParam<std::string> {};

TEST_P(Corpus, MeansWhatIsWrittenBesideIt) {
  const std::string& name = GetParam();
  const fs::path path = corpus() / (name + kSuffix);
  const ordered_json expected = read_json(path);
  const ordered_json outcome =
      outcome_of(name, expected.is_null() ? ordered_json::object() : expected);
  if (std::getenv("TESSERA_UPDATE_EXPECTATIONS") != nullptr) {
    std::ofstream(path) << outcome.dump(2) << "\n";
    GTEST_SKIP() << "wrote " << path;
  }
  ASSERT_FALSE(expected.is_null()) << "there is no " << path;
  EXPECT_EQ(outcome.dump(2), expected.dump(2));
}

INSTANTIATE_TEST_SUITE_P(Files, Corpus, ::testing::ValuesIn(files()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST(CorpusFiles, EveryExpectationHasItsFile) {
  const std::vector<std::string> names = files();
  EXPECT_GE(names.size(), 60U);
  for (const auto& entry : fs::directory_iterator(corpus())) {
    const std::string name = entry.path().filename().string();
    if (!is_expectation(name)) continue;
    const std::string file = name.substr(0, name.size() - std::string(kSuffix).size());
    EXPECT_NE(std::find(names.begin(), names.end(), file), names.end()) << name;
  }
}

/// Nothing may be silent: each key of each file that is accepted is told of.
TEST(CorpusFiles, EveryKeyOfEveryFileIsExplained) {
  const InsideCorpus inside;
  int accepted = 0;
  for (const std::string& name : files()) {
    const ordered_json expected = read_json(corpus() / (name + kSuffix));
    if (expected.is_null() || expected.contains("error")) continue;
    const Config config = read(name, expected);
    ++accepted;
    for (const ConfigEntry& entry : config.translations().at(0).entries) {
      ASSERT_TRUE(entry.outcome.has_value()) << entry.where() << " " << entry.key;
      EXPECT_FALSE(entry.settings.empty() && entry.note.empty() && entry.difference.empty())
          << entry.where() << " " << entry.key;
    }
  }
  EXPECT_GE(accepted, 60);
}

std::string effective(Config config) {
  set_effective(config, trainer_options(config));
  return config.values().dump();
}

/// What `tessera launch` exports says nothing else than the file that its children read as well.
TEST(CorpusFiles, TrainAndLaunchAgree) {
  const InsideCorpus inside;
  int compared = 0;
  for (const std::string& name : files()) {
    const ordered_json expected = read_json(corpus() / (name + kSuffix));
    if (expected.is_null() || expected.contains("error")) continue;
    const Config alone = read(name, expected);
    const auto exported = exported_variables(alone.translations().at(0));
    if (exported.empty()) continue;
    ++compared;
    const Environment environment = [&](const char* variable) -> const char* {
      const auto found = exported.find(variable);
      return found == exported.end() ? nullptr : found->second.c_str();
    };
    std::vector<std::string> names;
    for (const auto& [variable, value] : exported) names.push_back(variable);
    const Config child = read(name, expected, environment, names);
    EXPECT_EQ(effective(child), effective(alone)) << name;
    EXPECT_EQ(child.announcements(), alone.announcements()) << name;
    for (const std::string& line : child.translations().at(0).announcements()) {
      EXPECT_EQ(line.find("has no effect"), std::string::npos) << name << ": " << line;
    }
  }
  EXPECT_GE(compared, 40);
}

}  // namespace
}  // namespace tessera::corpus_test
