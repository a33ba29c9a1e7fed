#include "tessera/model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"
#include "tessera/core/error.h"

// What transformers renders by the templates of tests/model/chat (make_chat_golden.py).
namespace tessera::chat_template_test {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kFolder = TESSERA_SOURCE_DIR "/tests/model/chat/";

ordered_json golden() {
  std::ifstream file(std::string(kFolder) + "golden.json");
  return ordered_json::parse(file);
}

class ChatTemplates : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = folder_.path(name);
    std::ofstream(path) << text;
    return path;
  }
  ChatTemplate of(const std::string& source, const std::string& variables = "") {
    return ChatTemplate({.path = write("chat_template.jinja", source), .variables = variables});
  }
  std::string error_of(const std::string& source) {
    try {
      of(source).render(ordered_json::array({{{"role", "user"}, {"content", "x"}}}), false,
                        nullptr);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      return error.what();
    }
    return "";
  }
  std::string text_of(const std::string& source) {
    return of(source).render(ordered_json::array(), false, nullptr);
  }

  test::TemporaryFolder folder_;
};

TEST_F(ChatTemplates, RenderTheBytesThatTransformersRenders) {
  const ordered_json all = golden();
  const std::string tokens = write("special_tokens_map.json", all.at("special_tokens").dump());
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 6;
  time.tm_mday = 4;
  int refused = 0;
  for (const ordered_json& one : all.at("renderings")) {
    const ChatTemplate chat({.path = kFolder + one.at("template").get<std::string>(),
                             .tokens_path = tokens,
                             .variables = one.at("variables").dump(),
                             .time = time});
    const bool prompt = one.at("add_generation_prompt").get<bool>();
    SCOPED_TRACE(one.at("template").dump() + (prompt ? " with a prompt, " : ", ") +
                 one.at("messages").dump());
    if (one.contains("error")) {
      ++refused;
      EXPECT_THROW(chat.render(one.at("messages"), prompt, one.at("tools")), Error);
      continue;
    }
    EXPECT_EQ(chat.render(one.at("messages"), prompt, one.at("tools")), one.at("text"));
  }
  EXPECT_GT(refused, 0);
}

// Bytes here are characters there.
TEST_F(ChatTemplates, GenerationBlocksSayWhatAnAssistantHasWritten) {
  const auto characters = [](std::string_view text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  };
  int spans = 0;
  const ordered_json all = golden();
  for (const ordered_json& one : all.at("renderings")) {
    if (one.at("template") != "marked.jinja" || one.contains("error")) continue;
    if (one.at("add_generation_prompt").get<bool>()) continue;
    const ChatTemplate chat({.path = std::string(kFolder) + "marked.jinja"});
    const ChatTemplate::Chat found = chat.chat(one.at("messages"), one.at("tools"));
    ASSERT_EQ(found.written.size(), one.at("written").size());
    for (std::size_t i = 0; i < found.written.size(); ++i, ++spans) {
      const auto [begin, end] = found.written[i];
      EXPECT_EQ(characters(found.text.substr(0, begin)), one.at("written")[i][0]);
      EXPECT_EQ(characters(found.text.substr(0, end)), one.at("written")[i][1]);
    }
  }
  EXPECT_GT(spans, 4);
}

TEST_F(ChatTemplates, WithoutThemItIsWhatEachAssistantMessageAdds) {
  const ChatTemplate chat({.path = std::string(kFolder) + "chatml.jinja"});
  const auto messages = ordered_json::parse(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])");
  const ChatTemplate::Chat found = chat.chat(messages, nullptr);
  ASSERT_EQ(found.written.size(), 2U);
  const auto part = [&](std::size_t i) {
    return found.text.substr(found.written[i].first,
                             found.written[i].second - found.written[i].first);
  };
  EXPECT_EQ(part(0), "b<|im_end|>\n");
  EXPECT_EQ(part(1), "d<|im_end|>\n");
  const ChatTemplate::Chat completed = chat.completed(ordered_json::array({messages[0]}),
                                                      ordered_json::array({messages[1]}), nullptr);
  ASSERT_EQ(completed.written.size(), 1U);
  EXPECT_EQ(completed.text.substr(completed.written[0].first), "b<|im_end|>\n");
  EXPECT_EQ(chat.question("hi"), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(ChatTemplates, ThatRenderEarlierTurnsInAnotherWayNeedGenerationBlocks) {
  const ChatTemplate chat({.path = std::string(kFolder) + "qwen.jinja"});
  const auto messages = ordered_json::parse(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])");
  try {
    chat.chat(messages, nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("message 2"), HasSubstr("{% generation %}")));
  }
}

