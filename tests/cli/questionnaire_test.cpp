#include "tessera/compat/questionnaire.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

// Our questions beside those of `accelerate config` (questionnaire_golden.json). Every difference
// stands in one of the lists below, with its reason; the last test holds the lists to their use.

namespace tessera::questionnaire {
namespace {

using nlohmann::json;
using ::testing::ElementsAreArray;

// What only Accelerate asks.
const std::map<std::string, std::string> kLeftOut{
    {"In which compute environment are you running?", "this machine; nothing runs in SageMaker"},
    {"Do you want accelerate to launch mpirun?", "`mpirun ... tessera train` does"},
    {"Please enter the path to the hostfile to use with mpirun", "mpirun's own business"},
    {"Do you wish to optimize your script with torch dynamo?", "there is no Python to compile"},
    {"Which dynamo backend would you like to use?", "no dynamo"},
    {"Do you want to customize the defaults sent to torch.compile?", "no dynamo"},
    {"Which mode do you want to use?", "no dynamo"},
    {"Do you want the fullgraph mode or it is ok to break model into several subgraphs?",
     "no dynamo"},
    {"Do you want to enable dynamic shape tracing?", "no dynamo"},
    {"Do you want to enable regional compilation?", "no dynamo"},
    {"Do you want to enable Mixture-of-Experts training (MoE)?", "refused"},
    {"Specify the comma-separated list of transformers MoE layer class names (case-sensitive), "
     "e.g :  `MixtralSparseMoeBlock`, `Qwen2MoeSparseMoeBlock`, `JetMoEAttention,JetMoEBlock` ...",
     "no mixtures of experts"},
    {"Which Type of launcher do you want to use?", "`tessera launch` is DeepSpeed's 'standard'"},
    {"DeepSpeed configures multi-node compute resources with hostfile. Each row is of the format "
     "`hostname slots=[num_gpus]`, e.g., `localhost slots=2`; for more information please refer "
     "official [documentation](https://www.deepspeed.ai/getting-started/"
     "#resource-configuration-multi-node). Please specify the location of hostfile",
     "only for DeepSpeed's launchers"},
    {"Do you want to specify exclusion filter string?", "only for DeepSpeed's launchers"},
    {"DeepSpeed exclusion filter string", "only for DeepSpeed's launchers"},
    {"Do you want to specify inclusion filter string?", "only for DeepSpeed's launchers"},
    {"DeepSpeed inclusion filter string", "only for DeepSpeed's launchers"},
    {"What is the tensor parallelism size?", "refused above 1"},
    {"What is the context parallelism size?", "refused above 1"},
    {"Do you want to use Megatron-LM ?", "refused"},
    {"Would you like to enable numa efficiency? (Currently only supported on NVIDIA hardware).",
     "--bind auto does so where it helps"},
};

// What only we ask, of several CPUs.
const std::map<std::string, std::string> kOnlyOurs{
    {"Do you want to use DeepSpeed?", "CPU ranks can be sharded here"},
    {"Do you want to use FullyShardedDataParallel?", "CPU ranks can be sharded here"},
};

// What Enter alone means something else for.
const std::map<std::string, std::string> kOtherDefault{
    {"Which type of machine are you using?", "the type of this machine"},
    {"What is the port you will use to communicate with the main process?",
     "29500, as at --main_process_port; they have none"},
    {"What rendezvous backend will you use? ('static', 'c10d', ...)",
     "static there as well, but not shown"},
    {"Specify the comma-separated list of transformer layer class names (case-sensitive) to wrap "
     ",e.g, :`BertLayer`, `GPTJBlock`, `T5Block`, `BertLayer,BertEmbeddings,BertSelfOutput` ...?",
     "the layer of the model that is there"},
    {"What should be your FSDP's minimum number of parameters for Default Auto Wrapping Policy?",
     "the same number, written out"},
    {"Nvme Path to offload parameters?", "/local_nvme, as DeepSpeed's documents have it"},
    {"Nvme Path to offload optimizer states?", "the same"},
    {"What is the FSDP shard size?", "all ranks; 1 would not make a mesh"},
    {"How many GPU(s) should be used for distributed training?", "all of this machine"},
    {"How many processes should be used for distributed training?", "the fewest that are several"},
};

// Choices that would be refused, or are no devices of ours.
const std::map<std::string, std::vector<std::string>> kFewerChoices{
    {"Which type of machine are you using?",
     {"multi-XPU", "multi-HPU", "multi-NPU", "multi-MLU", "multi-SDAA", "multi-MUSA",
      "multi-NEURON", "TPU"}},
    {"Do you wish to use mixed precision?", {"fp8"}},
};

// Other words for the same.
struct Rewording {
  std::string path, theirs, ours, reason;
};
const std::vector<Rewording> kReworded{
    {"one_process_deepspeed_on_cpu", "How many GPU(s) should be used for distributed training?",
     "How many processes should be used for distributed training?", "there is no GPU to count"},
};

struct Asked {
  std::string text;
  std::string fallback;  // as it is shown; of a menu: the choice
  std::vector<std::string> choices;

