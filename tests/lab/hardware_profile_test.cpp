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

TEST(HardwareProfile, RatesAreThoseMeasuredAndInBetweenFollowTheirTrend) {
  KernelRates rates{.kernel = "gemm", .dtype = "bf16", .source = "", .points = {}};
  // 2 m^0.5 n^0.25: linear in the logarithms.
  const auto law = [](double m, double n) { return 2.0 * std::sqrt(m) * std::pow(n, 0.25); };
  for (const double m : {64.0, 256.0, 1024.0}) {
    for (const double n : {32.0, 128.0, 512.0}) rates.points.push_back({{m, n}, law(m, n)});
  }
  EXPECT_NEAR(rates.at({256.0, 128.0}) / law(256, 128), 1.0, 0.01);
  EXPECT_NEAR(rates.at({128.0, 64.0}) / law(128, 64), 1.0, 0.05);
  EXPECT_NEAR(rates.at({500.0, 200.0}) / law(500, 200), 1.0, 0.05);
  EXPECT_NEAR(rates.at({1e6, 512.0}) / law(1024, 512), 1.0, 0.02) << "beyond the points it stays";
  EXPECT_NEAR(rates.at({1.0, 1.0}) / law(64, 32), 1.0, 0.02);
  rates.points.resize(1);
  EXPECT_NEAR(rates.at({500.0, 200.0}), law(64, 32), 1e-9) << "one point is a constant";
}

TEST(HardwareProfile, FindsTheRatesOfAKernelOfItsDtypeAndOfNearlyAsManyThreads) {
  HardwareProfile profile;
  for (const int threads : {1, 4, 16}) {
    profile.kernels.push_back({"gemm nt", "fp32", threads, "", {{{1.0}, 1.0 * threads}}});
  }
  profile.kernels.push_back({"gemm", "fp32", 1, "", {{{1.0}, 100.0}}});
  EXPECT_EQ(profile.find("gemm nt", "fp32", 3)->threads, 4);
  EXPECT_EQ(profile.find("gemm nt", "fp32", 64)->threads, 16);
  EXPECT_EQ(profile.find("gemm nt, bias", "fp32", 3)->threads, 4);
  EXPECT_EQ(profile.find("gemm tn", "fp32", 64)->points.front().per_second, 100.0);
  EXPECT_EQ(profile.find("gemm nt", "bf16", 1), nullptr);
  EXPECT_EQ(profile.find("gelu_forward", "fp32", 1), nullptr);
}

TEST(HardwareProfile, CollectivesTakeWhatWasMeasured) {
  const CollectiveTimes times{"all_gather", 2, "", {{1e3, 1e-5}, {1e5, 1e-4}, {1e6, 1e-3}}};
  EXPECT_DOUBLE_EQ(times.at(10.0), 1e-5);
  EXPECT_DOUBLE_EQ(times.at(1e5), 1e-4);
  EXPECT_NEAR(times.at(1e4), std::sqrt(1e-5 * 1e-4), 1e-12);
  EXPECT_NEAR(times.at(4e6), 4e-3, 1e-12);
  LinkProfile link;
  EXPECT_EQ(link.find("all_gather", 2), nullptr);
  link.measured = {times, {"all_gather", 8, "", {{1.0, 1.0}}}};
  EXPECT_EQ(link.find("all_gather", 3)->ranks, 2);
  EXPECT_EQ(link.find("all_gather", 64)->ranks, 8);
  EXPECT_EQ(link.find("all_reduce", 2), nullptr);
}

