#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

// README's section "You used ... here it is" beside the tables of keys that are read: each key of
// Accelerate and DeepSpeed stands in a row, by its name or by a pattern like stage3_*, and the row
// says what becomes of it.

namespace tessera::readme_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSourceDir = TESSERA_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return text.str();
}

struct Key {
  std::string name;
  std::string use;  // of KeyUse
  std::string file;
};

std::vector<Key> all_keys() {
  static const std::regex kRule(R"re(\.name = "(\w+)"[^{}]*?\.use = (k\w+))re");
  std::vector<Key> keys;
  for (const auto& entry :
       fs::directory_iterator(fs::path(kSourceDir) / "runtime/trainer/src/foreign")) {
    const std::string name = entry.path().filename();
    if (!name.ends_with("_keys.cpp")) continue;
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator rule(text.begin(), text.end(), kRule), end; rule != end; ++rule) {
      keys.push_back({(*rule)[1], (*rule)[2], name});
    }
  }
  return keys;
}

/// The lines of the section's tables.
std::vector<std::string> rows() {
  const std::string text = text_of(fs::path(kSourceDir) / "README.md");
  const std::size_t begin = text.find("\n## You used");
  const std::size_t end = text.find("\n## ", begin + 1);
  EXPECT_NE(end, std::string::npos);
  std::istringstream lines(text.substr(begin, end - begin));
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| ")) rows.push_back(line);
  }
  return rows;
}

/// Whether the row has the key, or a pattern for it, in code.
bool names(const std::string& row, const std::string& key) {
  static const std::regex kCode("`([^`]*)`");
  static const std::regex kWord(R"(\w+\*?)");
  for (std::sregex_iterator code(row.begin(), row.end(), kCode), end; code != end; ++code) {
    const std::string text = (*code)[1];
    for (std::sregex_iterator word(text.begin(), text.end(), kWord); word != end; ++word) {
      const std::string name = word->str();
      if (name == key) return true;
      if (name.ends_with('*') && key.starts_with(name.substr(0, name.size() - 1))) return true;
    }
  }
  return false;
}

/// What a row must say of a key; nothing in particular if a run honours it.
std::string verdict(const Key& key) {
  if (key.use == "kRefused") return "refused";
  if (key.use == "kQuiet" || key.use == "kSaid") return "no effect";
  EXPECT_EQ(key.use, "kUsed") << key.name;
  return "";
}

TEST(ReadmeHabits, HasEveryKeyAndSaysWhatBecomesOfIt) {
  const std::vector<std::string> table = rows();
  const std::vector<Key> keys = all_keys();
  ASSERT_GT(table.size(), 100U);
  ASSERT_GT(keys.size(), 200U);
  for (const Key& key : keys) {
    std::vector<std::string> found;
    std::ranges::copy_if(table, std::back_inserter(found),
                         [&](const std::string& row) { return names(row, key.name); });
    EXPECT_FALSE(found.empty()) << "no row of README's tables names " << key.name << " of "
                                << key.file;
    if (found.empty()) continue;
    const std::string said = verdict(key);
    EXPECT_TRUE(std::ranges::any_of(
        found, [&](const std::string& row) { return row.find(said) != std::string::npos; }))
        << key.name << " of " << key.file << " is " << key.use << ", but README has\n"
        << found.front();
  }
}

}  // namespace
}  // namespace tessera::readme_test
