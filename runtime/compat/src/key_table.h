#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "document.h"
#include "tessera/compat/config_sources.h"
#include "tessera/core/error.h"

namespace tessera::compat {

enum class KeyType : std::uint8_t { kFlag, kInteger, kNumber, kText, kSection, kAny };

/// Our policy for a key.
enum class KeyUse : std::uint8_t {
  kUsed,     ///< a translator makes settings of it
  kQuiet,    ///< accepted without effect: what it says does not arise here
  kSaid,     ///< accepted without effect, which is printed: it asks for something
  kRefused,  ///< an error: it asks for something that changes the run and that we do not have
};

/// The commands that tell of a key's outcome: `tessera explain` alone, or every run as well.
enum class Told : std::uint8_t { kByExplain, kByRun };
/// Every run, if `notable`.
inline Told told_if(bool notable) { return notable ? Told::kByRun : Told::kByExplain; }

/// The note of a section that is used: its keys have rules of their own.
inline constexpr const char* kBelow = "read key by key, as below";

/// One key of a foreign file. The tables of these are the policy; see *_keys.cpp.
struct KeyRule {
  std::string name;  ///< in a table's source several, "a, b": the rule is each one's
  KeyType type;
  KeyUse use;
  const char* here = "";      ///< kUsed: what it is here, for README.md
  const char* why = "";       ///< kQuiet, kSaid: it has no effect
  const char* asks_for = "";  ///< kRefused
  const char* instead = "";   ///< kRefused: what to do
  const char* lifter = "";    ///< kRefused: the setting that, on the command line, decides instead
  std::vector<const char*> allowed{};   ///< see one_of
  std::vector<const char*> harmless{};  ///< see but
  std::vector<const char*> asking{};    ///< see only
  bool may_be_auto = false;
  double minimum = -std::numeric_limits<double>::infinity();  ///< see from
  double maximum = std::numeric_limits<double>::infinity();

  using Values = std::vector<const char*>;
  /// Not kRefused: the values there are, in any case; without it, all.
  KeyRule one_of(Values values) const { return changed(&KeyRule::allowed, std::move(values)); }
  /// Not kUsed: values that ask for nothing, besides those that asks() knows by the type.
  KeyRule but(Values values) const { return changed(&KeyRule::harmless, std::move(values)); }
  /// kRefused: the values that ask for it; without it, all others than those of `but`.
  KeyRule only(Values values) const { return changed(&KeyRule::asking, std::move(values)); }
  KeyRule lifted_by(const char* setting) const { return changed(&KeyRule::lifter, setting); }
  /// kUsed: numbers, both inclusive.
  KeyRule from(double least, double most = std::numeric_limits<double>::infinity()) const {
    return changed(&KeyRule::minimum, least).changed(&KeyRule::maximum, most);
  }
  /// DeepSpeed's "auto" is a value.
  KeyRule or_auto() const { return changed(&KeyRule::may_be_auto, true); }

  template <typename T>
  KeyRule changed(T KeyRule::*member, T value) const {
    KeyRule rule = *this;
    rule.*member = std::move(value);
    return rule;
  }
};

inline KeyRule used(const char* names, KeyType type, const char* here) {
  return {.name = names, .type = type, .use = KeyUse::kUsed, .here = here};
}
inline KeyRule quiet(const char* names, KeyType type, const char* why) {
  return {.name = names, .type = type, .use = KeyUse::kQuiet, .why = why};
}
inline KeyRule said(const char* names, KeyType type, const char* why) {
  return {.name = names, .type = type, .use = KeyUse::kSaid, .why = why};
}
inline KeyRule refused(const char* names, KeyType type, const char* asks_for, const char* instead) {
  return {.name = names,
          .type = type,
          .use = KeyUse::kRefused,
          .asks_for = asks_for,
          .instead = instead};
}

/// The keys of a section, and what we do with each. README.md has all of them.
struct KeyTable {
  KeyTable(const char* section_path, const std::vector<KeyRule>& rows, const char* key_prefix = "",
           bool ignored_without = false);

