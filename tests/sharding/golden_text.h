#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace tessera::test {

/// Compares the text of a value with golden/<name>.txt, and the value with what `parse` makes of
/// that. Where a change of plan is meant, run this program with TESSERA_UPDATE_GOLDEN=1 and read
/// the difference.
template <typename Value, typename Parse>
void expect_golden(const std::string& name, const Value& value, const Parse& parse) {
  const std::string path =
      std::string(TESSERA_SOURCE_DIR) + "/tests/sharding/golden/" + name + ".txt";
  const std::string actual = to_string(value);
  if (const char* update = std::getenv("TESSERA_UPDATE_GOLDEN"); update && *update == '1') {
    std::ofstream(path) << actual;
    FAIL() << "wrote " << path << "; run again without TESSERA_UPDATE_GOLDEN";
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << "no " << path;
  std::ostringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << "TESSERA_UPDATE_GOLDEN=1 writes " << path;
  EXPECT_EQ(parse(expected.str()), value);
}

}  // namespace tessera::test