TEST(HardwareProfile, KeepsTheNoiseOfItsMeasurements) {
  HardwareProfile profile = find_profile("h100-sxm");
  EXPECT_FALSE(parse_profile(to_text(profile), "p.json").noise) << "it was not measured here";
  profile.noise = {.others = 0.5,
                   .stolen = 0.25,
                   .waiting = 1.0,
                   .throttled = 0.125,
                   .spread = 0.75,
                   .points = 40,
                   .disturbed = 30,
                   .left_out = 2};
  const std::string text = to_text(profile);
  const HardwareProfile read = parse_profile(text, "p.json");
  EXPECT_EQ(to_text(read), text);
  ASSERT_TRUE(read.noise);
  EXPECT_EQ(read.noise->others, 0.5);
  EXPECT_EQ(read.noise->left_out, 2);

  EXPECT_EQ(refusal(text), "none");
  EXPECT_THAT(refusal(replaced(text, "\"others\"", "\"other\"")),
              HasSubstr("'noise' has no 'others'; add it"));
  EXPECT_THAT(refusal(replaced(text, "\"stolen\":0.25", "\"stolen\":-1")),
              HasSubstr("'stolen' must be a number of at least 0, not -1"));
  EXPECT_THAT(refusal(replaced(text, "\"points\":40", "\"points\":4.5")),
              HasSubstr("'points' must be a whole number of at least 0, not 4.5"));
  EXPECT_THAT(refusal(replaced(text, "\"points\":40", "\"points\":4")),
              HasSubstr("'noise' has 30 points that were disturbed, of 4"));
}

TEST(HardwareProfile, KeepsTheLimitOfPower) {
  const HardwareProfile profile = find_profile("h100-sxm");
  const std::string text = to_text(profile);
  const HardwareProfile read = parse_profile(text, "p.json");
  ASSERT_TRUE(read.power);
  EXPECT_EQ(read.power->per_byte.value, profile.power->per_byte.value);
  EXPECT_EQ(to_text(read), text);
  EXPECT_FALSE(find_profile("a100-sxm").power) << "nothing is known of it";
  EXPECT_FALSE(parse_profile(to_text(find_profile("a100-sxm")), "p.json").power);
  EXPECT_THAT(refusal(replaced(text, "\"idle\": {\"value\":128.0", "\"idle\": {\"value\":700.0")),
              HasSubstr("'power': 'idle' (700 W) must be below 'limit' (691 W)"));
  EXPECT_THAT(refusal(replaced(text, "\"per_flop\"", "\"per_flops\"")),
              HasSubstr("'power' has no 'per_flop'; add it"));
}