  const char* section;         ///< by its path; "accelerate" or "deepspeed" at the top
  std::vector<KeyRule> rules;  ///< one of each key
  const char* prefix;          ///< keys may go without it: "fsdp_"
  bool apart_from_prefix;      ///< tell that Accelerate ignores keys without the prefix
};

class KnownSettings;
class Section;

/// Makes `--state-dict-type` of a key by which Accelerate or DeepSpeed gather the whole model to
/// save it. `full`: whether it does. No effect in programs that save no models.
void translate_state_dict_type(Section& section, std::string_view key, bool full,
                               const KnownSettings& known, const std::string& note = "");

/// Thrown by Section::refuse, once the key's entry says why.
class Refusal : public Error {
 public:
  using Error::Error;
};

/// Runs a part of a translation. If that refuses a key, the parts after it are still read, so that
/// all that is wrong is told at once.
void attempt(const std::function<void()>& part);

/// The outcome of a key that no table has.
enum class UnknownKeys : std::uint8_t {
  kRefused,  ///< it may be a key that decides something, misspelt
  kNoted,    ///< nothing of the section decides anything
};

/// The keys of one section of a file, checked against its table and noted in a translation.
class Section {
 public:
  /// Keys that are unknown, there twice, of a wrong type or value, or that ask for what we do not
  /// have become KeyOutcome::kRefused; for all that is below they are absent. `map` and `table`
  /// must outlive this. `known`: whose command line lifts refusals; null: none does. `path`: where
  /// it stands, "fsdp_config"; "" at the top.
  Section(ConfigTranslation& translation, const std::string& file, const Node& map,
          const KeyTable& table, const KnownSettings* known = nullptr, std::string path = "",
          UnknownKeys unknown = UnknownKeys::kRefused);
  /// The section that stands under `key`, or an empty one; its keys are those of the table of its
  /// path, or of `table`.
  Section below(std::string_view key, std::string_view table = "",
                UnknownKeys unknown = UnknownKeys::kRefused) const;

  /// True if it is there, and neither null nor an empty text.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is_auto(std::string_view key) const;
  /// True if it is there, and null.
  bool is_null(std::string_view key) const;
  // The value if the key is there and neither null nor "auto". A text with allowed values is
  // spelt as the table has it.
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  /// A subsection or a list; null if it is absent or empty.
  const Node* node(std::string_view key) const;
  /// Gives a subsection that is read key by key, and notes that.
  const Node* open(std::string_view key);
  int line(std::string_view key) const;

  // These set the outcome of a kUsed key that is there; a second call adds settings or notes.
  void honour(std::string_view key, const std::string& setting, nlohmann::ordered_json value,
              const std::string& note = "");
  /// Makes a setting of a key that is there, with `note`, or of what its absence means.
  void set(std::string_view key, const std::string& setting, nlohmann::ordered_json value,
           const std::string& note, const std::string& note_if_absent);
  /// Makes a setting of the key's value as it is; false if that is absent or "auto".
  bool pass_on(std::string_view key, const std::string& setting);
  /// It is so, without a setting.
  void agree(std::string_view key, const std::string& note);
  void translate(std::string_view key, const std::string& setting, nlohmann::ordered_json value,
                 const std::string& note);
  void no_effect(std::string_view key, const std::string& note, Told told = Told::kByExplain);
  /// Notes a difference from Accelerate or DeepSpeed.
  void differ(std::string_view key, const std::string& difference, Told told = Told::kByRun);
  /// A setting that follows from a key that is absent.
  void derive(std::string_view key, const std::string& setting, nlohmann::ordered_json value,
              const std::string& note, Told told = Told::kByExplain);
  /// A note that follows from a key that is absent, without a setting.
  void absent(std::string_view key, const std::string& note, Told told = Told::kByExplain);
  /// If the command line gives `setting`, `refusal` does not matter: says so, and is true.
  bool overridden(std::string_view key, const char* setting, const std::string& refusal);
  /// Gives all used keys that have no outcome yet this one.
  void leave_unused(const std::string& note, Told told, KeyOutcome outcome = KeyOutcome::kNoEffect);
  /// Nobody reads this section: whatever it asks for, or whatever is wrong with it, has no effect.
  void switch_off(const std::string& note);

  bool is_refused(std::string_view key) const;
  /// Ends the part if one of the keys is refused: what they say together is not known. Throws
  /// Refusal.
  void need_all_of(std::initializer_list<std::string_view> keys) const;

