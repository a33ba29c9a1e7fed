#include "tessera/core/text.h"

#include <gmock/gmock.h>

#include "tessera/core/utc_text.h"

namespace tessera::text_test {
namespace {

using ::testing::ElementsAre;

TEST(Text, SplitsKeepEmptyParts) {
  EXPECT_THAT(split_text("a,b", ','), ElementsAre("a", "b"));
  EXPECT_THAT(split_text(",a,,b,", ','), ElementsAre("", "a", "", "b", ""));
  EXPECT_THAT(split_text("", ','), ElementsAre(""));
}

TEST(Text, BlanksAroundGoAndThoseWithinStay) {
  EXPECT_EQ(trimmed(" \ta b\r\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
}

TEST(Text, LettersOfAsciiAloneBecomeSmall) { EXPECT_EQ(lowercase("AZ[`Ä9"), "az[`Ä9"); }

TEST(UtcText, HasTheFormatThatIsAskedFor) {
  EXPECT_EQ(utc_text(951782399, "%Y-%m-%dT%H:%M:%SZ"), "2000-02-28T23:59:59Z");
  EXPECT_EQ(utc_text(951782400, "%Y%m%d-%H%M%S"), "20000229-000000");
  EXPECT_EQ(utc_now().size(), std::string_view("2026-01-31T12:00:00Z").size());
}

}  // namespace
}  // namespace tessera::text_test
