
#include "keys.h"
#include "tessera/compat/aliases.h"

namespace tessera {
namespace {

std::string code(std::string_view text) { return concat("`", text, "`"); }

std::string what_it_is_here(const compat::KeyRule& rule) {
  switch (rule.use) {
    case compat::KeyUse::kUsed:
      return rule.here;
    case compat::KeyUse::kQuiet:
    case compat::KeyUse::kSaid:
      return concat("no effect: ", rule.why);
    case compat::KeyUse::kRefused: {
      std::string harmless;
      for (const char* value : rule.harmless)
        harmless += (harmless.empty() ? "" : ", ") + code(value);
      return concat("refused (", rule.asks_for, ")", harmless.empty() ? "" : ", but for ", harmless,
                    ": ", rule.instead);
    }
  }
  return "";
}

/// A table whose rows with the same answer, if they follow each other, are one.
class Table {
 public:
  explicit Table(std::string_view title)
      : text_(concat(title, "\n\n| you used | here it is |\n|---|---|\n")) {}

  void add(std::string_view name, const std::string& answer) {
    if (answer != answer_) end_row();
    names_ += (names_.empty() ? "" : ", ") + code(name);
    answer_ = answer;
  }
  std::string text() {
    end_row();
    return text_ + "\n";
  }

 private:
  void end_row() {
    if (!names_.empty()) text_ += concat("| ", names_, " | ", answer_, " |\n");
    names_.clear();
  }

  std::string text_;
  std::string names_;
  std::string answer_;
};

std::string tables_of(const std::vector<compat::KeyTable>& tables) {
  std::string text;
  for (const compat::KeyTable& keys : tables) {
    Table table(&keys == &tables.front() ? "At the top:" : concat(code(keys.section), ":"));
    for (const compat::KeyRule& rule : keys.rules) table.add(rule.name, what_it_is_here(rule));
    text += table.text();
  }
  return text;
}

std::string flags() {
  Table taken("Flags that are taken for ours, where the command has them:");
  for (const Alias& alias : aliases()) taken.add(alias.theirs, code(alias.ours));
  Table answered("Flags that have no counterpart (all that begin so):");
  for (const FlagWithoutCounterpart& flag : flags_without_counterpart()) {
    const std::string but = flag.harmless.empty() ? "" : concat(", but for ", code(flag.harmless));
    answered.add(flag.beginning, flag.is_taken ? concat("no effect: ", flag.why)
                                               : concat("refused", but, ": ", flag.why));
  }
  return taken.text() + answered.text();
}

}  // namespace

std::string habit_tables() {
  std::string text = "### Keys of Accelerate's files\n\n" +
                     tables_of(compat::accelerate_key_tables()) +
                     "### Keys of DeepSpeed's files\n\n" +
                     tables_of(compat::deepspeed_key_tables()) + "### Flags\n\n" + flags();
  text.pop_back();
  return text;
}

}  // namespace tessera
