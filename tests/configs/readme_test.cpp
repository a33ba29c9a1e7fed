#include "tessera/compat/aliases.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

// The tables "you used ... here it is" of runtime/compat/README.md beside those by which keys and
// flags are read.

namespace tessera::readme_test {
namespace {

TEST(ReadmeHabits, AreThoseOfTheTablesOfKeysAndFlags) {
  constexpr const char* kBegin = "<!-- made by `tessera explain --tables` -->\n\n";
  constexpr const char* kEnd = "\n<!-- end -->\n";
  std::ifstream file(std::filesystem::path(TESSERA_SOURCE_DIR) / "runtime/compat/README.md");
  std::ostringstream stream;
  stream << file.rdbuf();
  const std::string text = stream.str();
  const std::size_t begin = text.find(kBegin);
  const std::size_t end = text.find(kEnd);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::size_t first = begin + std::string(kBegin).size();
  EXPECT_EQ(text.substr(first, end - first), habit_tables())
      << "replace what stands between the two comments in runtime/compat/README.md by the output "
         "of 'tessera explain --tables'";
}

}  // namespace
}  // namespace tessera::readme_test
