#include "tessera/core/nearest_name.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(NearestName, TakesTheFewestEdits) {
  const std::vector<std::string> words{"depth", "width", "dropout"};
  EXPECT_EQ(nearest_name("depth", words), "depth");
  EXPECT_EQ(nearest_name("dept", words), "depth");
  EXPECT_EQ(nearest_name("dpeth", words), "depth");
  EXPECT_EQ(nearest_name("witdh", words), "width");
  EXPECT_EQ(nearest_name("drop_out", words), "dropout");
  EXPECT_EQ(nearest_name("learning_rate", words), "");
  EXPECT_EQ(nearest_name("depth", {}), "");
}

TEST(NearestNames, AreInTheOrderOfTheirDistance) {
  const std::vector<std::string> words{"depth", "dropout", "width"};
  EXPECT_EQ(nearest_names("with", words, 2), (std::vector<std::string>{"width", "depth"}));
  EXPECT_EQ(nearest_names("with", words, 9).size(), 3U);
}

}  // namespace
}  // namespace tessera