TEST(HardwareProfile, WhatIsWrongIsNamedWithItsPlaceAndARemedy) {
  const std::string good = to_text(find_profile("h100-sxm"));
  EXPECT_EQ(refusal(good), "none");
  EXPECT_THAT(refusal(replaced(good, "\"launch\"", "\"lunch\"")),
              HasSubstr("the profile 'mine.json' has no 'launch'; add it"));
  EXPECT_THAT(refusal(replaced(good, "\"hop\": {",
                               "\"hopp\": {\"value\": 1, \"source\": \"\"},\n"
                               "\"hop\": {")),
              HasSubstr("'process' has an unknown key 'hopp'; did you mean 'hop'?"));
  EXPECT_THAT(refusal(replaced(good, "\"version\": 3", "\"version\": 1")),
              HasSubstr("is of version 1, and this program reads version 3"));
  EXPECT_THAT(refusal(replaced(good, "tessera-hardware-profile", "x")),
              HasSubstr("is no hardware profile"));
  EXPECT_THAT(refusal(replaced(good, "\"device\": \"cuda\"", "\"device\": \"tpu\"")),
              HasSubstr("'device' must be 'cuda' or 'cpu', not 'tpu'"));
  EXPECT_THAT(refusal(replaced(good, "989000000000000.0", "-1")),
              HasSubstr("'value' must be a number above 0, not -1"));
  EXPECT_THAT(refusal(replaced(good, "989000000000000.0", "\"fast\"")), HasSubstr("not \"fast\""));
  EXPECT_THAT(refusal(replaced(good, "\"value\":1.15", "\"value\":0.5")),
              HasSubstr("must be at least 1, not 0.5"));
  EXPECT_THAT(refusal(replaced(good, "[1024.0,1024.0,1024.0,", "[1024.0,1024.0,")), "none");
  EXPECT_THAT(refusal(replaced(good, "[1024.0,1024.0,1024.0,", "[1024.0,-1,1024.0,")),
              HasSubstr("a point must be an array of 2 or more numbers above 0"));
  EXPECT_THAT(refusal(replaced(good, "\"dtype\":\"fp32\"", "\"dtype\":\"fp8\"")),
              HasSubstr("has a dtype 'fp8'; there are fp32, bf16 and fp16"));
  EXPECT_THAT(refusal(good.substr(0, good.size() / 2)), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object"));
}

HardwareProfile with_steps() {
  HardwareProfile profile = find_profile("h200-sxm");
  StepTimes steps{.model = "gpt2-tiny in fp32", .threads = 2, .source = "steps here"};
  steps.kernels = {{.operation = "forward",
                    .kernel = "gemm nt, bias",
                    .dtype = "fp32",
                    .size = {512, 384, 128},
                    .seconds = 1e-4,
                    .spread = 0.01,
                    .alone = 9e-5,
                    .calls = 4},
                   {.operation = "sum", .kernel = "sum", .dtype = "fp32", .size = {}, .calls = 1}};
  steps.beside = 1e-6;
  steps.step = 0.02;
  profile.steps = {steps};
  profile.residuals = {{.evidence = Evidence::kCorrected,
                        .meets = true,
                        .half_width = 0.07,
                        .ratio = 1.03,
                        .cells = 12,
                        .source = "checked here"}};
  return profile;
}

TEST(HardwareProfile, KernelsBoundByMemoryMayHaveFactorsOfTheirOwn) {
  HardwareProfile profile = find_profile("h100-sxm");
  EXPECT_EQ(to_text(profile).find("memory_under"), std::string::npos);
  EXPECT_FALSE(parse_profile(to_text(profile), "old.json").memory_under_gather);
  profile.memory_under_gather = {1.25, "measured"};
  profile.memory_under_reduce = {1.5, "as well"};
  const HardwareProfile read = parse_profile(to_text(profile), "here.json");
  ASSERT_TRUE(read.memory_under_gather && read.memory_under_reduce);
  EXPECT_EQ(read.memory_under_gather->value, 1.25);
  EXPECT_EQ(read.memory_under_reduce->value, 1.5);
  EXPECT_EQ(read.memory_under_reduce->source, "as well");
  profile.memory_under_reduce->value = 0.75;
  EXPECT_THAT(refusal(to_text(profile)), HasSubstr("must be at least 1, not 0.75"));
}

TEST(HardwareProfile, KeepsWhatStepsTookAndHowFarOffPredictionsWere) {
  const HardwareProfile profile = with_steps();
  const std::string text = to_text(profile);
  const HardwareProfile read = parse_profile(text, "mine.json");
  EXPECT_EQ(to_text(read), text);
  ASSERT_EQ(read.steps.size(), 1U);
  EXPECT_EQ(read.steps[0].threads, 2);
  EXPECT_EQ(read.steps[0].kernels[0].size, (std::vector<double>{512, 384, 128}));
  EXPECT_EQ(read.steps[0].kernels[0].alone, 9e-5);
  ASSERT_EQ(read.residuals.size(), 1U);
  EXPECT_TRUE(read.residuals[0].meets);
  EXPECT_EQ(read.residuals[0].evidence, Evidence::kCorrected);
}

TEST(HardwareProfile, RefusesStepsAndResidualsThatMeanNothing) {
  const std::string text = to_text(with_steps());
  EXPECT_THAT(refusal(replaced(text, "\"corrected\"", "\"guessed\"")),
              HasSubstr("'evidence' must be measured, corrected or interpolated, not 'guessed'"));
  EXPECT_THAT(refusal(replaced(text, "\"meets\": true", "\"meets\": 1")), HasSubstr("'meets'"));
  EXPECT_THAT(refusal(replaced(text, "[512.0,", "[-512.0,")), HasSubstr("'size'"));
  EXPECT_THAT(refusal(replaced(text, "\"calls\":4.0", "\"call\":4.0")), HasSubstr("'calls'"));
}

}  // namespace
}  // namespace tessera::hardware_profile_test
