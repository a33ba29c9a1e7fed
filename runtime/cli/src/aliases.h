#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

/// A flag of Accelerate, torchrun, DeepSpeed, Transformers' Trainer, Megatron-LM, nanoGPT or
/// llm.c, and ours for it.
struct Alias {
  std::string_view theirs;  ///< with '-' for '_', see spelt_as_ours
  std::string_view ours;
  /// What ours takes for their value; null: the same. Throws Error{kConfig}.
  std::string (*value)(const std::string& theirs) = nullptr;
  bool may_be_bare = false;  ///< without a value it is "true"
};

/// Where one of theirs stands several times, the first counts whose `ours` the command has.
std::span<const Alias> aliases();

/// Lets a command take the aliases of the flags that it has, unseen in its --help. To be called
/// when it has all its flags.
void accept_aliases(CLI::App& command);

/// The flags that its --help shows.
std::vector<std::string> shown_flags(const CLI::App& command);

}  // namespace tessera::cli