  bool operator==(const Asked&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Asked& asked) {
  out << "'" << asked.text << "' [" << asked.fallback << "]";
  for (const std::string& choice : asked.choices) out << " / " << choice;
  return out;
}

json golden_paths() {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/cli/questionnaire_golden.json");
  return json::parse(file).at("paths");
}

/// A line as the generator writes it down: without the default and a colon at its end.
Asked split(const std::string& line) {
  static const std::regex kLine(R"(([^]*?)\s*(?:\[([^\]]*)\])?[\s:]*)");
  std::smatch match;
  EXPECT_TRUE(std::regex_match(line, match, kLine)) << line;
  return {match[1], match[2], {}};
}

/// Answers as a path of the golden, and remembers what was asked. `answers`: by question.
class Person : public Prompter {
 public:
  explicit Person(std::map<std::string, std::string> answers) : answers_(std::move(answers)) {}

  void say(const std::string& text) override {
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("lease enter")));  // no answer is wrong
  }
  std::size_t choose(const std::string& question, const std::vector<std::string>& choices,
                     std::size_t fallback) override {
    asked.push_back({split(question).text, choices.at(fallback), choices});
    const std::string answer = answers_[asked.back().text];
    if (answer.empty()) return fallback;
    const auto found = std::ranges::find(choices, answer);
    EXPECT_NE(found, choices.end()) << answer << " at " << question;
    return static_cast<std::size_t>(found - choices.begin()) % choices.size();
  }
  std::string type(const std::string& question) override {
    asked.push_back(split(question));
    return answers_[asked.back().text];
  }

  std::vector<Asked> asked;

