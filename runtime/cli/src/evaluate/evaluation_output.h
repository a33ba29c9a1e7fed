#pragma once

#include <iosfwd>

#include "settings/gpt_choice.h"
#include "tessera/compat/config.h"
#include "tessera/trainer/log.h"

namespace tessera::cli {

/// Writes --log, if it is this command's (a file of settings may name the log of a training): the
/// run, and what `write` adds to it.
template <typename Write>
void write_log(const Config& config, std::int64_t parameters, const Write& write) {
  if (config.is_null("log") || !config.is_typed("log")) return;
  RunLog log(config.get<std::string>("log"), Existing::kExtend);
  log.run({.version = TESSERA_VERSION, .parameters = parameters}, config.values());
  write(log);
}

/// Throws Error{kIo} at once if --log is this command's and cannot be written.
void check_log(const Config& config);

/// Prints which model is evaluated.
void print_model(std::ostream& out, const GptChoice& choice, const Config& config);

}  // namespace tessera::cli
