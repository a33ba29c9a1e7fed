#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::questionnaire {

/// Ctrl-C at a question. The terminal is as it was before.
struct Interrupted {};

/// Esc at a question: the one before is to be asked again.
struct WentBack {};

/// Puts questions to a person or to a script.
/// Throws Error{kConfig} if the answers end, or go on and on without a right one; and
/// Interrupted and WentBack.
class Prompter {
 public:
  virtual ~Prompter() = default;
  /// False if a script answers, which cannot know of questions that only some runs ask.
  virtual bool is_person() const { return false; }
  virtual void say(const std::string& text) = 0;
  /// The index of one of `choices`; `fallback` is what Enter alone means.
  virtual std::size_t choose(const std::string& question, const std::vector<std::string>& choices,
                             std::size_t fallback) = 0;
  /// A line without the spaces around it; empty if only Enter was typed.
  virtual std::string type(const std::string& question) = 0;
};

/// The answers, by Question::key.
using Answers = std::map<std::string, nlohmann::json, std::less<>>;

enum class AnswerKind : std::uint8_t { kMenu, kYesNo, kInteger, kNumber, kText };

struct Choice {
  std::string name;
  nlohmann::json value;
};

/// A row of the questionnaire.
struct Question {
  /// Where the answer stands in the file, "fsdp_config.fsdp_version"; or "ask.…" if it only decides
  /// what is asked next.
  std::string key;
  std::string text;  ///< without the default, which is added
  AnswerKind kind = AnswerKind::kText;
  std::vector<Choice> choices{};  ///< of a menu
  /// A menu for a person before the question, whose choice of null leads to the question itself; a
  /// script answers the question alone.
  std::string person_text{};
  std::vector<Choice> person_choices{};
  /// Instead of `choices`, if they depend on other answers.
  std::function<std::vector<Choice>(const Answers&)> choices_from{};
  nlohmann::json fallback{};  ///< what Enter alone means; null: an answer is needed
  /// Instead of `fallback`, if it depends on other answers.
  std::function<nlohmann::json(const Answers&)> fallback_from{};
  std::function<bool(const Answers&)> asked_if{};  ///< absent: always
  std::int64_t minimum = 0;                        ///< of an integer
  std::int64_t maximum = std::numeric_limits<std::int64_t>::max();
  std::string note{};  ///< a line before the question
  /// The problem with an answer and what is allowed; empty if it is right.
  std::function<std::string(const nlohmann::json& answer, const Answers&)> check{};
};

/// The machine's resources, for the defaults.
struct MachineFacts {
  int gpus = 0;
  int cores = 1;
};

/// Accelerate's questions in its order, as far as this program can do what they are about.
std::vector<Question> config_questions(const MachineFacts& machine);

/// The number of processes that fits the machine and the answers so far.
std::int64_t default_processes(const MachineFacts& machine, const Answers& answers);

/// The answer that a text gives; nothing if neither.
std::optional<bool> answered_yes(std::string text);

/// Asks what applies, in order. A wrong answer is told and asked for again; after WentBack the last
/// question is asked once more, with its earlier answer as what Enter means.
Answers ask(const std::vector<Question>& questions, Prompter& prompter);

// Answers that do not stand in the file as they are.
inline constexpr const char* kMachineType = "ask.machine_type";  ///< NO, MULTI_CPU or MULTI_GPU
inline constexpr const char* kUseDeepSpeed = "ask.deepspeed";
inline constexpr const char* kUseFsdp = "ask.fsdp";

/// An answer, or `otherwise` if it was not asked for.
nlohmann::json answer_or(const Answers& answers, std::string_view key, nlohmann::json otherwise);

/// The answers as a file of Accelerate, keys sorted.
nlohmann::json config_document(const Answers& answers);

/// Adds the top-level keys that are absent and that a new file would have.
void fill_defaults(nlohmann::json& document);

/// The text that `accelerate config` writes: JSON if the path ends in .json, else YAML.
std::string config_text(const nlohmann::ordered_json& document, const std::string& path);

/// A file's text with more top-level keys after its own, so that comments and order stay. Nothing
/// if they cannot stand there: in JSON, or in YAML that is not a plain list of keys.
std::optional<std::string> text_with(const std::string& text, const nlohmann::json& more);

}  // namespace tessera::questionnaire