TEST_F(ChatTemplates, ErrorsNameTheLineAndWhatIsNotThere) {
  EXPECT_THAT(error_of("a\n{% include 'x' %}"),
              AllOf(HasSubstr("line 2 of '"), HasSubstr("include")));
  EXPECT_THAT(error_of("\n\n{{ 'a' | wordwrap }}"),
              AllOf(HasSubstr("line 3 of '"), HasSubstr("filter 'wordwrap' is not supported")));
  EXPECT_THAT(error_of("{{ 'a' is escaped }}"), HasSubstr("test 'escaped' is not supported"));
  EXPECT_THAT(error_of("{{ 'a'.zfill(3) }}"), HasSubstr("'zfill'"));
  EXPECT_THAT(error_of("{% if x %}"), HasSubstr("ends without {% endif %}"));
  EXPECT_THAT(error_of("{% if x"), HasSubstr("no end %}"));
  EXPECT_THAT(error_of("{{ 'a }}"), HasSubstr("a string has no end '"));
  EXPECT_THAT(error_of("{{ missing.name }}"), HasSubstr("'missing' is undefined"));
  EXPECT_THAT(error_of("{{ 1 + 'a' }}"), HasSubstr("'+' takes no int and str"));
  EXPECT_THAT(error_of("{{ 'Ä'.lower() }}"), HasSubstr("beyond ASCII"));
  EXPECT_THAT(error_of("{{ messages.append(1) }}"), HasSubstr("cannot be changed"));
  EXPECT_THAT(error_of("{{ range(1000000) }}"), HasSubstr("range is too long"));
  EXPECT_THAT(error_of("{{ raise_exception('No!') }}"),
              HasSubstr("the template refuses these messages: No!"));
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("too deeply"));
  EXPECT_THAT(error_of(std::string(500, '(')), testing::IsEmpty()) << "text";
  EXPECT_THAT(error_of("{{ " + std::string(500, '(') + "1" + std::string(500, ')') + " }}"),
              HasSubstr("nested deeper"));
}

TEST_F(ChatTemplates, ScopesAreThoseOfJinja) {
  EXPECT_EQ(
      text_of(
          "{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = 5 %}{{ a }}{% endfor %}{{ a }}"),
      "15151");
  EXPECT_EQ(text_of("{% set a = 1 %}{% macro m() %}{{ a }}{% endmacro %}{% set a = 2 %}{{ m() }}"),
            "2");
  EXPECT_EQ(text_of("{% if true %}{% set b = 3 %}{% endif %}{{ b }}"), "3");
}

TEST_F(ChatTemplates, AreFoundInFoldersAsTransformersFindsThem) {
  EXPECT_EQ(find_chat_template(folder_.path("")), "");
  const std::string config = write("tokenizer_config.json", R"({"bos_token": {"content": "<b>"},
      "eos_token": "</e>", "pad_token": null,
      "chat_template": [{"name": "tool_use", "template": "no"},
                        {"name": "default", "template": "{{ bos_token }}yes{{ eos_token }}"}]})");
  EXPECT_EQ(find_chat_template(folder_.path("")), config);
  const ChatTemplate chat({.path = config});
  EXPECT_EQ(chat.render(ordered_json::array(), false, nullptr), "<b>yes</e>");
  EXPECT_EQ(chat.special_token("eos_token"), "</e>");
  EXPECT_NE(chat.identity(), ChatTemplate({.path = config, .variables = "{\"a\": 1}"}).identity());
  const std::string file = write("chat_template.jinja", "{{ bos_token }}{{ a }}");
  EXPECT_EQ(find_chat_template(folder_.path("")), file);
  EXPECT_EQ(ChatTemplate({.path = file, .variables = "{\"a\": 1}"})
                .render(ordered_json::array(), false, nullptr),
            "<b>1");
  EXPECT_THROW(ChatTemplate({.path = file, .variables = "[]"}), Error);
}

}  // namespace
}  // namespace tessera::chat_template_test
