#include "tessera/model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "temporary_folder.h"
#include "tessera/core/error.h"

// Against what the package `tokenizers` gives: tokenizers/golden.json, made by make_tokenizers.py.
namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

const std::string kFolder = TESSERA_SOURCE_DIR "/tests/model/tokenizers/";
const std::vector<std::string> kNames{"gpt2",
                                      "llama3",
                                      "qwen",
                                      "llama2",
                                      "phi3",
                                      "metaspace_first",
                                      "metaspace_always",
                                      "metaspace_never",
                                      "gemma"};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::string& alice() {
  static const std::string text = content_of(TESSERA_SOURCE_DIR "/tests/text/alice.txt");
  return text;
}

Tokenizer tokenizer_of(const std::string& name) { return Tokenizer(kFolder + name + ".json"); }

const json& golden_of(const std::string& name) {
  static const json all = json::parse(content_of(kFolder + "golden.json"));
  return all.at(name);
}

json json_of(const std::string& name) { return json::parse(content_of(kFolder + name + ".json")); }

class TokenizerOf : public ::testing::TestWithParam<std::string> {
 protected:
  const Tokenizer tokenizer_ = tokenizer_of(GetParam());
  const json& golden_ = golden_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Patterns, TokenizerOf, ::testing::ValuesIn(kNames),
                         [](const auto& name) { return name.param; });

TEST_P(TokenizerOf, EncodesAsTheGoldens) {
  EXPECT_EQ(tokenizer_.vocab_size(), golden_.at("vocab_size"));
  for (const json& row : golden_.at("encoded")) {
    const auto text = row.at(0).get<std::string>();
    const Tokens tokens = tokenizer_.encode(text);
    EXPECT_EQ(tokens, row.at(1).get<Tokens>()) << row.at(0);
    EXPECT_EQ(tokenizer_.decode(tokens), row.size() > 2 ? row.at(2).get<std::string>() : text);
  }
  EXPECT_EQ(tokenizer_.encode("Hello there", true), golden_.at("with_special").get<Tokens>());
  const Tokens book = tokenizer_.encode(alice());
  EXPECT_EQ(book.size(), golden_.at("alice_ids"));
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < book.size(); ++i) {
    sum += static_cast<std::uint32_t>(i + 1) * static_cast<std::uint32_t>(book[i]);
  }
  EXPECT_EQ(sum, golden_.at("alice_sum"));
}

TEST_P(TokenizerOf, DecodesAnyTokensAsTheGoldens) {
  for (const json& row : golden_.at("decoded")) {
    EXPECT_EQ(tokenizer_.decode(row.at(0).get<Tokens>(), !row.at(2).get<bool>()), row.at(1)) << row;
  }
}

TEST_P(TokenizerOf, StreamsOnlyWholeCharacters) {
  for (const json& row : golden_.at("decoded")) {
    TokenDecoder decoder(tokenizer_, !row.at(2).get<bool>());
    std::string text;
    for (const std::int32_t token : row.at(0)) {
      const std::string part = decoder.add(token);
      EXPECT_NO_THROW(json(part).dump()) << "not UTF-8";
      text += part;
    }
    EXPECT_EQ(text + decoder.finish(), row.at(1)) << row;
  }
}

// The rule of cuts is proved in a comment; here it meets texts made to break it.
TEST_P(TokenizerOf, GivesTheSameTokensWhereverTextIsCut) {
  json file = json_of(GetParam());
  // With "two words", or two line ends as a token, there is no cut.
  const std::vector<std::string> uncut{"two words", "\n\n"};
  EXPECT_EQ(TokenEncoder(tokenizer_).last_cut("a b c") == 0,
            GetParam() == "qwen" || GetParam() == "gemma");
  json added = json::array();
  std::size_t next = 0;
  for (json token : file["added_tokens"]) {
    const std::string content = token["content"];
    if (std::ranges::find(uncut, content) != uncut.end()) continue;
    const std::size_t vocabulary = file["model"]["vocab"].size();
    if (token["id"] >= vocabulary) token["id"] = vocabulary + next++;
    added.push_back(token);
  }
  file["added_tokens"] = added;
  const Tokenizer tokenizer(file.dump(), GetParam());
  TokenEncoder encoder(tokenizer);
  const std::vector<std::string> pieces{
      " ",      " ",       "  ",       "\n",     "\n",     "\r\n",   "\t",         "'",
      "'s",     "a",       "the",      "12",     "!",      ".",      "\u0301",     "\u0338",
      "\u00e9", "\u4e2d",  "\u3000",   "\u0085", "\u180e", "\u2028", "\U0001f389", "<|endoftext|>",
      "<s>",    "<|end|>", "<|left|>", "<",      "\u1112", "\u1161", "\u11ab"};
  std::mt19937 random(5);
  int cuts = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = static_cast<int>(random() % 30); i >= 0; --i) {
      text += pieces[random() % pieces.size()];
    }
    const Tokens whole = tokenizer.encode(text);
    for (std::size_t end = text.size();; --end) {
      const std::size_t cut = encoder.last_cut(std::string_view(text).substr(0, end));
      if (cut == 0) break;
      ++cuts;
      Tokens parts;
      encoder.encode(std::string_view(text).substr(0, cut), parts);
      encoder.encode(std::string_view(text).substr(cut), parts, static_cast<std::int64_t>(cut));
      ASSERT_EQ(parts, whole) << json(text) << " cut at " << cut;
      end = cut;
    }
  }
  EXPECT_GT(cuts, 1200);
}

