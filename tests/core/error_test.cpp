#include "tessera/core/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tessera {
namespace {

TEST(ErrorTest, CarriesCodeAndStreamedText) {
  try {
    fail(ErrorCode::kTimeout, "rank ", 3, " of ", 4);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_STREQ(error.what(), "rank 3 of 4");
  }
}

TEST(ErrorTest, RequireThrowsOnlyWhenFalse) {
  EXPECT_NO_THROW(require(true, ErrorCode::kInternal, "never"));
  EXPECT_THROW(require(false, ErrorCode::kInternal, "always"), Error);
}

TEST(ErrorTest, CodesHaveDistinctNames) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    names.insert(to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), 9U);
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace tessera
