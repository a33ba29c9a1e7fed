#include "settings/option_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"

// The library's messages name options by field; the program prints flags.
namespace tessera::cli::option_names_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OptionNames : public test::ProgramTest {};

struct Literal {
  std::string file, text;
};

/// The string literals of a C++ source, without its comments.
std::vector<std::string> literals_in(const std::string& source) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) {
      i = std::min(source.find('\n', i), source.size());
    } else if (source.compare(i, 2, "/*") == 0) {
      i = std::min(source.find("*/", i), source.size()) + 1;
    } else if (source[i] == '"' || source[i] == '\'') {
      const std::size_t begin = i;
      for (++i; i < source.size() && source[i] != source[begin] && source[i] != '\n'; ++i) {
        if (source[i] == '\\') ++i;
      }
      if (source[begin] == '"') all.push_back(source.substr(begin + 1, i - begin - 1));
    }
  }
  return all;
}

/// Of the library: all modules but the program and what reads other programs' flags.
std::vector<Literal> library_literals() {
  std::vector<Literal> all;
  const fs::path root(TESSERA_SOURCE_DIR);
  for (const char* const module : {"runtime", "kernels", "collectives", "model"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / module)) {
      const std::string file = fs::relative(entry.path(), root).string();
      const std::string ending = entry.path().extension().string();
      if (file.starts_with("runtime/cli/") || file.starts_with("runtime/compat/")) continue;
      if (ending != ".cpp" && ending != ".h" && ending != ".cu") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      for (std::string& literal : literals_in(text.str())) {
        all.push_back({file, std::move(literal)});
      }
    }
  }
  return all;
}

/// Flags of other programs: of hf download and of Megatron-LM.
const std::set<std::string> kOthers{"--local-dir", "--num-layers-per-virtual-pipeline-stage",
                                    "--decoder-first-pipeline-num-layers"};

TEST_F(OptionNames, NoMessageOfTheLibraryHasAFlag) {
  const std::regex flag("(^|[^A-Za-z0-9-])(--[a-z][a-z0-9-]*)");
  const std::vector<Literal> all = library_literals();
  EXPECT_GT(all.size(), 5000U);
  for (const Literal& literal : all) {
    for (std::sregex_iterator at(literal.text.begin(), literal.text.end(), flag), end; at != end;
         ++at) {
      const std::string found = (*at)[2];
      EXPECT_TRUE(kOthers.contains(found))
          << literal.file << ": \"" << literal.text << "\": name the option by its field, as `"
          << "policy.recompute`; the program prints its flag "
             "(runtime/cli/src/settings/option_names.cpp)";
    }
  }
}

TEST_F(OptionNames, EachFieldThatAMessageNamesHasAFlag) {
  const std::string help = run({"train", "--help"}).out + run({"launch", "--help"}).out +
                           run({"evaluate", "--help"}).out;
  const std::regex quoted("`([a-z][a-z_.]*)`");
  std::set<std::string> flags;
  for (const Literal& literal : library_literals()) {
    for (std::sregex_iterator at(literal.text.begin(), literal.text.end(), quoted), end; at != end;
         ++at) {
      const std::string flag = flag_of_field((*at)[1].str());
      EXPECT_FALSE(flag.empty()) << literal.file << ": `" << (*at)[1] << "` is no option";
      flags.insert(flag);
    }
  }
  EXPECT_GT(flags.size(), 40U);
  for (const std::string& flag : flags) EXPECT_THAT(help, HasSubstr(flag));
}

TEST_F(OptionNames, AreFlagsWhereTheProgramPrints) {
  EXPECT_EQ(with_flags("use `policy.recompute` full, or leave `offload_activations` out"),
            "use --recompute full, or leave --offload-activations out");
  EXPECT_EQ(with_flags("`checkpoints.resume` `micro_batch`"), "--resume --micro-batch");
  EXPECT_EQ(with_flags("`tessera tokenize` and `none`"), "`tessera tokenize` and `none`");
  EXPECT_EQ(with_flags("it's a ` and `steps` and `"), "it's a ` and --steps and `");
  EXPECT_EQ(with_flags(""), "");
}

TEST_F(OptionNames, HelpHasFlags) {
  const std::string lines = run({"train", "--help"}).out;
  const std::string help = std::regex_replace(lines, std::regex("\\s+"), " ");
  EXPECT_THAT(help, HasSubstr("needs --recompute full"));
  EXPECT_FALSE(std::regex_search(help, std::regex("`[a-z_.]+`")));
}

}  // namespace
}  // namespace tessera::cli::option_names_test