 private:
  std::map<std::string, std::string> answers_;
};

constexpr MachineFacts kMachine{.gpus = 4, .cores = 16};

std::string our_text(const std::string& path, const std::string& text) {
  for (const Rewording& row : kReworded) {
    if (row.path == path && row.theirs == text) return row.ours;
  }
  return text;
}

/// What ours asks if it gets the answers of theirs.
std::vector<Asked> ask_ours(const std::string& path, const json& theirs) {
  std::map<std::string, std::string> answers;
  for (const json& question : theirs) {
    std::string answer = question.at("answer");
    if (answer.ends_with(".json")) answer = TESSERA_SOURCE_DIR "/" + answer;  // must be there
    const std::string fallback = question.at("default");
    const std::string text = our_text(path, question.at("text"));
    // Enter where defaults differ: theirs counts. The one free text without one is a path.
    if (answer.empty() && kOtherDefault.contains(text)) answer = fallback;
    answers[text] = answer;
  }
  Person person(answers);
  ask(config_questions(kMachine), person);
  return person.asked;
}

/// The golden's questions as they should be here.
std::vector<Asked> expected(const std::string& path, const json& theirs) {
  std::vector<Asked> questions;
  for (const json& question : theirs) {
    const std::string text = our_text(path, question.at("text"));
    if (kLeftOut.contains(text)) continue;
    Asked asked{text, question.at("default"),
                question.value("choices", std::vector<std::string>())};
    if (const auto fewer = kFewerChoices.find(text); fewer != kFewerChoices.end()) {
      for (const std::string& choice : fewer->second) std::erase(asked.choices, choice);
    }
    if (kOtherDefault.contains(text)) asked.fallback = "";
    questions.push_back(std::move(asked));
  }
  return questions;
}

/// Without what the lists excuse.
std::vector<Asked> comparable(std::vector<Asked> ours, const std::vector<Asked>& theirs) {
  std::erase_if(ours, [&](const Asked& asked) {
    const bool theirs_too = std::ranges::find(theirs, asked.text, &Asked::text) != theirs.end();
    return !theirs_too && kOnlyOurs.contains(asked.text);
  });
  for (Asked& asked : ours) {
    if (kOtherDefault.contains(asked.text)) asked.fallback = "";
  }
  return ours;
}

TEST(Questionnaire, HasAcceleratesOrderAndWords) {
  const json paths = golden_paths();
  ASSERT_GE(paths.size(), 20U);
  for (const auto& [path, theirs] : paths.items()) {
    SCOPED_TRACE(path);
    const std::vector<Asked> wanted = expected(path, theirs);
    EXPECT_THAT(comparable(ask_ours(path, theirs), wanted), ElementsAreArray(wanted));
  }
}

/// A difference that is no more must not stay in a list.
TEST(Questionnaire, ListsNoDifferenceThatIsNone) {
  std::set<std::string> left_out, only_ours, other_default, fewer, reworded;
  const json paths = golden_paths();
  for (const auto& [path, theirs] : paths.items()) {
    std::map<std::string, json> asked_there;
    for (const json& question : theirs) {
      const std::string text = question.at("text");
      asked_there[our_text(path, text)] = question;
      if (our_text(path, text) != text) reworded.insert(text);
      if (kLeftOut.contains(text)) left_out.insert(text);
    }
    for (const Asked& ours : ask_ours(path, theirs)) {
      EXPECT_FALSE(kLeftOut.contains(ours.text)) << ours.text;
      const auto there = asked_there.find(ours.text);
      if (there == asked_there.end()) {
        only_ours.insert(ours.text);
        continue;
      }
      if (there->second.at("default") != ours.fallback) other_default.insert(ours.text);
      const auto choices = there->second.value("choices", std::vector<std::string>());
      if (choices.size() > ours.choices.size()) fewer.insert(ours.text);
    }
  }
  const auto keys = [](const auto& list) {
    std::set<std::string> names;
    for (const auto& row : list) names.insert(row.first);
    return names;
  };
  EXPECT_EQ(left_out, keys(kLeftOut));
  EXPECT_EQ(only_ours, keys(kOnlyOurs));
  EXPECT_EQ(other_default, keys(kOtherDefault));
  EXPECT_EQ(fewer, keys(kFewerChoices));
  EXPECT_EQ(reworded.size(), kReworded.size());
}

/// More machines than a menu has room for: the rank is typed.
TEST(Questionnaire, ManyMachinesTypeTheirRank) {
  const std::string rank = "What is the rank of this machine?";
  for (const auto& [machines, has_menu] : {std::pair{"16", true}, {"17", false}}) {
    Person person(
        {{"Which type of machine are you using?", "multi-CPU"},
         {"How many different machines will you use (use more than 1 for multi-node "
          "training)?",
          machines},
         {rank, "15"},
         {"What is the IP address of the machine that will host the main process?", "10.0.0.1"}});
    const Answers answers = ask(config_questions(kMachine), person);
    const auto asked = std::ranges::find(person.asked, rank, &Asked::text);
    ASSERT_NE(asked, person.asked.end());
    EXPECT_EQ(!asked->choices.empty(), has_menu);
    EXPECT_EQ(answers.at("machine_rank"), 15);
  }
}

}  // namespace
}  // namespace tessera::questionnaire
