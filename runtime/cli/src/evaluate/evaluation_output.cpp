#include "evaluate/evaluation_output.h"

#include <ostream>
#include <string>

#include "tessera/core/error.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {

void check_log(const Config& config) {
  if (config.is_null("log") || !config.is_typed("log")) return;
  check_writable(config.get<std::string>("log"), "--log");
}

void print_model(std::ostream& out, const GptChoice& choice, const Config& config) {
  out << choice.name << ", parameters "
      << (choice.pretrained
              ? "of " + choice.pretrained->path()
              : concat("as initialised by --seed ", config.get<std::uint64_t>("seed")))
      << "\n";
  if (!choice.pretrained) return;
  const std::string decoding =
      describe_decoding(choice.config, *choice.pretrained, config.get<std::string>("precision"));
  if (!decoding.empty()) out << decoding << "\n";
}

}  // namespace tessera::cli