TEST(Tokenizer, KnowsSpecialTokens) {
  EXPECT_EQ(tokenizer_of("gpt2").end_of_text(), 600);
  EXPECT_EQ(tokenizer_of("llama3").end_of_text(), 522);
  EXPECT_EQ(tokenizer_of("qwen").id_of("<|im_end|>"), 522);
  EXPECT_EQ(tokenizer_of("qwen").id_of("Ġthe"), tokenizer_of("qwen").encode(" the").at(0));
  EXPECT_EQ(tokenizer_of("qwen").id_of("<|im_en|>"), std::nullopt);
  EXPECT_EQ(tokenizer_of("gpt2").decode(Tokens{-1, 601, 1 << 30}), "");
}

TEST(Tokenizer, MergesAWordOfAMegabyte) {
  const Tokenizer tokenizer = tokenizer_of("gpt2");
  std::string word;
  for (int i = 0; i < 100'000; ++i) word += "alicealice";
  const Tokens one = tokenizer.encode("alicealicealicealice");
  const Tokens tokens = tokenizer.encode(word);
  EXPECT_GT(tokens.size(), 100'000U);
  EXPECT_EQ(tokens[0], one[0]);
  EXPECT_EQ(tokenizer.decode(tokens), word);
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = tokenizer_of("llama3");
  for (const auto& [text, offset] : std::map<std::string, int>{{"abcdefghij\xff", 10},
                                                               {"\xc3", 0},
                                                               {"ab\xed\xa0\x80", 2},
                                                               {"\xf4\x90\x80\x80", 0},
                                                               {"a\xc0\x80", 1},
                                                               {"\xe4\xb8\xad\xe4\xb8", 3}}) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << json(text).dump(-1, ' ', true, json::error_handler_t::replace);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(concat("byte ", offset, " is not UTF-8")));
    }
  }
}

