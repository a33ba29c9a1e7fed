#include "tessera/model/multiple_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "temporary_folder.h"
#include "tessera/core/error.h"
#include "tessera/model/generate.h"

namespace tessera::multiple_choice_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<ChoiceQuestion> read(const std::string& lines) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path("questions.jsonl")) << lines;
  return read_choice_questions(folder.path("questions.jsonl")).questions;
}

std::string error_of(const std::string& lines) {
  try {
    read(lines);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "";
}

// Expected texts are what tasks/hellaswag/utils.py of lm-evaluation-harness 0.4.13 makes of them.
TEST(ChoiceQuestions, PrepareHellaSwagAsTheHarness) {
  const auto questions = read(
      R"({"activity_label": "Mowing", "ctx_a": "[header] A  man [title] sits. ", )"
      R"("ctx_b": "élan VITAL [x]  he", "endings": [" a [b] c", "[step] d   e", "f]g["], )"
      R"("label": "2"})"
      "\n"
      R"({"ctx": "only ctx", "endings": ["a", "b"], "label": 0})"
      "\r\n\n"
      R"({"activity_label": "A", "ctx_a": "b\n[c\nd] e", "ctx_b": "", "endings": ["a", "b"], "label": 1})");
  ASSERT_EQ(questions.size(), 3U);
  EXPECT_EQ(questions[0].query, "Mowing: A man. sits. Élan vital  he");
  EXPECT_THAT(questions[0].choices, ElementsAre("a c", " d  e", "f]g["));
  EXPECT_EQ(questions[0].answer, 2U);
  EXPECT_EQ(questions[1].query, "only ctx");
  EXPECT_EQ(questions[1].answer, 0U);
  EXPECT_EQ(questions[1].line, 2);
  EXPECT_EQ(questions[2].query, "A: b\n[c\nd] e");
  EXPECT_EQ(questions[2].line, 4);
}

TEST(ChoiceQuestions, TakeThePlainForms) {
  const auto questions = read(
      R"({"question": " Why? ", "choices": ["[a]", " b"], "answer": 1})"
      "\n"
      R"({"query": "Q", "choices": ["a", "b", "c"], "gold": "B", "extra": null})"
      "\n"
      R"({"question": "Q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "1"})"
      "\n"
      R"({"question": "Q", "choices": ["a", "b"], "label": "1"})"
      "\n");
  ASSERT_EQ(questions.size(), 4U);
  EXPECT_EQ(questions[0].query, " Why? ");
  EXPECT_THAT(questions[0].choices, ElementsAre("[a]", " b"));
  EXPECT_EQ(questions[0].answer, 1U);
  EXPECT_EQ(questions[1].answer, 1U);
  EXPECT_EQ(questions[2].answer, 0U);  // a label's, not an index
  EXPECT_EQ(questions[3].answer, 1U);
}

