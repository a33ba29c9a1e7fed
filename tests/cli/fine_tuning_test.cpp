#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "cli/launched_program.h"
#include "tessera/core/error.h"

// The commands of model/README.md, "Fine-tuning", on a small random folder.
namespace tessera::fine_tuning_test {
namespace {

using nlohmann::json;
using test::ProgramResult;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTemplate = TESSERA_SOURCE_DIR "/tests/model/chat/chatml.jinja";

class FineTuning : public test::LaunchTest {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::string base() {
    const std::string folder = path("base");
    const ProgramResult made =
        run({"train", "--no-default-config", "--model", "llama-tiny", "--layers", "2", "--data",
             TESSERA_SOURCE_DIR "/tests/text/alice.txt", "--sequence-length", "32", "--steps", "1",
             "--sample-tokens", "0", "--export", folder});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return folder;
  }
  ProgramResult tune(const std::string& init, const std::string& data,
                     std::vector<std::string> more) {
    std::vector<std::string> words{"train",
                                   "--no-default-config",
                                   "--init",
                                   init,
                                   "--data",
                                   data,
                                   "--epochs",
                                   "2",
                                   "--eval-data",
                                   data,
                                   "--sequence-length",
                                   "192",
                                   "--micro-batch",
                                   "2",
                                   "--ranks",
                                   "2",
                                   "--strategy",
                                   "full_shard",
                                   "--recompute",
                                   "full",
                                   "--sample-tokens",
                                   "0"};
    words.insert(words.end(), more.begin(), more.end());
    ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  ProgramResult answer(std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--no-default-config", "--tokens", "4"});
    return run(more);
  }
};

std::string chats() {
  std::string lines;
  for (int i = 0; i < 9; ++i) {
    const std::string text = std::string(static_cast<std::size_t>(i % 4), 'x');
    lines += json{{"messages",
                   {{{"role", "user"}, {"content", "q" + text}},
                    {{"role", "assistant"}, {"content", "a" + text}}}}}
                 .dump() +
             "\n";
  }
  return lines;
}

TEST_F(FineTuning, TunesAllParametersAndAdaptersOnPromptsAndCompletions) {
  std::string lines;
  for (const char* const word : {"red", "green", "blue", "white"}) {
    lines += json{{"prompt", "Colour:"}, {"completion", concat(" ", word)}}.dump() + "\n";
  }
  const std::string init = base(), data = write("examples.jsonl", lines);
  tune(init, data, {"--precision", "bf16", "--learning-rate", "2e-5", "--export", path("tuned")});
  tune(init, data,
       {"--precision", "bf16", "--learning-rate", "2e-4", "--lora",
        "r=16,alpha=32,targets=all-linear,dropout=0.05", "--export", path("adapter")});
  for (const std::vector<std::string>& model :
       {std::vector<std::string>{"--init", path("tuned")},
        std::vector<std::string>{"--init", init, "--adapter", path("adapter")}}) {
    std::vector<std::string> words = model;
    words.insert(words.end(), {"--prompt", "Colour:"});
    const ProgramResult generated = answer(words);
    EXPECT_EQ(generated.exit_code, 0) << generated.err;
  }
}

// Packed or not, an epoch's losses are over the same targets; of the same parameters the
// evaluations agree.
TEST_F(FineTuning, TunesOnChatsAndAnswers) {
  const std::string init = base(), data = write("chats.jsonl", chats());
  const auto log_of = [&](const char* packing) {
    const std::string log = concat(packing, ".jsonl.log");
    tune(init, data,
         {"--chat-template", kTemplate, "--packing", packing, "--learning-rate", "0", "--log",
          path(log)});
    return read_log(log);
  };
  const auto plain = log_of("false"), packed = log_of("true");
  const json& summary = packed.back();
  EXPECT_EQ(summary["peak_bytes"]["predicted"], summary["peak_bytes"]["measured"]);
  EXPECT_GT(plain.back()["steps"], summary["steps"]);
  const auto loss_in = [](const auto& log) {
    double loss = 0.0;
    for (const auto& line : log) {
      if (line["kind"] == "evaluation") loss = line["loss"].template get<double>();
    }
    return loss;
  };
  EXPECT_GT(loss_in(plain), 0.0);
  EXPECT_NEAR(loss_in(plain), loss_in(packed), 1e-6 * loss_in(plain));

  const ProgramResult said =
      answer({"--init", init, "--chat-template", kTemplate, "--message", "q"});
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_THAT(said.out, Not(HasSubstr("im_start")));
  std::filesystem::copy_file(kTemplate, path("base/chat_template.jinja"));
  EXPECT_EQ(answer({"--init", init, "--message", "q"}).out, said.out);
}

/// A line of the input is a message; what is answered is part of the next prompt.
TEST_F(FineTuning, HoldsAConversation) {
  const std::string init = base();
  std::filesystem::copy_file(kTemplate, path("base/chat_template.jinja"));
  const auto chat = [&](const std::string& input, std::vector<std::string> more = {}) {
    give_input(input);
    more.insert(more.begin(), {"--init", init, "--chat"});
    ProgramResult result = answer(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  const std::string one = answer({"--init", init, "--message", "q"}).out;
  EXPECT_EQ(chat("q\n").out, one);
  EXPECT_EQ(chat("q").out, one) << "without a line break at the end";
  EXPECT_EQ(chat("q\r\n\n/exit\nq\n").out, one);
  const ProgramResult two = chat("q\nand\n");
  EXPECT_EQ(two.out.substr(0, one.size()), one);
  EXPECT_THAT(two.err, HasSubstr("note: the answer was cut off after 4 tokens; --tokens N"));
  EXPECT_EQ(chat("q\nand\n", {"--cache", "false"}).out, two.out);
  EXPECT_EQ(chat("q\nand\n", {"--ranks", "2"}).out, two.out);
  // Questions and answers are kept until they are forgotten, and so is what the system says.
  const auto is_long = [&](const std::string& input, const std::string& system) {
    const std::string err = chat(input, {"--context-tokens", "100", "--system", system}).err;
    return err.find("longer than the 100 tokens that the model sees") != err.npos;
  };
  EXPECT_FALSE(is_long("q\n", ""));
  EXPECT_TRUE(is_long("q\nand\n", ""));
  EXPECT_FALSE(is_long("q\n/reset\nand\n", ""));
  EXPECT_TRUE(is_long("/reset\nq\n", std::string(100, 's')));
  const std::string forgotten = chat("q\n/reset\nand\n").out.substr(one.size());
  EXPECT_EQ(forgotten, answer({"--init", init, "--message", "and"}).out);
  const std::string instructed = chat("q\n", {"--system", "Answer in verse."}).out;
  EXPECT_EQ(answer({"--init", init, "--message", "q", "--system", "Answer in verse."}).out,
            instructed);
}

TEST_F(FineTuning, SaysWhatChatsNeed) {
  const std::string data = write("chats.jsonl", chats());
  const auto error_of = [&](std::vector<std::string> words) {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error_of({"train", "--no-default-config", "--data", data}),
              HasSubstr("give --chat-template FILE"));
  EXPECT_THAT(error_of({"train", "--no-default-config", "--data",
                        TESSERA_SOURCE_DIR "/tests/text/alice.txt", "--packing", "true"}),
              HasSubstr("packing is for examples"));
  const std::string init = base();
  EXPECT_THAT(error_of({"generate", "--no-default-config", "--init", init, "--message", "q"}),
              HasSubstr("--message needs a chat template"));
  EXPECT_THAT(error_of({"generate", "--no-default-config", "--init", init, "--message", "q",
                        "--prompt", "p", "--chat-template", kTemplate}),
              HasSubstr("give one of them"));
  EXPECT_THAT(error_of({"generate", "--no-default-config", "--init", init, "--chat"}),
              HasSubstr("--chat needs a chat template"));
  EXPECT_THAT(error_of({"generate", "--no-default-config", "--init", init, "--chat", "--message",
                        "q", "--chat-template", kTemplate}),
              HasSubstr("give one of them"));
  EXPECT_THAT(error_of({"generate", "--no-default-config", "--init", init, "--system", "q"}),
              HasSubstr("--chat or --message"));
  EXPECT_THAT(error_of({"generate", "--no-default-config", "--init", init, "--chat",
                        "--chat-template", kTemplate, "--context-tokens", "100000"}),
              HasSubstr("more than this model takes"));
  EXPECT_THAT(error_of({"launch", "--processes", "2", "--", "generate", "--no-default-config",
                        "--init", init, "--chat", "--chat-template", kTemplate}),
              HasSubstr("leave out the launcher"));
}

TEST_F(FineTuning, EndsWithoutASampleUnlessThereIsAPrompt) {
  const std::string init = base();
  const auto tune_a_step = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"train",
                                   "--no-default-config",
                                   "--init",
                                   init,
                                   "--data",
                                   TESSERA_SOURCE_DIR "/tests/text/alice.txt",
                                   "--sequence-length",
                                   "32",
                                   "--steps",
                                   "1"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string unasked = tune_a_step({});
  EXPECT_THAT(unasked, HasSubstr("sample    left out: a fine-tune continues"));
  EXPECT_THAT(unasked, Not(HasSubstr("\nsample\n")));
  EXPECT_THAT(tune_a_step({"--prompt", "Alice", "--sample-tokens", "3"}),
              HasSubstr("\nsample\nAlice"));
}

}  // namespace
}  // namespace tessera::fine_tuning_test
