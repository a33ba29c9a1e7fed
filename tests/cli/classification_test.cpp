#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/launched_program.h"

// Classifiers of texts: trained, evaluated, exported.
namespace tessera::classification_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class Classification : public test::LaunchTest {
 protected:
  /// Texts whose label is their first letter's.
  std::string reviews(const std::string& name = "reviews.jsonl") const {
    std::string lines;
    for (int i = 0; i < 24; ++i) {
      const std::string text = (i % 3 != 0 ? "good " : "bad ") + std::string(1 + i % 5, 'x');
      lines += json{{"text", text}, {"label", i % 3 != 0 ? "good" : "bad"}}.dump() + "\n";
    }
    return write(name, lines);
  }
  ProgramResult train(const Words& more) const {
    Words words{"train",           "--no-default-config",
                "--layers",        "1",
                "--heads",         "2",
                "--width",         "16",
                "--task",          "classification",
                "--data",          reviews(),
                "--steps",         "60",
                "--learning-rate", "1e-2",
                "--micro-batch",   "4",
                "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  ProgramResult evaluate(const Words& more) const {
    Words words{"evaluate", "--no-default-config", "--eval-data", reviews()};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
};

TEST_F(Classification, IsTrainedExportedAndEvaluated) {
  const ProgramResult trained =
      train({"--sequence-length", "12", "--ranks", "2", "--export", path("tuned"), "--save",
             path("saves"), "--save-every", "60"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const json config = json::parse(test::read_file(path("tuned/config.json")));
  EXPECT_EQ(config["architectures"], json::array({"GPT2ForSequenceClassification"}));
  EXPECT_EQ(config["id2label"], (json{{"0", "bad"}, {"1", "good"}}));
  EXPECT_EQ(config["label2id"], (json{{"bad", 0}, {"good", 1}}));
  for (const std::string& from : {path("tuned"), path("saves")}) {
    const ProgramResult text =
        evaluate({"--init", from, "--tokenizer", "bytes", "--sequence-length", "12"});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out, AllOf(HasSubstr("accuracy 100.00 %, F1 100.00 % of 'good', macro F1"),
                                HasSubstr("on 24 texts")));
  }
  const ProgramResult same =
      evaluate({"--init", path("tuned"), "--tokenizer", "bytes", "--sequence-length", "12",
                "--ranks", "3", "--format", "json"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  const json record = json::parse(same.out);
  EXPECT_EQ(record["accuracy"], 1.0);
  EXPECT_EQ(record["f1"], 1.0);
  EXPECT_EQ(record["f1_by_label"]["bad"], 1.0);
  EXPECT_THAT(run({"generate", "--init", path("tuned"), "--prompt", "x"}).err,
              HasSubstr("classifies sequences and writes no text"));
}

TEST_F(Classification, AdaptersBesideAModelThatWritesText) {
  const std::string base = TESSERA_SOURCE_DIR "/tests/model/golden/hugging_face/v5";
  const std::string data = write("few.jsonl", R"({"text": "\u0001\u0002", "label": 0}
{"sentence": "\u0003", "labels": 2}
)");
  ProgramResult result = run({"train",
                              "--no-default-config",
                              "--init",
                              base,
                              "--tokenizer",
                              "bytes",
                              "--task",
                              "classification",
                              "--data",
                              data,
                              "--lora",
                              "r=2",
                              "--steps",
                              "2",
                              "--sequence-length",
                              "4",
                              "--micro-batch",
                              "2",
                              "--quiet",
                              "--export",
                              path("adapter")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json config = json::parse(test::read_file(path("adapter/adapter_config.json")));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["modules_to_save"], json::array({"score"}));
  result = run({"evaluate", "--no-default-config", "--init", base, "--adapter", path("adapter"),
                "--tokenizer", "bytes", "--eval-data", data, "--sequence-length", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("macro F1"), HasSubstr("on 2 texts")));
  result = run({"checkpoint", "merge-adapter", base, path("adapter"), path("merged")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(test::read_file(path("merged/config.json")))["id2label"].size(), 3U);
}

TEST_F(Classification, ByAnEncoder) {
  const Words sizes{"--model", "bert-tiny", "--sequence-length", "12"};
  Words words = sizes;
  for (const char* word : {"--ranks", "2", "--eval-data", "", "--export", "", "--log", ""})
    words.push_back(word);
  words[7] = reviews("held_out.jsonl");
  words[9] = path("tuned");
  words[11] = path("log");
  const ProgramResult trained = train(words);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const json config = json::parse(test::read_file(path("tuned/config.json")));
  EXPECT_EQ(config["architectures"], json::array({"BertForSequenceClassification"}));
  const json within = read_log("log").at(61);
  EXPECT_EQ(within["macro_f1"], 1.0);
  EXPECT_EQ(within["f1"], 1.0);
  const json summary = read_log("log").back();
  EXPECT_EQ(summary["sent_bytes"]["predicted"], summary["sent_bytes"]["counted"]);
  EXPECT_EQ(summary["peak_bytes"]["predicted"], summary["peak_bytes"]["measured"]);
  for (const char* const ranks : {"1", "3"}) {
    const ProgramResult told = evaluate({"--init", path("tuned"), "--tokenizer", "bytes",
                                         "--sequence-length", "12", "--ranks", ranks});
    EXPECT_EQ(told.exit_code, 0) << told.err;
    EXPECT_THAT(told.out, HasSubstr("accuracy 100.00 %, F1 100.00 % of 'good', macro F1"));
  }
  EXPECT_THAT(
      error_of(evaluate({"--init", path("tuned"), "--tokenizer", "bytes", "--task", "masked-lm"})),
      HasSubstr("--task is masked-lm, and the model of --init classifies 2 labels"));
  const auto is_refused = HasSubstr("is an encoder, which reads texts and writes none");
  EXPECT_THAT(
      error_of(run({"generate", "--init", path("tuned"), "--tokenizer", "bytes", "--prompt", "x"})),
      is_refused);
  const Words encoder{
      "train", "--no-default-config", "--model", "bert-tiny", "--data", reviews(), "--steps", "1"};
  EXPECT_THAT(error_of(run(encoder)), HasSubstr("bytes have no mask token; give --tokenizer"));
}

/// Trained, evaluated and exported, an encoder tells masked tokens.
TEST_F(Classification, MaskedTokensAreTold) {
  std::ifstream in(TESSERA_SOURCE_DIR "/tests/model/tokenizers/word_pieces.json");
  write("tokenizer.json", json::parse(in)["cases"]["uncased"]["tokenizer"].dump());
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the film was great. hello world.\n";
  const Words common{"--no-default-config", "--sequence-length", "16", "--micro-batch", "4"};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), common.begin(), common.end());
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Words trains{"--model",     "bert-tiny",
                     "--layers",    "1",
                     "--heads",     "2",
                     "--width",     "16",
                     "--data",      write("text.txt", text),
                     "--tokenizer", path("tokenizer.json")};
  const auto train_more = [&](const Words& more) {
    Words words = trains;
    words.insert(words.end(), more.begin(), more.end());
    return with({"train"}, words);
  };
  const ProgramResult trained = train_more(
      {"--task", "masked-lm", "--steps", "20", "--learning-rate", "1e-2", "--ranks", "2", "--quiet",
       "--eval-data", path("text.txt"), "--log", path("log"), "--export", path("tuned")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(read_log("log").at(0)["mlm_probability"], 0.15);
  const json within = read_log("log").at(21);
  ASSERT_EQ(within["kind"], "evaluation");
  const json config = json::parse(test::read_file(path("tuned/config.json")));
  EXPECT_EQ(config["architectures"], json::array({"BertForMaskedLM"}));
  const ProgramResult told = with(
      {"evaluate"}, {"--init", path("tuned"), "--eval-data", path("text.txt"), "--format", "json"});
  ASSERT_EQ(told.exit_code, 0) << told.err;
  const json alone = json::parse(told.out);
  for (const char* const key : {"loss", "tokens", "correct_tokens"}) {
    EXPECT_EQ(alone[key], within[key]) << key;
  }
  // A checkpoint has its model's tokenizer, and so has the folder that it is in.
  const ProgramResult saved =
      train_more({"--steps", "1", "--quiet", "--save", path("saves"), "--save-every", "1"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  for (const std::string& from : {path("saves"), path("saves/step_1")}) {
    const ProgramResult of_checkpoint =
        with({"evaluate"}, {"--init", from, "--eval-data", path("text.txt")});
    EXPECT_EQ(of_checkpoint.exit_code, 0) << of_checkpoint.err;
    EXPECT_THAT(of_checkpoint.out, HasSubstr("saves/step_1/tokenizer.json"));
  }
  const Words of_labels{"--model", "bert-tiny", "--layers",          "1",
                        "--heads", "2",         "--width",           "16",
                        "--data",  reviews(),   "--tokenizer",       path("tokenizer.json"),
                        "--steps", "1",         "--mlm-probability", "0.5"};
  const auto train_labels = [&](const Words& more) {
    Words words = of_labels;
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = with({"train"}, words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto is_told = HasSubstr("are not read; give --task classification to learn these");
  EXPECT_THAT(train_labels({}), is_told);
  EXPECT_THAT(train_labels({"--task", "masked-lm"}), ::testing::Not(is_told));
  EXPECT_THAT(error_of(train_more({"--task", "text"})),
              HasSubstr("tells no next token; give --task masked-lm or classification"));
  EXPECT_THAT(error_of(train_more({"--mlm-probability", "1"})), HasSubstr("below 1"));
  EXPECT_THAT(error_of(train_more({"--sample-tokens", "5"})), HasSubstr("tells masked tokens"));
  EXPECT_THAT(error_of(run({"plan", "--no-default-config", "--task", "masked-lm"})),
              HasSubstr("is for encoders (bert), and a gpt2 tells the next token"));
  EXPECT_THAT(error_of(run({"plan", "--no-default-config", "--mlm-probability", "0.2"})),
              HasSubstr("leave it out"));
}

TEST_F(Classification, WhatDoesNotFitIsRefusedWithARemedy) {
  const auto refused = [&](const Words& more) { return error_of(train(more)); };
  EXPECT_THAT(refused({"--labels", "good"}), HasSubstr("'good' is the only label"));
  EXPECT_THAT(refused({"--labels", "fine,poor"}),
              AllOf(HasSubstr("line 1 of '"), HasSubstr("none of the model's: fine, poor")));
  EXPECT_THAT(refused({"--prompt-tuning", "tokens=2"}), HasSubstr("for models that write text"));
  EXPECT_THAT(refused({"--sample-tokens", "5"}), HasSubstr("--sample-tokens is for models that"));
  EXPECT_THAT(error_of(run({"plan", "--no-default-config", "--task", "classification"})),
              HasSubstr("name them: --labels negative,positive"));
  EXPECT_THAT(error_of(run({"plan", "--no-default-config", "--labels", "a,b"})),
              HasSubstr("--labels are for --task classification"));
  const ProgramResult plan = run({"plan", "--no-default-config", "--task", "classification",
                                  "--labels", "a,b,c", "--format", "summary"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
}

}  // namespace
}  // namespace tessera::classification_test
