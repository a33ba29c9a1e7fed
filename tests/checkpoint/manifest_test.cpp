#include "tessera/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tessera/core/error.h"

// The manifest of a checkpoint: what it must say, and that no text breaks its reader.
namespace tessera::manifest_test {
namespace {

using ::testing::HasSubstr;

/// Two parameters over two files.
Manifest example() {
  Manifest manifest;
  manifest.step = 12;
  manifest.samples = 96;
  manifest.model = {{"family", "gpt2"}, {"layers", "2"}};
  manifest.data = {{"seed", "7"}};
  manifest.parameters = {{"a", Shape{4, 3}, {{"parameter"}, {"first-moment"}}},
                         {"b \"quoted\"", Shape{5}, {{"parameter", DType::kBFloat16}}}};
  manifest.files = {{"rank_0", 100, {0x1234}, {{0, 0, {0, 7}}, {0, 1, {0, 7}}}},
                    {"rank_1", 110, {0x5678}, {{0, 0, {7, 5}}, {0, 1, {7, 5}}, {1, 0, {0, 5}}}}};
  return manifest;
}

std::string refusal(const std::string& text) {
  try {
    parse_manifest(text, "m.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

/// What is said of the example after a change, which its hash knows of.
std::string refusal_of(const std::function<void(Manifest&)>& change) {
  Manifest manifest = example();
  change(manifest);
  return refusal(to_text(manifest));
}

TEST(Manifest, ComesBackFromItsText) {
  const std::string text = to_text(example());
  const Manifest read = parse_manifest(text, "m.json");
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.samples, 96);
  EXPECT_EQ(read.model, example().model);
  ASSERT_EQ(read.files.size(), 2U);
  EXPECT_EQ(read.files[1].pieces, example().files[1].pieces);
  EXPECT_EQ(read.files[1].chunk_hashes, example().files[1].chunk_hashes);
  EXPECT_EQ(read.parameters[1].name, "b \"quoted\"");
  EXPECT_EQ(to_text(read), text);
}

TEST(Manifest, StatesOfBlocksHaveAnElementForEach) {
  Manifest manifest = example();
  manifest.parameters[1].states.push_back({"absmax", DType::kFloat32, 2});
  EXPECT_EQ(numel_of(manifest.parameters[1], manifest.parameters[1].states[1]), 3);
  manifest.files[1].pieces.push_back({1, 1, {0, 3}});
  manifest.files[1].bytes = 140;
  const std::string text = to_text(manifest);
  const Manifest read = parse_manifest(text, "m.json");
  EXPECT_EQ(read.parameters[1].states, manifest.parameters[1].states);
  EXPECT_EQ(to_text(read), text);
  manifest.files[1].pieces.back().elements = {0, 2};
  EXPECT_THAT(refusal(to_text(manifest)), HasSubstr("elements 2 to 2 of 'b \"quoted\":absmax'"));
  manifest.files[1].pieces.back().elements = {0, 4};
  EXPECT_THAT(refusal(to_text(manifest)), HasSubstr("elements that 'b \"quoted\"' has not"));
}

TEST(Manifest, RefusesWhatIsMissingOrThereTwice) {
  EXPECT_EQ(refusal_of([](Manifest&) {}), "");
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[0].pieces[0].elements.numel = 6; }),
              HasSubstr("elements 6 to 6 of 'a' are in no file"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[0].pieces[1].elements.numel = 8; }),
              HasSubstr("'a:first-moment' are in two files"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[1].pieces.pop_back(); }),
              HasSubstr("elements 0 to 4 of 'b \"quoted\"' are in no file"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[1].pieces[0].elements.numel = 50; }),
              HasSubstr("elements that 'a' has not"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[1].name = "rank_0"; }),
              HasSubstr("two files are named"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[1].name = "../x"; }), HasSubstr("is named"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[1].bytes = 30; }), HasSubstr("too few"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.files[1].chunk_hashes.clear(); }),
              HasSubstr("in 0 chunks"));
  EXPECT_THAT(refusal_of([](Manifest& m) { m.parameters[1].name = "a"; }),
              HasSubstr("two parameters are named 'a'"));
}

TEST(Manifest, NamesOtherFormatsAndNewerVersions) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = to_text(example());
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_THAT(refusal(with("tessera-checkpoint", "other")), HasSubstr("its format is 'other'"));
  EXPECT_THAT(refusal(with("\"version\": 1", "\"version\": 2")),
              HasSubstr("its version is 2, and this program reads version 1"));
  EXPECT_THAT(refusal(with("\"samples\": 96", "\"samples\": 97")),
              HasSubstr("its hash does not match"));
  EXPECT_THAT(refusal("[]"), HasSubstr("m.json"));
  EXPECT_THAT(refusal(std::string(200'000, '[')), HasSubstr("nested too deeply"));
}

/// Every change of a byte is noticed, and none breaks the reader.
TEST(Manifest, NoChangedTextIsTakenOrBreaksTheReader) {
  const std::string text = to_text(example());
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string changed = text;
    for (auto n = 1 + random() % 3; n > 0; --n) {
      const std::size_t place = random() % changed.size();
      switch (random() % 4) {
        case 0:
          changed[place] = static_cast<char>(random());
          break;
        case 1:
          changed.erase(place, 1 + random() % 40);
          break;
        case 2:
          changed.insert(place, std::string(1 + random() % 3, static_cast<char>(random())));
          break;
        default:
          changed.insert(place, text.substr(random() % text.size(), random() % 60));
          break;
      }
    }
    ASSERT_TRUE(changed == text || !refusal(changed).empty()) << changed;
  }
}

}  // namespace
}  // namespace tessera::manifest_test
