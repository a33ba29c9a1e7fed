#include "evaluate/evaluation.h"

#include <iostream>

#include "launch/same_run.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "tessera/core/error.h"
#include "tessera/trainer/log.h"
#include "tessera/trainer/output_file.h"
#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {

TrainerOptions passes_options(const Config& config) {
  TrainerOptions options = trainer_options(config);
  options.accumulate = 1;
  options.steps = 1;
  options.checkpoints = {};
  options.stop_after = 0;
  options.cuda_graph = false;
  options.overlap_steps = false;
  return options;
}

TrainerOptions begin_forward(Config& config, const Launcher& launcher, const GptChoice& choice,
                             const std::string& task, const std::vector<NamedText>& data,
                             const DumpWatch& dumps) {
  require(!config.is_typed("trace"), ErrorCode::kConfig,
          "--trace shows steps and the batches of a loss; leave it out with --task ", task);
  TrainerOptions options = passes_options(config);
  options.forward = true;
  options.trace = {};
  options.dump_requests = dumps.requests();
  std::vector<NamedText> same = adopt_parameters(choice, options);
  same.insert(same.end(), data.begin(), data.end());
  join_world(launcher, config, options);
  require_same_run(config, options, same);
  return options;
}

std::int64_t samples_of_a_call(const Session& session) {
  constexpr std::int64_t kPasses = 8;
  return kPasses * evaluation_division(session.plan().options).samples_per_step();
}

void check_log(const Config& config) {
  if (config.is_null("log") || !config.is_typed("log")) return;
  check_writable(config.get<std::string>("log"), "--log");
}

void tell_evaluation(const Config& config, const GptChoice& choice, std::int64_t parameters,
                     const nlohmann::ordered_json& of_log, const nlohmann::ordered_json& json,
                     const std::vector<std::string>& lines) {
  if (config.is_typed("log") && !config.is_null("log")) {
    RunLog log(config.get<std::string>("log"), Existing::kExtend);
    log.run({.version = TESSERA_VERSION, .parameters = parameters}, config.values());
    log.line(of_log);
  }
  if (config.get<std::string>("format") == "json") return write_json(std::cout, json);
  std::cout << choice.name << ", parameters "
            << (choice.pretrained
                    ? "of " + choice.pretrained->path()
                    : concat("as initialised by --seed ", config.get<std::uint64_t>("seed")))
            << "\n";
  if (choice.pretrained) {
    const std::string decoding =
        describe_decoding(choice.config, *choice.pretrained, config.get<std::string>("precision"));
    if (!decoding.empty()) std::cout << decoding << "\n";
  }
  for (const std::string& line : lines) print_line(stdout, line, 2);
}

}  // namespace tessera::cli