TEST(Tokenizer, IdentityIsOfTheMeaning) {
  json file = json_of("gpt2");
  const std::string identity = tokenizer_of("gpt2").identity();
  EXPECT_EQ(identity.size(), 16U);
  EXPECT_EQ(Tokenizer(file.dump(2), "indented").identity(), identity);
  for (json& merge : file["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  EXPECT_EQ(Tokenizer(file.dump(), "pairs").identity(), identity);
  const auto differs = [&](auto change) {
    json other = file;
    change(other);
    EXPECT_NE(Tokenizer(other.dump(), "changed").identity(), identity);
  };
  differs([](json& f) { f["model"]["ignore_merges"] = true; });
  differs([](json& f) { f["normalizer"] = {{"type", "NFC"}}; });
  differs([](json& f) { std::swap(f["model"]["merges"][0], f["model"]["merges"][1]); });
  differs([](json& f) { f["model"]["merges"].erase(f["model"]["merges"].size() - 1); });
  differs([](json& f) { std::swap(f["model"]["vocab"]["a"], f["model"]["vocab"]["b"]); });
  differs([](json& f) { f["added_tokens"][0]["special"] = false; });
  differs([](json& f) { f["added_tokens"][0]["content"] = "<|end_of_text|>"; });
  EXPECT_NE(tokenizer_of("qwen").identity(), tokenizer_of("llama3").identity());
}

TEST(Tokenizer, RefusesByName) {
  struct Case {
    const char* file;
    const char* pointer;
    json value;
    const char* says;
  };
  const std::vector<Case> cases{
      {"gpt2", "/version", "2.0", "version is \"2.0\", and only \"1.0\""},
      {"gpt2", "/truncation", {{"max_length", 5}}, "truncation is {\"max_length\":5}"},
      {"gpt2", "/padding", {{"strategy", "x"}}, "set it to null"},
      {"gpt2", "/extra", 1, "the file has 'extra'"},
      {"gpt2", "/normalizer", {{"type", "NFKC"}}, "normalizer.type is 'NFKC', and only 'NFC'"},
      {"gpt2", "/normalizer", {{"type", "NFC"}, {"x", 1}}, "normalizer has 'x'"},
      {"gpt2", "/pre_tokenizer", nullptr, "neither a pre_tokenizer nor a normalizer that marks"},
      {"gpt2", "/pre_tokenizer/type", "Whitespace", "'Whitespace', and only 'ByteLevel'"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/behavior", "Removed",
       "invert is false, and only true"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+",
       "Regex is \"\\\\w+\", which uses '\\w'"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a[^b]]", "which uses '[^'"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "a*", "which matches where"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", "which PCRE2 cannot"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{Han}", "class 'Han'"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "has 'String'"},
      {"llama3", "/pre_tokenizer/pretokenizers/2", {{"type", "Whitespace"}}, "'Whitespace', and"},
      {"llama3", "/pre_tokenizer/pretokenizers/2", {{"type", "ByteLevel"}}, "second ByteLevel"},
      {"llama3", "/pre_tokenizer/pretokenizers/1", {{"type", "Digits"}}, "has no ByteLevel"},
      {"gpt2", "/decoder/type", "WordPiece", "decoder.type is 'WordPiece'"},
      {"gpt2", "/decoder", nullptr, "decoder is null"},
      {"gpt2", "/post_processor", {{"type", "RobertaProcessing"}}, "'RobertaProcessing', and only"},
      {"llama3",
       "/post_processor/processors/2",
       {{"type", "Sequence"}, {"processors", json::array()}},
       "a Sequence in a Sequence"},
      {"llama3", "/post_processor/processors/1/single/1/Sequence/id", "B", "only one 'A'"},
      {"llama3", "/post_processor/processors/1/single/0/SpecialToken/id", "?", "names '?'"},
      {"llama3", "/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids/0", 9999,
       "is 9999, outside of the vocabulary of 525"},
      {"gpt2", "/model/type", "Unigram", "model.type is 'Unigram', and only 'BPE'"},
      {"gpt2", "/model/dropout", 0.1, "model.dropout is 0.1"},
      {"gpt2", "/model/end_of_word_suffix", "</w>", "end_of_word_suffix is \"</w>\""},
      {"gpt2", "/model/continuing_subword_prefix", "##", "continuing_subword_prefix is \"##\""},
      {"gpt2", "/model/ignore_merges", 1, "ignore_merges is 1, not true or false"},
      {"gpt2", "/model/vocab", json::array(), "model.vocab is no object"},
      {"gpt2", "/model/vocab/a", 7, "which is taken by another token"},
      {"gpt2", "/model/vocab/a", 16777216, "is 16777216, which is too large for 600"},
      {"gpt2", "/model/vocab/a", -1, "is -1, not a token id"},
      {"gpt2", "/model/vocab/a", 1.5, "is 1.5, not a token id"},
      {"gpt2", "/model/vocab/a", 4294967296, "is 4294967296, not a token id"},
      {"gpt2", "/model/merges/3", "a b c", "model.merges[3] is 'a b c', not two tokens"},
      {"gpt2", "/model/merges/3", "aqz b", "needs the token 'aqz'"},
      {"gpt2", "/model/merges/3", "Q Z", "needs the token 'QZ'"},
      {"gpt2", "/model/merges/3", 4, "model.merges[3] is 4, not a text"},
      {"gpt2", "/model/merges/1", json_of("gpt2")["model"]["merges"][0], "is there twice"},
      {"llama2", "/normalizer/normalizers/0/prepend", "_", "prepend is \"_\", and only"},
      {"llama2", "/normalizer/normalizers/1/pattern/String", "x", "String is \"x\", and only"},
      {"llama2", "/normalizer/normalizers/1/type", "NFKC", "type is 'NFKC', and only 'Prepend'"},
      {"llama2", "/decoder/decoders/1/type", "Fuse", "is 'Fuse', where 'ByteFallback' is"},
      {"llama2", "/decoder", {{"type", "Metaspace"}}, "decoder is not a Sequence of Replace"},
      {"llama2", "/model/byte_fallback", false, "has no byte_fallback"},
      {"llama2", "/model/vocab/<0x0a>", 9, "is 9, which is taken by another token"},
      {"metaspace_first", "/pre_tokenizer/prepend_scheme", "last", "is 'last', not first"},
      {"gpt2", "/added_tokens/0/single_word", true, "added_tokens[0].single_word is true"},
      {"gpt2", "/added_tokens/0/content", "", "has no content"},
      {"gpt2", "/added_tokens/0/content", "a", "has the id 600, but is also known as"},
      {"gpt2", "/added_tokens/0/id", 601, "has the id 601, but the next is 600"},
      {"qwen", "/added_tokens/1", json_of("qwen")["added_tokens"][0], "must be there once"},
  };
  for (const Case& c : cases) {
    json file = json_of(c.file);
    file[json::json_pointer(c.pointer)] = c.value;
    try {
      Tokenizer(file.dump(), "some/tokenizer.json");
      ADD_FAILURE() << c.file << c.pointer << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      EXPECT_THAT(error.what(),
                  ::testing::AllOf(HasSubstr("'some/tokenizer.json'"), HasSubstr(c.says)))
          << c.pointer;
    }
  }
  for (const char* missing : {"pre_tokenizer", "decoder", "model"}) {
    json file = json_of("gpt2");
    file.erase(missing);
    EXPECT_THROW(Tokenizer(file.dump(), "t"), Error) << missing;
  }
  json file = json_of("gpt2");
  file["model"]["vocab"].erase("~");
  file["model"]["vocab"]["unused"] = json_of("gpt2")["model"]["vocab"]["~"];
  EXPECT_EQ(Tokenizer(file.dump(), "t").encode("b~b").size(), 2U) << "it has no token";
  file["model"]["unk_token"] = "none";
  EXPECT_THROW(Tokenizer(file.dump(), "t"), Error) << "unknown bytes have no token";
  file["model"]["unk_token"] = nullptr;
  file["model"]["byte_fallback"] = true;
  EXPECT_THROW(Tokenizer(file.dump(), "t"), Error) << "bytes of spellings have tokens";
}

TEST(Tokenizer, RefusesWhatIsNoJson) {
  const std::string good = content_of(kFolder + "gpt2.json");
  EXPECT_NO_THROW(Tokenizer("\n " + good, "t"));
  for (const std::string& text :
       {std::string(), std::string("[]"), "\xef\xbb\xbf" + good, good + std::string(1, '\0'),
        good + "{}", good.substr(0, good.size() / 2), "{\"version\":\"1.0\"," + good.substr(1),
        std::string("{\"version\":") + std::string(100'000, '[')}) {
    EXPECT_THROW(Tokenizer(text, "t"), Error) << text.substr(0, 30);
  }
  EXPECT_THROW(Tokenizer(kFolder + "none.json"), Error);
  EXPECT_THROW(Tokenizer{kFolder}, Error);
}

// A changed file either is refused or gives a tokenizer that encodes and decodes.
TEST(Tokenizer, SurvivesMutatedFiles) {
  std::mt19937 random(11);
  const std::string text = alice().substr(5000, 300) + " <|endoftext|> \u00e9\U0001f389";
  int accepted = 0, refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      const Tokenizer tokenizer(bytes, "mutant");
      for (const std::int32_t token : tokenizer.encode(text, true)) {
        ASSERT_LT(token, tokenizer.vocab_size());
      }
      tokenizer.decode(tokenizer.encode(text, true));
      ++accepted;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("'mutant'"));
      ++refused;
    }
  };
  for (const std::string& name : kNames) {
    const std::string good = content_of(kFolder + name + ".json");
    const json parsed = json::parse(good);
    const json flat = parsed.flatten();
    for (int round = 0; round < 60; ++round) {  // bytes
      std::string bytes = good;
      for (std::size_t k = random() % 3; k < 3; ++k) {
        const std::size_t at = random() % bytes.size();
        switch (random() % 4) {
          case 0:
            bytes[at] = static_cast<char>(random());
            break;
          case 1:
            bytes.erase(at, random() % 20);
            break;
          case 2:
            bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 20));
            break;
          default:
            bytes[at] = "0123456789{}[]\",:"[random() % 17];
        }
      }
      attempt(bytes);
    }
    const std::vector<json> values{nullptr,
                                   true,
                                   -1,
                                   0,
                                   5,
                                   1e300,
                                   "",
                                   "a",
                                   "Ġt h",
                                   json::array(),
                                   json::object(),
                                   {0, 1},
                                   {{"type", "ByteLevel"}}};
    for (int round = 0; round < 100; ++round) {  // values
      json changed = parsed;
      auto item = flat.begin();
      std::advance(item, static_cast<std::ptrdiff_t>(random() % flat.size()));
      json::json_pointer pointer(item.key());
      for (std::size_t up = random() % 3; up > 0 && !pointer.parent_pointer().empty(); --up) {
        pointer.pop_back();
      }
      changed[pointer] = values[random() % values.size()];
      attempt(changed.dump());
    }
  }
  EXPECT_GT(accepted, 10);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tessera
