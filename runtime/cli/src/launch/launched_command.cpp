#include "launch/launched_command.h"

#include <algorithm>
#include <functional>

#include "commands.h"
#include "tessera/core/error.h"

namespace tessera::cli {

LaunchedCommand::LaunchedCommand(std::vector<std::string> words)
    : words_(std::move(words)), program_(std::make_unique<CLI::App>("", "tessera")) {
  require(!words_.empty(), ErrorCode::kConfig, "nothing to launch; try 'tessera launch ",
          "--processes 2 -- train --data FOLDER'");
  require(can_be_launched(name()), ErrorCode::kConfig, "'", name(), kCannotBeLaunched);
  const auto* const row = std::ranges::find(kCommands, name(), &CommandRow::name);
  CLI::App& app = *program_->add_subcommand(name(), row->summary);
  std::function<int()> bench;  // what its flags are parsed into
  if (name() == "bench") {
    require(words_.size() > 1 && words_[1] == "collectives", ErrorCode::kConfig,
            "of 'bench' only 'bench collectives' can be launched; run the others by themselves");
    bench = add_bench(app);
  }
  settings_ = name() == "bench"      ? nullptr
              : name() == "train"    ? add_train_flags(app)
              : name() == "evaluate" ? add_evaluate_flags(app)
              : name() == "generate" ? add_generate_flags(app)
                                     : add_self_test_flags(app);
  try {
    program_->parse(std::vector<std::string>(words_.rbegin(), words_.rend()));
  } catch (const CLI::CallForHelp&) {
    help_ = program_->help();
    return;
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::kConfig, error.what(), "; see tessera ", name(), " --help");
  }
  if (settings_ == nullptr) return;
  config_path_ = settings_->config_path();
  const Config flags = settings_->flags();
  for (const Setting& setting : flags.table()) {
    if (flags.given(setting.name)) given_[setting.name] = flags.values()[setting.name];
  }
}

}  // namespace tessera::cli
