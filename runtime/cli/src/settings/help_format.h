#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace tessera::cli {

/// How --help looks: at most 80 columns wide, unless a word is longer.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* command) const override;
  std::string make_footer(const CLI::App* command) const override;
};

}  // namespace tessera::cli
