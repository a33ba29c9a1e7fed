#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "tessera/model/tokenizer.h"

// The pre-tokenizers, normalizers and vocabularies of published models of the families, against the
// package `tokenizers`: tokenizers/variants.json, made by make_tokenizer_variants.py.
namespace tessera::tokenizer_variants_test {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::int32_t>;

const std::string kFolder = TESSERA_SOURCE_DIR "/tests/model/tokenizers/";

json read(const std::string& name) { return json::parse(std::ifstream(kFolder + name)); }

const json& golden() {
  static const json all = read("variants.json");
  return all;
}

/// Keys are replaced, those of the model and of its vocabulary one by one; null removes.
void replace(json& target, const json& patch, int depth) {
  for (const auto& [key, value] : patch.items()) {
    const bool goes_on = (depth == 0 && key == "model") || (depth == 1 && key == "vocab");
    if (goes_on) {
      replace(target[key], value, depth + 1);
    } else if (value.is_null()) {
      target.erase(key);
    } else {
      target[key] = value;
    }
  }
}

Tokenizer tokenizer_of(const std::string& name) {
  const json& variant = golden().at("variants").at(name);
  json file = read(variant.at("base").get<std::string>() + ".json");
  replace(file, variant.at("patch"), 0);
  for (const auto& merge : variant.at("more_merges")) {
    const auto both = merge.get<std::string>();
    const std::size_t space = both.find(' ');
    file["model"]["merges"].push_back(json{both.substr(0, space), both.substr(space + 1)});
  }
  return Tokenizer(file.dump(), name);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, variant] : golden().at("variants").items()) all.push_back(name);
  return all;
}

class TokenizerVariants : public ::testing::TestWithParam<std::string> {
 protected:
  const Tokenizer tokenizer_ = tokenizer_of(GetParam());
  const json& variant_ = golden().at("variants").at(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Published, TokenizerVariants, ::testing::ValuesIn(names()),
                         [](const auto& name) { return name.param; });

TEST_P(TokenizerVariants, EncodesAndDecodesAsThePackage) {
  for (std::size_t i = 0; i < golden().at("texts").size(); ++i) {
    const auto text = golden().at("texts")[i].get<std::string>();
    EXPECT_EQ(tokenizer_.encode(text), variant_.at("ids")[i].get<Tokens>()) << json(text);
    // The second time words are remembered.
    EXPECT_EQ(tokenizer_.encode(text + text).size(), tokenizer_.encode(text + text).size());
  }
  for (const json& row : variant_.at("decoded")) {
    EXPECT_EQ(tokenizer_.decode(row[0].get<Tokens>()), row[1]) << row;
  }
}

// Ends go up to the text's, and what is before one has the tokens before it where words end.
TEST_P(TokenizerVariants, SaysWhereTokensEnd) {
  for (const json& entry : golden().at("texts")) {
    const auto text = entry.get<std::string>();
    const Tokenizer::Placed placed = tokenizer_.encode_with_ends(text);
    EXPECT_EQ(placed.tokens, tokenizer_.encode(text)) << entry;
    ASSERT_EQ(placed.ends.size(), placed.tokens.size()) << entry;
    EXPECT_TRUE(std::ranges::is_sorted(placed.ends)) << entry;
    EXPECT_TRUE(placed.ends.empty() || placed.ends.back() <= text.size()) << entry;
  }
  // Words of letters have a token for each of these bytes or more.
  const std::string text = "ab <s> cd\x04 ef";
  const Tokenizer::Placed placed = tokenizer_.encode_with_ends(text);
  ASSERT_FALSE(placed.ends.empty());
  EXPECT_EQ(placed.ends.back(), text.size());
  const auto ends_at = [&](std::size_t end) {
    return std::ranges::find(placed.ends, end) != placed.ends.end();
  };
  EXPECT_TRUE(ends_at(2)) << "ab";
  EXPECT_TRUE(ends_at(9)) << "cd";
}

TEST_P(TokenizerVariants, GivesTheSameTokensWhereverTextIsCut) {
  TokenEncoder encoder(tokenizer_);
  std::mt19937 random(5);
  const std::vector<std::string> parts{
      " ",      " ",      "  ",     "\n",     "\n", "\r\n",       "\t",  "'s", "a",    "the",
      "12",     "oW",     "=",      "= =",    "!",  "/",          ".",   "(",  "\x04", "\u0301",
      "\u00e9", "\u4e2d", "\u3000", "\u20ac", "õ",  "\U0001f389", "<s>", "B",  "</s>", "\u2581"};
  for (int round = 0; round < 800; ++round) {
    std::string text;
    for (int i = static_cast<int>(random() % 24); i >= 0; --i)
      text += parts[random() % parts.size()];
    const Tokens whole = tokenizer_.encode(text);
    for (std::size_t end = text.size();;) {
      const std::size_t cut = encoder.last_cut(std::string_view(text).substr(0, end));
      if (cut == 0) break;
      Tokens tokens;
      encoder.encode(std::string_view(text).substr(0, cut), tokens);
      encoder.encode(std::string_view(text).substr(cut), tokens, static_cast<std::int64_t>(cut));
      ASSERT_EQ(tokens, whole) << json(text) << " cut at " << cut;
      end = cut;
    }
  }
}

TEST(TokenizerVariantsCuts, AreWhereFilesOfTextAreLarge) {
  for (const char* const name :
       {"smollm", "starcoder", "gpt2_with_prefix", "cl100k", "tekken", "o200k", "deepseek3",
        "falcon3", "punctuation", "yi", "llama2_normalized"}) {
    const Tokenizer tokenizer = tokenizer_of(name);
    EXPECT_EQ(TokenEncoder(tokenizer).last_cut("one two three"), 7U) << name;
  }
}

TEST(TokenizerVariantsIdentity, DiffersWhereTokensDo) {
  std::set<std::string> seen;
  for (const std::string& name : names()) seen.insert(tokenizer_of(name).identity());
  EXPECT_EQ(seen.size(), names().size());
}

}  // namespace
}  // namespace tessera::tokenizer_variants_test
