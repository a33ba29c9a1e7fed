#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/core/error.h"
#include "tessera/model/tokenizer.h"

// BERT's WordPiece against the package `tokenizers`: tokenizers/word_pieces.json, made by
// make_word_pieces.py.
namespace tessera::word_pieces_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json& golden() {
  static const json all = [] {
    std::ifstream in(TESSERA_SOURCE_DIR "/tests/model/tokenizers/word_pieces.json");
    return json::parse(in);
  }();
  return all;
}

Tokenizer tokenizer_of(const json& made) { return Tokenizer(made.dump(), "tokenizer.json"); }

TEST(WordPieces, GiveTheTokensOfThePackage) {
  for (const auto& [name, made] : golden().at("cases").items()) {
    const Tokenizer tokenizer = tokenizer_of(made.at("tokenizer"));
    for (std::size_t i = 0; i < golden().at("texts").size(); ++i) {
      const auto text = golden().at("texts")[i].get<std::string>();
      SCOPED_TRACE(name + ": " + text);
      const auto ids = made.at("ids")[i].get<std::vector<std::int32_t>>();
      EXPECT_EQ(tokenizer.encode(text, true), ids);
      EXPECT_EQ(tokenizer.decode(ids, false), made.at("decoded")[i].get<std::string>());
    }
  }
}

std::string utf8(std::uint32_t code) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  const auto more = [&](int shift) { return byte(0x80U | ((code >> shift) & 0x3fU)); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xc0U | (code >> 6)), more(0)};
  if (code < 0x10000) return {byte(0xe0U | (code >> 12)), more(6), more(0)};
  return {byte(0xf0U | (code >> 18)), more(12), more(6), more(0)};
}

/// What a character does between two letters; see make_word_pieces.py.
int class_of(const Tokenizer& tokenizer, std::uint32_t code) {
  const std::int32_t a = *tokenizer.id_of("a"), more = *tokenizer.id_of("##a"),
                     unknown = *tokenizer.id_of("[UNK]");
  const std::vector<std::int32_t> ids = tokenizer.encode("a" + utf8(code) + "a");
  const std::vector<std::int32_t> known[] = {{a, more}, {a, a}, {a, unknown, a}, {unknown}};
  const auto found = std::ranges::find(known, ids);
  return found == std::end(known) ? -1 : static_cast<int>(found - std::begin(known));
}

// All characters if there is time, else those at which the class changes.
TEST(WordPieces, KnowEachCharacterAsThePackageDoes) {
  const bool all = std::getenv("TESSERA_LONG_TESTS") != nullptr;
  const Tokenizer tokenizer = tokenizer_of(golden().at("cases").at("cased").at("tokenizer"));
  const json& runs = golden().at("characters");
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const auto first = runs[run][0].get<std::uint32_t>();
    const std::uint32_t end =
        run + 1 < runs.size() ? runs[run + 1][0].get<std::uint32_t>() : 0x110000U;
    for (std::uint32_t code = first; code < end; ++code) {
      if (code >= 0xd800 && code < 0xe000) continue;
      if (!all && code != first && code + 1 != end) continue;
      ASSERT_EQ(class_of(tokenizer, code), runs[run][1].get<int>()) << std::hex << code;
    }
  }
}

TEST(WordPieces, WhatIsNotKnownIsRefusedByName) {
  const auto refused = [](const std::function<void(json&)>& change) -> std::string {
    json made = golden().at("cases").at("uncased").at("tokenizer");
    change(made);
    try {
      tokenizer_of(made);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused([](json&) {}), "");
  EXPECT_THAT(refused([](json& of) { of["normalizer"]["type"] = "Lowercase"; }),
              HasSubstr("normalizer.type is 'Lowercase', and only 'BertNormalizer' is known"));
  EXPECT_THAT(refused([](json& of) { of["pre_tokenizer"]["type"] = "Whitespace"; }),
              HasSubstr("only 'BertPreTokenizer' is known"));
  EXPECT_THAT(refused([](json& of) { of["model"]["unk_token"] = "<unk>"; }),
              HasSubstr("needs the token '<unk>'"));
  EXPECT_EQ(refused([](json& of) { of["added_tokens"][0]["normalized"] = true; }), "");
  EXPECT_THAT(
      refused([](json& of) {
        of["added_tokens"].push_back(
            {{"id", of["model"]["vocab"].size()}, {"content", "\u200b"}, {"normalized", true}});
      }),
      HasSubstr("has no characters left when it is normalized"));
  EXPECT_THAT(refused([](json& of) { of["decoder"]["prefix"] = "@@"; }),
              HasSubstr("decoder.prefix"));
  EXPECT_THAT(refused([](json& of) {
                of["post_processor"] = {
                    {"type", "BertProcessing"}, {"sep", {"[SEP]", 9}}, {"cls", {"[CLS]", 2}}};
              }),
              HasSubstr("the token has another id"));
}

}  // namespace
}  // namespace tessera::word_pieces_test
