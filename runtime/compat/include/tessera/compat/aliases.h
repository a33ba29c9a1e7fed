#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A flag of Accelerate, torchrun, DeepSpeed, Transformers' Trainer, Megatron-LM, nanoGPT or
/// llm.c, and ours for it.
struct Alias {
  std::string_view theirs;  ///< with '-' for '_', see spelt_as_ours
  std::string_view ours;
  /// Our value for theirs; null: the same. Throws Error{kConfig}.
  std::string (*value)(const std::string& theirs) = nullptr;
  bool may_be_bare = false;  ///< without a value it is "true"
  /// How ours differs for that value of theirs; "": it does not. Null: never.
  std::string (*note)(const std::string& theirs) = nullptr;
};

/// Where one of theirs stands several times, the first counts whose `ours` the command has.
std::span<const Alias> aliases();

/// Flags of other programs that nothing here does: the first beginning that fits counts.
struct FlagWithoutCounterpart {
  std::string_view beginning;
  std::string_view why;
  bool is_taken = false;        ///< it asks for nothing that a run here lacks
  std::string_view harmless{};  ///< a value with which it is taken as well
};
std::span<const FlagWithoutCounterpart> flags_without_counterpart();

/// The program's arguments with flags as this program spells them: '-' for '_' in their names, and
/// --config for --config-file but in `tessera config`, which writes that file. Values stay.
std::vector<std::string> spelt_as_ours(std::vector<std::string> arguments);

/// A command that may follow, and its flags: what `launch` launches.
struct FollowingCommand {
  std::string_view name{};
  std::vector<std::string> flags{};
};

/// Says that `word` is no flag of the command, whose flags are `names`, and what helps: that it
/// belongs behind `following`, why nothing here is like it, else the nearest. Flags of other
/// programs that the command has under another name are no errors; see aliases().
/// Throws Error{kConfig}.
[[noreturn]] void refuse_flag(std::string_view word, const std::vector<std::string>& names,
                              const FollowingCommand& following = {});

/// Takes those of is_taken, and their values, out of `words`. Returns a note for each.
std::vector<std::string> take_flags_without_effect(std::vector<std::string>& words);

/// The answer to somebody who types a command of `accelerate` that is not one here; "" for every
/// other word.
std::string about_foreign_command(const std::string& word);

/// "You used ... here it is": tables in Markdown of every key and flag of other programs that is
/// known here, made from those by which they are read. README.md of this module has them.
std::string habit_tables();

}  // namespace tessera