TEST(ChoiceQuestions, ErrorsNameFileLineAndRemedy) {
  const std::string good = R"({"question": "Q", "choices": ["a", "b"], "answer": 1})"
                           "\n";
  EXPECT_THAT(error_of(good + "\n{\"question\": "),
              AllOf(HasSubstr("line 3 of '"), HasSubstr("questions.jsonl' is no JSON"),
                    HasSubstr("write {\"question\"")));
  EXPECT_THAT(error_of(good + "[1]"),
              AllOf(HasSubstr("line 2 of '"), HasSubstr("' is no JSON object; write")));
  EXPECT_THAT(error_of(R"({"question": "Q"})"),
              HasSubstr("' has neither \"endings\" nor \"choices\"; write"));
  EXPECT_THAT(error_of(R"({"choices": ["a", "b"], "answer": 1})"),
              HasSubstr("' has no \"question\"; write"));
  EXPECT_THAT(error_of(R"({"question": 3, "choices": ["a", "b"], "answer": 1})"),
              HasSubstr("has a \"question\" that is no text; write it in quotes"));
  EXPECT_THAT(error_of(R"({"question": "Q", "choices": ["a", 2], "answer": 1})"),
              HasSubstr("has \"choices\" that are no list of texts; write [\"...\""));
  EXPECT_THAT(error_of(R"({"question": "Q", "choices": ["a"], "answer": 0})"),
              HasSubstr("has 1 choices; give two or more"));
  EXPECT_THAT(error_of(R"({"question": "Q", "choices": ["a", ""], "answer": 0})"),
              HasSubstr("has an empty choice"));
  EXPECT_THAT(error_of(R"({"question": " ", "choices": ["a", "b"], "answer": 0})"),
              HasSubstr("has an empty question"));
  EXPECT_THAT(error_of(R"({"question": "Q", "choices": ["a", "b"]})"),
              HasSubstr("does not say which choice is right; write"));
  for (const char* const answer : {"2", "-1", "\"C\"", "\"x\"", "1.0", "null", "\"99999999999\""}) {
    EXPECT_THAT(
        error_of(concat(R"({"question": "Q", "choices": ["a", "b"], "answer": )", answer, "}")),
        HasSubstr(concat("has the \"answer\" ", answer,
                         ", which is none of its 2 choices; give an index from 0 to 1, or "
                         "a letter from A to B")));
  }
  EXPECT_THAT(error_of(R"({"ctx_a": "a", "ctx_b": "b", "endings": ["a", "b"], "label": ""})"),
              HasSubstr("questions of a test set, without answers, have no accuracy"));
  EXPECT_THAT(error_of(R"({"ctx_a": "a", "endings": ["a", "b"], "label": "0"})"),
              HasSubstr("has no \"ctx_b\""));
  EXPECT_THAT(error_of("\n \n"), HasSubstr("questions.jsonl' has no questions; write"));
  EXPECT_THROW(read_choice_questions("no such file"), Error);
}

TEST(ChoiceQuestions, ScoreTheChoicesBehindTheQuestion) {
  const ChoiceQuestion question{.query = "ab \n", .choices = {"c", "de"}, .line = 7};
  const auto texts = encode_choices(question, std::nullopt, 100);
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_EQ(texts[0].tokens, to_byte_tokens("ab \n c"));
  EXPECT_EQ(texts[0].scored, 4);  // with the question's last white space
  EXPECT_EQ(texts[1].tokens, to_byte_tokens("ab \n de"));
  EXPECT_EQ(texts[1].scored, 5);
  const auto narrow = encode_choices(question, std::nullopt, 5);
  EXPECT_EQ(narrow[0].tokens, to_byte_tokens("ab \n c"));
  EXPECT_EQ(narrow[1].tokens, to_byte_tokens("b \n de"));
  EXPECT_EQ(narrow[1].scored, 5);
  try {
    encode_choices(question, std::nullopt, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("choice 1 of the question in line 7 has 5 tokens, and the "
                                        "model's context 4; shorten it"));
  }
}

TEST(ChoiceQuestions, AreAnsweredByTheFirstLargest) {
  const ChoiceQuestion question{.query = "q", .choices = {"é", "bbbb", "cc", "dd"}};
  const ChosenChoices one = choose(question, std::vector{-3.0, -4.0, -2.0, -2.0});
  EXPECT_EQ(one.likeliest, 2U);
  EXPECT_EQ(one.likeliest_by_length, 1U);  // -3, -1, -1, -1: é is one character
  EXPECT_EQ(choose(question, std::vector{-0.9, -4.0, -2.0, -2.0}).likeliest_by_length, 0U);
  EXPECT_THROW(choose(question, std::vector{-1.0}), Error);
  EXPECT_THROW(
      choose(question, std::vector{-1.0, std::numeric_limits<double>::quiet_NaN(), -1.0, -1.0}),
      Error);
}

}  // namespace
}  // namespace tessera::multiple_choice_test
