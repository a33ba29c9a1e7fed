#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "run/interrupt.h"
#include "settings/command_line.h"
#include "tessera/core/error.h"
#include "tessera/model/tokenize.h"
#include "tessera/model/tokenizer_folder.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {
namespace {

struct TokenizeRequest {
  std::string tokenizer;
  TokenizeOptions options;
  bool overwrite = false;
  bool quiet = false;
};

int run_tokenize(const CLI::App& app, TokenizeRequest request) {
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty()) refuse_flag(extras.front(), shown_flags(app));
  const std::string& output = request.options.output;
  check_writable(output, "--output", Writing::kByReplacing);
  require(request.overwrite || !holds_something(output), ErrorCode::kConfig, "--output: '", output,
          "' holds something already; give another path, or --overwrite to replace it");
  const std::string file = find_tokenizer(request.tokenizer);
  require(!file.empty(), ErrorCode::kConfig, "--tokenizer: the folder '", request.tokenizer,
          "' has no tokenizer.json; give another folder, or a file");
  const Tokenizer tokenizer(file);
  const InterruptGuard interrupt;
  TokenizeResult result;
  {
    LiveLine progress(LiveLine::Begins::kAfterAWhile);
    const auto begin = std::chrono::steady_clock::now();
    request.options.on_progress = [&](std::int64_t done, std::int64_t bytes) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      const auto rate = static_cast<std::int64_t>(static_cast<double>(done) / took.count());
      if (!request.quiet) {
        progress.show(concat(format_bytes(done), " of ", format_bytes(bytes), ", ",
                             format_bytes(rate), "/s"));
      }
      return interrupt.signal() == 0;
    };
    result = tokenize(tokenizer, request.options);
  }
  if (result.stopped) {
    std::cerr << "stopped; " << output << " is as it was\n";
    return kExitSignal + interrupt.signal();
  }
  if (request.quiet) return kExitGood;
  for (const std::string& note : result.notes) {
    print_line(stdout, "note: " + note, 2);
  }
  std::cout << output << ": " << with_commas(result.tokens) << " tokens, uint"
            << 8 * result.token_bytes << ", of " << with_commas(result.bytes) << " bytes in "
            << counted(static_cast<long long>(result.files), "file") << "\n"
            << "train with --data " << output << " --tokenizer " << request.tokenizer << "\n";
  return kExitGood;
}

}  // namespace

std::function<int()> add_tokenize(CLI::App& app) {
  const auto request = std::make_shared<TokenizeRequest>();
  app.add_option("TEXT", request->options.paths,
                 "files of UTF-8 text, folders of them, or patterns; in this order")
      ->required();
  app.add_option(
         "--tokenizer,--init", request->tokenizer,
         "a tokenizer.json, or a model's folder that has one: BPE as GPT-2, Llama, Mistral, "
         "Qwen and Phi-3 have it")
      ->required()
      ->type_name("PATH");
  app.add_option("--output", request->options.output,
                 "the file to write (.bin), with llm.c's header; uint16 if the vocabulary fits, "
                 "else uint32")
      ->required()
      ->type_name("FILE");
  app.add_option("--end-of-text", request->options.end_of_text,
                 "put the tokenizer's end-of-text token between files, if it has one; false: a "
                 "newline [true]")
      ->type_name("BOOL");
  app.add_flag("--overwrite", request->overwrite, "replace --output if it holds something");
  app.add_flag("--quiet", request->quiet, "print nothing but errors");
  app.allow_extras();  // so that an unknown flag is answered
  return [&app, request] { return run_tokenize(app, *request); };
}

}  // namespace tessera::cli
