#include "tessera/lab/hardware_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "temporary_folder.h"
#include "tessera/core/error.h"

namespace tessera::hardware_profile_test {
namespace {

using ::testing::HasSubstr;

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), by);
}

std::string refusal(const std::string& text) {
  try {
    parse_profile(text, "mine.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "none";
}

TEST(HardwareProfile, ThoseThatComeWithTesseraReadBackAndSayWhereNumbersAreFrom) {
  EXPECT_GE(builtin_profiles().size(), 3U);
  for (const std::string& name : builtin_profiles()) {
    const HardwareProfile profile = find_profile(name);
    const std::string text = to_text(profile);
    EXPECT_EQ(to_text(parse_profile(text, name)), text);
    EXPECT_THAT(text, Not(HasSubstr("\"source\": \"\"")));
    EXPECT_EQ(profile.name, name);
  }
}

TEST(HardwareProfile, IsReadFromAFile) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path("p.json"))
      << replaced(to_text(find_profile("h200-sxm")), "h200-sxm", "mine");
  EXPECT_EQ(find_profile(folder.path("p.json")).name, "mine");
  try {
    find_profile(folder.path("none.json"));
    FAIL() << "there is no such file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("h100-sxm, h200-sxm, a100-sxm"));
  }
}

TEST(HardwareProfile, RatesOfGemmsAreInterpolatedOverTheLogarithm) {
  HardwareProfile profile;
  profile.gemm["bf16"] = {{1e6, 10.0, ""}, {1e8, 30.0, ""}, {1e9, 90.0, ""}};
  EXPECT_DOUBLE_EQ(profile.gemm_rate("bf16", 1.0), 10.0);
  EXPECT_DOUBLE_EQ(profile.gemm_rate("bf16", 1e6), 10.0);
  EXPECT_DOUBLE_EQ(profile.gemm_rate("bf16", 1e7), 20.0);
  EXPECT_DOUBLE_EQ(profile.gemm_rate("bf16", 1e8), 30.0);
  EXPECT_DOUBLE_EQ(profile.gemm_rate("bf16", 1e12), 90.0);
  EXPECT_THROW(profile.gemm_rate("fp32", 1.0), Error);
}

TEST(HardwareProfile, WhatIsWrongIsNamedWithItsPlaceAndARemedy) {
  const std::string good = to_text(find_profile("h100-sxm"));
  EXPECT_EQ(refusal(good), "none");
  EXPECT_THAT(refusal(replaced(good, "\"launch\"", "\"lunch\"")),
              HasSubstr("the profile 'mine.json' has no 'launch'; add it"));
  EXPECT_THAT(refusal(replaced(good, "\"hop\": {",
                               "\"hopp\": {\"value\": 1, \"source\": \"\"},\n"
                               "\"hop\": {")),
              HasSubstr("'node' has an unknown key 'hopp'; did you mean 'hop'?"));
  EXPECT_THAT(refusal(replaced(good, "\"version\": 1", "\"version\": 2")),
              HasSubstr("is of version 2, and this program reads version 1"));
  EXPECT_THAT(refusal(replaced(good, "tessera-hardware-profile", "x")),
              HasSubstr("is no hardware profile"));
  EXPECT_THAT(refusal(replaced(good, "\"device\": \"cuda\"", "\"device\": \"tpu\"")),
              HasSubstr("'device' must be 'cuda' or 'cpu', not 'tpu'"));
  EXPECT_THAT(refusal(replaced(good, "989000000000000.0", "-1")),
              HasSubstr("'value' must be a number above 0, not -1"));
  EXPECT_THAT(refusal(replaced(good, "989000000000000.0", "\"fast\"")), HasSubstr("not \"fast\""));
  EXPECT_THAT(refusal(replaced(good, "\"value\": 1.15", "\"value\": 0.5")),
              HasSubstr("must be at least 1, not 0.5"));
  EXPECT_THAT(refusal(replaced(good, "\"flops\": 1000000000.0", "\"flops\": 1.0")),
              HasSubstr("'flops' must ascend"));
  EXPECT_THAT(refusal(good.substr(0, good.size() / 2)), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object"));
}

}  // namespace
}  // namespace tessera::hardware_profile_test
