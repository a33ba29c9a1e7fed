#include <gmock/gmock.h>

#include <filesystem>

#include "cli/program.h"
#include "tessera/core/error.h"
#include "tessera/model/tokenizer.h"

// Folders that train, convert and merge-adapter write have what a model needs besides its weights.
namespace tessera::export_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::ProgramResult;
using test::read_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kGolden = TESSERA_SOURCE_DIR "/tests/model/golden";

class Export : public test::ProgramTest {
 protected:
  /// A folder in bf16 whose texts end with token 7.
  void make_source(const std::string& golden, const std::string& name) const {
    const ProgramResult made = run({"checkpoint", "convert", (kGolden / golden).string(),
                                    path(name), "--to", "hf", "--export-dtype", "bf16"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    json config = json::parse(read_file(path(name + "/config.json")));
    EXPECT_EQ(config.at("dtype"), "bfloat16");
    config["bos_token_id"] = 3;
    config["eos_token_id"] = 7;
    config["pad_token_id"] = 9;
    config["somebody's key"] = {{"a", 1e-05}};
    write(name + "/config.json", config.dump(4));
    write(name + "/generation_config.json", R"({"eos_token_id": [7], "temperature": 0.6})");
    std::filesystem::create_directory(path(name + "/additional_chat_templates"));
    for (const char* const file : kOthers) write(name + "/" + file, std::string("{ } of ") + file);
  }
  void expect_files(const std::string& name, const std::string& source) const {
    SCOPED_TRACE(name);
    for (const char* const file : kOthers) {
      EXPECT_EQ(read_file(path(name + "/" + file)), std::string("{ } of ") + file);
    }
    for (const char* const file : {"config.json", "generation_config.json"}) {
      EXPECT_EQ(read_file(path(name + "/" + file)), read_file(path(source + "/" + file))) << file;
    }
  }
  ProgramResult train_on(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"train",
                                   "--data",
                                   path("data.jsonl"),
                                   "--tokenizer",
                                   "bytes",
                                   "--sample-tokens",
                                   "0",
                                   "--steps",
                                   "2",
                                   "--micro-batch",
                                   "1",
                                   "--sequence-length",
                                   "12"};
    words.insert(words.end(), more.begin(), more.end());
    ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  /// Byte tokens: ids of the golden models' small vocabulary.
  void write_examples() const {
    write("data.jsonl", "{\"text\": \"\\u0001\\u0002\\u0003\"}\n{\"text\": \"\\u0005\\u0002\"}\n");
  }
  static constexpr std::array kOthers{"tokenizer.json",
                                      "tokenizer_config.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "added_tokens.json",
                                      "special_tokens_map.json",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "tokenizer.model",
                                      "additional_chat_templates/rag.jinja",
                                      "additional_chat_templates/tool_use.jinja"};
};

TEST_F(Export, OfACheckpointIsTheFolderThatItIsOf) {
  for (const char* const golden : {"families/llama", "hugging_face/v5"}) {
    const std::string name = fs::path(golden).filename();
    make_source(golden, name);
    ASSERT_EQ(run({"checkpoint", "convert", path(name), path(name + "_run")}).exit_code, 0);
    const ProgramResult back =
        run({"checkpoint", "export", path(name + "_run"), path(name + "_back")});
    EXPECT_THAT(back.out, AllOf(HasSubstr("written in bf16"), HasSubstr("--export-dtype fp32")));
    expect_files(name + "_back", name);
    EXPECT_EQ(read_file(path(name + "_back/model.safetensors")),
              read_file(path(name + "/model.safetensors")));
    const ProgramResult wide = run({"checkpoint", "export", path(name + "_run"),
                                    path(name + "_wide"), "--export-dtype", "float32"});
    EXPECT_THAT(wide.out, Not(HasSubstr("rounded")));
    const json config = json::parse(read_file(path(name + "_wide/config.json")));
    EXPECT_EQ(config.at("dtype"), "float32");
    EXPECT_EQ(config.at("eos_token_id"), 7);
    EXPECT_THAT(read_file(path(name + "_wide/model.safetensors")), Not(HasSubstr("BF16")));
  }
}

TEST_F(Export, OfARunHasWhatItBeganWith) {
  make_source("families/llama", "llama");
  write_examples();
  const ProgramResult trained =
      train_on({"--init", path("llama"), "--export", path("out"), "--save", path("saved")});
  EXPECT_THAT(trained.out,
              AllOf(HasSubstr("a Hugging Face folder in bf16"), HasSubstr("--export-dtype fp32")));
  expect_files("out", "llama");
  EXPECT_THAT(read_file(path("out/model.safetensors")),
              AllOf(HasSubstr("BF16"), Not(HasSubstr("F32"))));
  // A checkpoint remembers; so does one of a run that goes on from it alone.
  train_on({"--init", path("saved"), "--export", path("again"), "--export-dtype", "fp16"});
  EXPECT_EQ(json::parse(read_file(path("again/config.json"))).at("eos_token_id"), 7);
  EXPECT_EQ(json::parse(read_file(path("again/config.json"))).at("dtype"), "float16");
  EXPECT_THAT(read_file(path("again/model.safetensors")), HasSubstr("\"F16\""));
  ASSERT_EQ(run({"checkpoint", "export", path("saved"), path("exported")}).exit_code, 0);
  expect_files("exported", "llama");
  EXPECT_EQ(read_file(path("exported/model.safetensors")),
            read_file(path("out/model.safetensors")));
}

TEST_F(Export, OfMergedAdaptersHasWhatTheBaseHas) {
  make_source("families/llama", "llama");
  write_examples();
  train_on({"--init", path("llama"), "--lora", "r=2,targets=q_proj", "--export", path("adapter")});
  const ProgramResult merged =
      run({"checkpoint", "merge-adapter", path("llama"), path("adapter"), path("merged")});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_THAT(merged.out, HasSubstr("written in bf16"));
  expect_files("merged", "llama");
  EXPECT_EQ(fs::file_size(path("merged/model.safetensors")),
            fs::file_size(path("llama/model.safetensors")));
}

TEST_F(Export, OfAdaptersHasTheTokenizerAndTheChatTemplates) {
  make_source("families/llama", "llama");
  write_examples();
  train_on({"--init", path("llama"), "--lora", "r=2,targets=q_proj", "--export", path("adapter"),
            "--save", path("saved")});
  ASSERT_EQ(run({"checkpoint", "export", path("saved"), path("exported")}).exit_code, 0);
  for (const char* const name : {"adapter", "exported"}) {
    SCOPED_TRACE(name);
    for (const char* const file : kOthers) {
      EXPECT_EQ(read_file(path(concat(name, "/", file))), std::string("{ } of ") + file);
    }
    EXPECT_TRUE(fs::exists(path(concat(name, "/adapter_config.json"))));
    // Whoever finds one takes the folder for a whole model.
    EXPECT_FALSE(fs::exists(path(concat(name, "/config.json"))));
    EXPECT_FALSE(fs::exists(path(concat(name, "/generation_config.json"))));
  }
}

TEST_F(Export, OfANewModelHasItsTokenizerAndNoForeignEnd) {
  fs::create_directories(path("tokenizer"));
  const std::string tokenizer = path("tokenizer/tokenizer.json");
  fs::copy_file(TESSERA_SOURCE_DIR "/tests/model/tokenizers/gpt2.json", tokenizer);
  write("tokenizer/tokenizer_config.json", R"({"eos_token": {"content": "b"}})");
  write("data.txt", std::string(2000, 'a') + " b");
  const ProgramResult trained = run({"train",
                                     "--data",
                                     path("data.txt"),
                                     "--tokenizer",
                                     tokenizer,
                                     "--model",
                                     "llama-tiny",
                                     "--layers",
                                     "1",
                                     "--steps",
                                     "1",
                                     "--sequence-length",
                                     "8",
                                     "--micro-batch",
                                     "1",
                                     "--sample-tokens",
                                     "0",
                                     "--export",
                                     path("out"),
                                     "--save",
                                     path("saved")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(read_file(path("out/tokenizer.json")), read_file(tokenizer));
  const json config = json::parse(read_file(path("out/config.json")));
  EXPECT_EQ(config.at("eos_token_id"), Tokenizer(tokenizer).id_of("b").value());
  EXPECT_LT(config.at("eos_token_id").get<int>(), config.at("vocab_size").get<int>());
  ASSERT_EQ(run({"checkpoint", "export", path("saved"), path("exported")}).exit_code, 0);
  EXPECT_EQ(read_file(path("exported/config.json")), read_file(path("out/config.json")));
}

}  // namespace
}  // namespace tessera::export_test