  /// Makes the key KeyOutcome::kRefused, unless it is already. Throws Refusal.
  template <typename... Args>
  [[noreturn]] void refuse(std::string_view key, const Args&... args) {
    refuse_key(key, {}, concat(args...));
  }
  /// Refuses a key where leaving it out is not the nearest that can be had.
  template <typename... Args>
  [[noreturn]] void refuse_for(std::vector<ConfigChange> changes, std::string_view key,
                               const Args&... args) {
    refuse_key(key, std::move(changes), concat(args...));
  }
  /// The key with another value.
  ConfigChange with(std::string_view key, nlohmann::ordered_json value) const;

 private:
  using RulesByName = std::map<std::string, const KeyRule*, std::less<>>;
  struct Item {
    const Node* node = nullptr;
    const KeyRule* rule = nullptr;
    std::size_t entry = 0;
    std::string canonical{};  ///< of a text: as the table spells it
  };
  const Item* find(std::string_view key) const;
  /// The entry of a key; for a refused key one that is thrown away, so that the refusal stays.
  ConfigEntry& entry(std::string_view key);
  std::string path_of(std::string_view key) const;
  void read_member(const Node::Member& member, const RulesByName& by_name);
  void apply(const KeyRule& rule, const Item& item, const std::string& shown);
  void check_range(const KeyRule& rule, const Node& node);
  void apply_refused(const KeyRule& rule, const Item& item, const std::string& shown);
  void refuse_unknown(const Node::Member& member);
  void add_entry(const Node::Member& member);
  void note_member(const Node::Member& member, const std::string& note, Told told);
  void refuse_member(const Node::Member& member, const std::string& why);
  [[noreturn]] void refuse_key(std::string_view key, std::vector<ConfigChange> changes,
                               const std::string& why);
  [[noreturn]] void refuse_type(const KeyRule& rule, const Node& node);

  ConfigTranslation& translation_;
  std::string file_;
  const KeyTable& table_;
  const KnownSettings* known_;
  std::string path_;
  UnknownKeys unknown_keys_;
  int map_line_ = 0;
  std::map<std::string, Item, std::less<>> items_;
  std::set<std::string, std::less<>> missing_;  ///< refused because they are not there
  std::vector<std::size_t> entries_;            ///< of all members, known or not
  std::size_t unknown_ = 0;                     ///< members that are not in the table
  ConfigEntry thrown_away_;
};

/// Throws ConfigRefused if a key is refused. Fails if a used key was forgotten, or two keys say
/// different things of a setting: nothing may be dropped in silence.
void check_complete(const ConfigTranslation& translation);

/// The word of `candidates` that is meant, or "" if none is near. Very short words are near
/// anything.
std::string near_word(const std::string& word, const std::vector<std::string>& candidates);
/// shortened(), in quotes.
std::string quoted(const std::string& text);
/// "unknown value 'x'; did you mean 'y'? allowed: y, z"
std::string unknown_value(const std::string& word, const std::vector<std::string>& allowed);
using tessera::unknown_value;
/// The most unknown keys that are compared with all names; a text with more of them is no file of
/// settings, and has no need of suggestions.
inline constexpr std::size_t kMostSuggestions = 20;

// The values of keys, by the rules of the tables.

bool is_empty(const Node& node);
/// True if a value is spelt so that it stands for none: null everywhere, an empty text where texts
/// belong, {} where keys do, and either of {} and [] where any value may be that nobody here reads.
bool says_nothing(const KeyRule& rule, const Node& node);
bool is_auto_text(const Node& node);
std::vector<std::string> strings(const std::vector<const char*>& words);
/// The value of `allowed` that is meant, or "".
std::string match(const std::string& shown, const std::vector<const char*>& allowed);
std::string in_words(const KeyRule& rule);
/// Keys by which people write comments in JSON, which has none.
bool is_comment(std::string_view key);
/// True if a value asks for what its key is about. `shown`: its canonical spelling.
bool asks(const KeyRule& rule, const Node& node, const std::string& shown);
/// The value by which a key asks for nothing; none where it has to be left out for that.
std::optional<nlohmann::ordered_json> value_for_nothing(const KeyRule& rule);
/// The value in one spelling, to compare with the table's, or nothing if it is of another type.
std::optional<std::string> canonical(const KeyRule& rule, const Node& node);

}  // namespace tessera::compat
