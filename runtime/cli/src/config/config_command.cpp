#include <unistd.h>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "commands.h"
#include "config/prompter.h"
#include "env/reports.h"
#include "output/terminal.h"
#include "tessera/compat/config_file.h"
#include "tessera/compat/config_sources.h"
#include "tessera/compat/questionnaire.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/output_file.h"

namespace tessera::cli {
namespace {

using namespace questionnaire;
namespace fs = std::filesystem;

const char* variable(const char* name) { return std::getenv(name); }

/// The file that was named, or else Accelerate's default, which is said.
std::string file_or_default(const std::string& given, const std::optional<std::string>& standard) {
  if (!given.empty()) return given;
  require(standard.has_value(), ErrorCode::kConfig,
          "no --config-file, and no folder for the default one: HF_HOME, XDG_CACHE_HOME and HOME "
          "are not set; give --config-file");
  std::cout << "file: " << *standard << ", Accelerate's default; --config-file names another\n";
  return *standard;
}

/// Whether save() can write it: before the questions, so that nobody answers them for nothing.
void check_place(const std::string& path) {
  check_writable(path, "--config-file", Writing::kByReplacing);
}

/// All of it or nothing: under another name first, unless it is a device or a pipe. Makes the
/// folder, and follows links.
void save(const std::string& text, const fs::path& path) {
  std::error_code error;
  const bool replaces = !fs::exists(path, error) || fs::is_regular_file(path, error);
  const fs::path target = replaces ? fs::weakly_canonical(path) : path;
  if (replaces) fs::create_directories(target.parent_path(), error);
  const fs::path draft =
      replaces ? fs::path(target.string() + ".draft" + std::to_string(getpid())) : target;
  std::ofstream file(draft, std::ios::binary);
  file << text << std::flush;
  const bool written = file.good();
  file.close();
  if (written && replaces) fs::rename(draft, target, error);
  if (!written || error) {
    std::error_code ignored;
    if (replaces) fs::remove(draft, ignored);
    fail(ErrorCode::kIo, "cannot write ", path.string(), error ? ": " + error.message() : "",
         "; is the disk full? Give another --config-file");
  }
  const std::string saved = concat("configuration saved at ", path.string(), "\n'tessera explain ",
                                   path.string(), "' tells what it means");
  print_line(stdout, saved);
}

MachineFacts facts(const Machine& machine, const CudaStatus& cuda) {
  return {.gpus = cuda.usable() ? static_cast<int>(cuda.gpus.size()) : 0,
          .cores = machine.logical_cores};
}

/// "1 GPU (NVIDIA H200, 139.8 GiB), 16 cores and 128.0 GiB of memory"
std::string describe(const Machine& machine, const CudaStatus& cuda) {
  std::string text = "no usable GPU";
  if (cuda.usable() && !cuda.gpus.empty()) {
    const CudaGpu& first = cuda.gpus.front();
    text = concat(counted(std::ssize(cuda.gpus), "GPU"), " (", first.name, ", ",
                  format_bytes(first.total_bytes), ")");
  }
  return concat(text, ", ", machine.logical_cores, " cores and ",
                format_bytes(machine.memory_bytes), " of memory");
}

/// A file that is there may be what Accelerate has written, and other programs read. Who is not
/// asked must have said --overwrite. False if it shall stay.
bool may_replace(const std::string& path, bool overwrite, Prompter& prompter) {
  std::error_code error;
  if (overwrite || !fs::is_regular_file(path, error)) return true;
  require(prompter.is_person(), ErrorCode::kConfig, path,
          " is there already; give --overwrite to replace it, or another --config-file");
  for (;;) {
    const std::string answer = prompter.type(path + " is there already. Replace it? [yes/NO]: ");
    if (answer.empty()) return false;
    if (const auto yes = answered_yes(answer)) return *yes;
    prompter.say("Please enter yes or no.");
  }
}

int ask_and_save(const std::string& given, bool overwrite) {
  const std::string path = file_or_default(given, default_accelerate_path(variable));
  check_place(path);
  const auto prompter = make_prompter();
  Answers answers;
  try {
    if (!may_replace(path, overwrite, *prompter)) {
      std::cout << "nothing was written; --config-file names another file\n";
      return kExitGood;
    }
    const Machine machine = probe_machine();
    const CudaStatus cuda = cuda_status();
    prompter->say("This machine has " + describe(machine, cuda) + ".");
    if (prompter->is_person()) prompter->say("Esc goes back to the question before.");
    answers = ask(config_questions(facts(machine, cuda)), *prompter);
  } catch (
      const WentBack&) {  // from the question whether to replace the file: nothing is before it
    std::cout << "nothing was written; --config-file names another file\n";
    return kExitGood;
  } catch (const Interrupted&) {
    std::cout << "\nstopped; nothing was written\n";
    return kExitSignal + SIGINT;
  }
  save(config_text(config_document(answers), path), path);
  return kExitGood;
}

int save_default(const std::string& given, const std::string& precision, bool overwrite) {
  require(precision == "no" || precision == "bf16" || precision == "fp16", ErrorCode::kConfig,
          "--mixed-precision is '", precision, "'; it must be no, fp16 or bf16");
  const auto present = default_accelerate_config(variable);
  const std::string path =
      file_or_default(given, present ? present : default_accelerate_path(variable));
  // Accelerate says so as well, but ends as if all were well.
  require(overwrite || !fs::exists(path), ErrorCode::kConfig, "configuration already exists at ",
          path, "; give --overwrite to replace it, or another --config-file");
  check_place(path);
  const Machine machine = probe_machine();
  const CudaStatus cuda = cuda_status();
  std::cout << "This machine has " << describe(machine, cuda) << ".\n";
  const MachineFacts found = facts(machine, cuda);
  Answers answers{{"mixed_precision", precision}};
  answers[kMachineType] = found.gpus > 1 ? "MULTI_GPU" : "NO";
  if (found.gpus == 0) answers["use_cpu"] = true;
  answers["num_processes"] = default_processes(found, answers);
  save(config_text(config_document(answers), path), path);
  return kExitGood;
}

/// Reads the file. An update does not judge whether a run can use it.
nlohmann::json read_accelerate(const std::string& path) {
  const ConfigContents contents = read_config(path, all_settings());
  require(contents.dialect == ConfigDialect::kAccelerate, ErrorCode::kConfig, path,
          " has settings of ", to_string(contents.dialect),
          ", and only files of Accelerate are updated; write one with 'tessera config'");
  return contents.values;
}

int update(const std::string& given) {
  const auto present = default_accelerate_config(variable);
  const std::string path =
      file_or_default(given, present ? present : default_accelerate_path(variable));
  require(fs::exists(path), ErrorCode::kNotFound, "there is no config file at ", path,
          "; write one with 'tessera config', or give --config-file");
  check_place(path);
  const nlohmann::json before = read_accelerate(path);
  nlohmann::json after = before;
  fill_defaults(after);
  nlohmann::json added = nlohmann::json::object();
  std::vector<std::string> names;
  for (const auto& [key, value] : after.items()) {
    if (before.contains(key)) continue;
    added[key] = value;
    names.push_back(key);
  }
  if (added.empty()) {
    std::cout << path << " lacks nothing; it stays as it is\n";
    return kExitGood;
  }
  const std::string text = read_config_text(path);
  const std::optional<std::string> longer = text_with(text, added);
  std::cout << "added: " << tessera::joined(names) << "\n";
  if (!longer && text.find_first_of("#/") != std::string::npos) {
    std::cout << "the file is written anew, without the comments that it may have had\n";
  }
  save(longer ? *longer : config_text(after, path), path);
  return kExitGood;
}

/// CLI11 would only say that it was not expected.
void reject_extras(const CLI::App& app) {
  if (app.remaining().empty()) return;
  const std::string word = app.remaining().front();
  const bool flag = word.starts_with('-');
  fail(ErrorCode::kConfig,
       flag ? unknown_name("flag", word.substr(0, word.find('=')),
                           {"--config-file", "--mixed-precision", "--overwrite", "--help"})
            : unknown_name("subcommand of config", word, {"default", "update"}));
}

}  // namespace

std::function<int()> add_config(CLI::App& ask) {
  struct Request {
    std::string file;
    std::string precision = "no";
    bool overwrite = false;
  };
  const auto request = std::make_shared<Request>();
  CLI::App* standard = ask.add_subcommand("default", "Write one for this machine, ask nothing");
  CLI::App* renew = ask.add_subcommand("update", "Add the keys that a config file lacks");
  for (CLI::App* app : {&ask, standard, renew}) {
    app->allow_extras();
    app->add_option("--config-file,--config_file", request->file,
                    "the file; JSON if its name ends in .json, else YAML [Accelerate's default]");
  }
  for (CLI::App* app : {&ask, standard}) {
    app->add_flag("--overwrite", request->overwrite, "replace a file that is there, unasked");
  }
  standard
      ->add_option("--mixed-precision,--mixed_precision", request->precision, "no, fp16 or bf16")
      ->capture_default_str();
  return [=, &ask] {
    for (const CLI::App* app : {&ask, standard, renew}) reject_extras(*app);
    if (standard->parsed()) {
      return save_default(request->file, request->precision, request->overwrite);
    }
    if (renew->parsed()) return update(request->file);
    return ask_and_save(request->file, request->overwrite);
  };
}

}  // namespace tessera::cli
