#include <iostream>
#include <memory>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "gpt_settings.h"
#include "interrupt.h"
#include "sample.h"
#include "tessera/core/error.h"
#include "tessera/core/usable_cores.h"
#include "tessera/model/gpt_sampler.h"

namespace tessera::cli {
namespace {

std::vector<Setting> generate_settings() {
  std::vector<Setting> all;
  for (Setting& setting : model_settings()) {
    if (setting.name == "init") {
      setting.help =
          "the model: a checkpoint, a folder of a GPT-2 as Hugging Face has it, or a model .bin of "
          "llm.c";
    }
    if (setting.name == "init" || setting.name == "tokenizer") all.push_back(std::move(setting));
  }
  for (Setting& setting : sample_settings()) {
    if (setting.name == "sample_tokens") {
      setting.name = "tokens";
      setting.fallback = 200;
      setting.minimum = 1;
      setting.help = "length of the text, in tokens; an end-of-text token ends it earlier";
    }
    all.push_back(std::move(setting));
  }
  all.push_back({.name = "seed",
                 .type = SettingType::kInteger,
                 .fallback = 0,
                 .help = "of the tokens that are drawn: the same seed, the same text",
                 .group = "Sample",
                 .minimum = 0});
  all.push_back({.name = "precision",
                 .fallback = "fp32",
                 .help = "dtype of parameters and activations",
                 .group = "Machine",
                 .choices = {"fp32", "bf16"}});
  all.push_back({.name = "threads",
                 .type = SettingType::kInteger,
                 .fallback = 0,
                 .help = "threads of the kernels (0: the cores that this process may use)",
                 .group = "Machine",
                 .minimum = 0,
                 .maximum = 4096});
  return all;
}

int run_generate(const Config& config) {
  require(!config.is_null("init"), ErrorCode::kConfig,
          "no model to generate with: give --init a checkpoint, a Hugging Face folder or a model "
          ".bin of llm.c");
  const PretrainedGpt pretrained = open_model(config);
  std::optional<Tokenizer> tokenizer;
  if (!config.is_null("tokenizer")) tokenizer.emplace(config.get<std::string>("tokenizer"));
  const std::int64_t known = pretrained.config().vocab_size;
  require(tokenizer || known <= 256, ErrorCode::kConfig, "the model of --init '", pretrained.path(),
          "' has ", known, " tokens, which are no bytes; give --tokenizer FILE");
  require(!tokenizer || tokenizer->vocab_size() <= known, ErrorCode::kConfig, "the tokenizer has ",
          tokenizer ? tokenizer->vocab_size() : 0, " tokens, and the model knows ", known);
  const auto threads = config.get<int>("threads");
  GptSampler sampler(pretrained.config(), pretrained.reader(),
                     {.dtype = parse_dtype(config.get<std::string>("precision")),
                      .threads = threads > 0 ? threads : usable_cores()});
  const InterruptGuard interrupt;
  const auto go_on = [&] { return interrupt.signal() == 0 && std::cout.good(); };
  write_text(config, sampler, tokenizer ? &*tokenizer : nullptr,
             {.tokens = config.get<std::int64_t>("tokens"),
              .context_length = pretrained.config().context_length},
             std::cout, go_on);
  std::cout << std::endl;
  return interrupt.signal() != 0 ? kExitSignal + interrupt.signal() : kExitGood;
}

}  // namespace

Command add_generate(CLI::App& program) {
  const auto command = std::make_shared<SettingsCommand>(
      program, "generate", "Continue a text with a trained model", generate_settings());
  return {&command->command(),
          [command] { return run_generate(command->config(std::cerr, kForAnyMachine)); }};
}

}  // namespace tessera::cli
