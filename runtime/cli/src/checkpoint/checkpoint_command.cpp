#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "output/terminal.h"
#include "output/text_output.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/parameter_checkpoint.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/error.h"
#include "tessera/model/adapter.h"
#include "tessera/model/hugging_face.h"
#include "tessera/model/llm_c.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/byte_size.h"

namespace tessera::cli {
namespace {

/// The command line of `tessera checkpoint`.
struct CheckpointRequest {
  std::string path{};
  std::string output{};   ///< of a conversion
  std::string adapter{};  ///< to be merged
  std::string format{};   ///< of the output; "": by what the input is
  std::string dtype{};    ///< of the output; "": the input's, of llm.c's file fp32
  std::string base_format = "none";
  bool json = false;
};

/// A checkpoint, or the newest one of a folder.
std::string checkpoint_at(const std::string& path) {
  std::string found = find_checkpoint(path);
  require(!found.empty(), ErrorCode::kNotFound, "there is no checkpoint in '", path, "'");
  return found;
}

/// A kind of state, summed over parameters.
struct StateSum {
  DType dtype = DType::kFloat32;
  std::int64_t elements = 0;
};
std::map<std::string, StateSum> states_of(const Manifest& manifest) {
  std::map<std::string, StateSum> sums;
  for (const SavedParameter& parameter : manifest.parameters) {
    for (const SavedState& state : parameter.states) {
      StateSum& sum = sums[state.name];
      sum.dtype = state.dtype;
      sum.elements += numel_of(parameter, state);
    }
  }
  return sums;
}

std::int64_t total_bytes(const Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const SavedFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

nlohmann::ordered_json json_of(const std::vector<NamedText>& values) {
  auto object = nlohmann::ordered_json::object();
  for (const NamedText& value : values) object[value.name] = value.value;
  return object;
}

nlohmann::ordered_json json_of(const std::optional<BestEvaluation>& best) {
  if (!best) return nullptr;
  return {{"loss", best->loss},
          {"step", best->step},
          {"without_improvement", best->without_improvement}};
}

void write_checkpoint_json(const std::string& path, const Manifest& manifest) {
  auto states = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : states_of(manifest)) {
    states[name] = {{"dtype", to_string(sum.dtype)}, {"elements", sum.elements}};
  }
  auto files = nlohmann::ordered_json::array();
  for (const SavedFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  write_json(std::cout, {{"kind", "checkpoint"},
                         {"path", path},
                         {"step", manifest.step},
                         {"samples", manifest.samples},
                         {"bytes", total_bytes(manifest)},
                         {"best_evaluation", json_of(manifest.best)},
                         {"model", json_of(manifest.model)},
                         {"data", json_of(manifest.data)},
                         {"optimizer", json_of(manifest.optimizer)},
                         {"run", json_of(manifest.run)},
                         {"states", states},
                         {"files", files}});
}

void print_values(const char* heading, const std::vector<NamedText>& values) {
  std::string text = heading;
  text.resize(10, ' ');
  std::vector<std::string> words;
  for (const NamedText& value : values) words.push_back(value.name + " " + value.value);
  print_line(stdout, text + (words.empty() ? "none" : tessera::joined(words)), 10);
}

int inspect_checkpoint(const CheckpointRequest& request) {
  const std::string path = checkpoint_at(request.path);
  const Manifest manifest = read_manifest(path);
  if (request.json) {
    write_checkpoint_json(path, manifest);
    return kExitGood;
  }
  std::cout << path << ": step " << manifest.step << ", " << manifest.samples << " samples read, "
            << format_bytes(total_bytes(manifest)) << " in "
            << counted(std::ssize(manifest.files), "file") << "\n";
  if (const auto& best = manifest.best) {
    std::cout << "best      evaluation loss " << fixed(best->loss, 4) << " at step " << best->step;
    if (best->without_improvement > 0) {
      std::cout << ", no better for " << counted(best->without_improvement, "evaluation");
    }
    std::cout << "\n";
  }
  print_values("model", manifest.model);
  print_values("data", manifest.data);
  print_values("optimizer", manifest.optimizer);
  print_values("run", manifest.run);
  TextTable table({"state", "dtype", "elements", "bytes"});
  for (const auto& [name, sum] : states_of(manifest)) {
    table.add({name, std::string(to_string(sum.dtype)), with_commas(sum.elements),
               format_bytes(sum.elements * static_cast<std::int64_t>(size_of(sum.dtype)))});
  }
  table.print(std::cout);
  return kExitGood;
}

int list_folder(const CheckpointRequest& request) {
  const auto found = list_checkpoints(request.path);
  const std::string newest = find_checkpoint(request.path);
  const std::string best = find_best_checkpoint(request.path);
  require(!newest.empty(), ErrorCode::kNotFound, "there is no checkpoint in '", request.path, "'");
  TextTable table({"checkpoint", "step", "bytes", ""});
  std::string damages;
  for (const FoundCheckpoint& checkpoint : found) {
    const std::string damage = damage_of(checkpoint.path);
    const bool whole = damage.empty();
    table.add({checkpoint.path, with_commas(checkpoint.step),
               whole ? format_bytes(total_bytes(read_manifest(checkpoint.path))) : "",
               concat(checkpoint.path == newest ? "latest" : "",
                      checkpoint.path == best ? " best" : "", whole ? "" : " damaged")});
    if (!whole) damages += damage + "\n";
  }
  table.print(std::cout);
  std::cout << damages;
  return damages.empty() ? kExitGood : kExitUsage;
}

int verify_checkpoint(const CheckpointRequest& request) {
  using Clock = std::chrono::steady_clock;
  const std::string path = checkpoint_at(request.path);
  const Manifest manifest = read_manifest(path);
  const std::int64_t total = total_bytes(manifest);
  LiveLine progress(LiveLine::Begins::kAfterAWhile);
  const Clock::time_point begin = Clock::now();
  const std::int64_t bytes = verify_files(manifest, path, [&](std::int64_t done) {
    progress.show(concat(format_bytes(done), " of ", format_bytes(total)));
  });
  progress.erase();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::cout << path << ": whole; all " << with_commas(bytes) << " bytes match their hashes ("
            << format_bytes(static_cast<std::int64_t>(static_cast<double>(bytes) / seconds))
            << "/s)\n";
  return kExitGood;
}

/// Hands the values of every parameter that `copied` does not take to `write`, one after the other
/// in order of declaration.
template <typename Write, typename Copied>
void copy_parameters(const PretrainedGpt& from, const Model& model, const Write& write,
                     const Copied& copied) {
  std::vector<float> values;
  for (const auto& layer : model.layers) {
    for (const ParameterSpec& spec : layer->parameters()) {
      if (copied(spec)) continue;
      values.resize(static_cast<std::size_t>(spec.shape.numel()));
      from.read(spec.name, values);
      write(spec, std::span<const float>(values));
    }
  }
}

std::string write_checkpoint(const PretrainedGpt& from, const Model& model,
                             const std::string& folder) {
  std::vector<NamedText> words = model.configuration;
  words.push_back(identity_of_model(model));
  std::vector<ParameterSpec> parameters;
  for (const auto& layer : model.layers) {
    parameters.insert(parameters.end(), layer->parameters().begin(), layer->parameters().end());
  }
  CompanionFiles companions = from.companion_files();
  name_dtype(companions, from.dtype(), NewKey::kAdded);
  ParameterCheckpoint checkpoint(folder, std::move(words), parameters, disk(), companions);
  copy_parameters(
      from, model,
      [&](const ParameterSpec&, std::span<const float> values) { checkpoint.write(values); },
      [](const ParameterSpec&) { return false; });
  return checkpoint.finish();
}

DType folder_dtype(const CheckpointRequest& request, const PretrainedGpt& from) {
  return request.dtype.empty() ? from.dtype() : parse_dtype(request.dtype);
}

HuggingFaceOptions folder_options(const CheckpointRequest& request, const PretrainedGpt& from) {
  return {.format = parse_weight_format(request.base_format),
          .dtype = folder_dtype(request, from),
          .files = from.companion_files()};
}

/// Names the format of a folder's weights, if they are not fp32 or were not.
std::string dtype_note(const CheckpointRequest& request, const PretrainedGpt& from) {
  const DType dtype = folder_dtype(request, from);
  if (dtype == DType::kFloat32 && from.dtype() == dtype) return "";
  std::string note = concat("; written in ", to_string(dtype));
  const bool rounds = from.is_checkpoint() || from.config().adapter.is_set();
  if (request.dtype.empty() && rounds) {
    note += concat(", as the model it began with, to which the fp32 weights are rounded: to keep ",
                   "them, give --export-dtype fp32");
  }
  return note;
}

std::string write_for_others(const PretrainedGpt& from, const Model& model,
                             const CheckpointRequest& request, bool llm_c) {
  GptConfig config = from.config();
  if (!config.adapter.is_set()) config.unquantized = from.unquantized();
  PretrainedWriter writer =
      llm_c ? write_llm_c(request.output, from.config(),
                          parse_dtype(request.dtype.empty() ? "fp32" : request.dtype))
      : from.config().adapter.is_set()
          ? write_adapter(request.output, from.config(), "", from.companion_files())
          : write_hugging_face(request.output, config, disk(), folder_options(request, from));
  copy_parameters(
      from, model,
      [&](const ParameterSpec& spec, std::span<const float> values) {
        writer.write(spec.name, values);
      },
      [&](const ParameterSpec& spec) { return writer.copy(spec.name, from); });
  writer.finish();
  return request.output;
}

/// Weights that are quantised are not quantised again: that would lose more of them.
void check_base_format(const CheckpointRequest& request, const PretrainedGpt& from, bool folder) {
  if (request.base_format == "none") return;
  require(folder && !from.config().adapter.is_set(), ErrorCode::kConfig, "--base-format ",
          request.base_format, " is for a Hugging Face folder of a model without adapters");
  const WeightFormat stored = from.stored_format();
  require(stored == WeightFormat::kNone || to_string(stored) == request.base_format,
          ErrorCode::kConfig, "--base-format ", request.base_format, ": '", from.path(),
          "' is stored in ", to_string(stored),
          ", and would be quantised a second time; take the model that is not quantised");
}

std::string written_as(const CheckpointRequest& request, const PretrainedGpt& from) {
  const std::string_view stored = to_string(from.stored_format());
  if (request.base_format == stored) return stored == "none" ? "" : "; kept as it is";
  return stored == "none" ? concat("; its blocks are quantised to ", request.base_format)
                          : std::string("; dequantised");
}

void check_dtype(const CheckpointRequest& request, const PretrainedGpt& from,
                 const std::string& format) {
  if (request.dtype.empty() || request.dtype == "fp32") return;
  const auto refuse = [&](const char* why) {
    fail(ErrorCode::kConfig, "--export-dtype ", request.dtype, ": ", why);
  };
  if (format == "tessera") refuse("a checkpoint has fp32 weights; leave it out");
  if (from.config().adapter.is_set()) refuse("adapters are written in fp32; leave it out");
  if (format.starts_with("llm") && request.dtype == "fp16")
    refuse("llm.c's files are fp32 or bf16");
}

/// Writes a model's parameters in another of the three formats, one after the other.
int convert(const CheckpointRequest& request) {
  const PretrainedGpt from = open_pretrained(request.path);
  const Model model = make_gpt(from.config());
  std::string format = request.format;
  if (format.empty()) format = from.is_checkpoint() ? "hugging-face" : "tessera";
  const bool llm_c = format == "llm.c" || format == "llmc";
  const bool folder = format == "hugging-face" || format == "hf";
  check_dtype(request, from, format);
  check_base_format(request, from, folder);
  const std::string path = format == "tessera" ? write_checkpoint(from, model, request.output)
                                               : write_for_others(from, model, request, llm_c);
  print_line(stdout,
             concat(path, ": ", with_commas(parameter_count(model)), " parameters of ", from.path(),
                    ", ", from.format(), written_as(request, from),
                    folder && !from.config().adapter.is_set() ? dtype_note(request, from) : ""),
             2);
  return kExitGood;
}

/// Writes a model with its adapters merged into its matrices, one parameter after the other.
int merge_adapter(const CheckpointRequest& request) {
  require(has_adapter_weights(request.adapter), ErrorCode::kConfig, "'", request.adapter,
          "' has no adapter_model.safetensors; name a folder as PEFT writes it");
  const PretrainedGpt model = open_adapter(open_pretrained(request.path), request.adapter);
  GptConfig plain = model.config();
  plain.adapter = {};
  plain.base_format = WeightFormat::kNone;
  PretrainedWriter writer =
      write_hugging_face(request.output, plain, disk(), folder_options(request, model));
  write_merged(model, writer);
  writer.finish();
  print_line(
      stdout,
      concat(request.output, ": ", with_commas(parameter_count(make_gpt(plain))), " parameters of ",
             model.path(), ", ", model.format(), ", merged", dtype_note(request, model)),
      2);
  return kExitGood;
}

void add_dtype(CLI::App& command, CheckpointRequest& request) {
  const std::map<std::string, std::string> spellings{
      {"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
  command
      .add_option("--export-dtype,--dtype", request.dtype,
                  "of a Hugging Face folder or llm.c's file: fp32, bf16 or, of a folder, fp16 [the "
                  "folder's that the model began with; of llm.c's file fp32]")
      ->transform(CLI::Transformer(spellings).description(""))
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}).description(""))
      ->type_name("DTYPE");
}

void add_base_format(CLI::App& command, CheckpointRequest& request) {
  std::vector<std::string> names{"none"};
  for (const WeightFormat format : weight_formats()) names.emplace_back(to_string(format));
  command
      .add_option("--base-format", request.base_format,
                  "of a Hugging Face folder: quantise the matrices of the blocks as bitsandbytes "
                  "does, one at a time: nf4, fp4, int8, nf4-double or fp4-double")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
}

}  // namespace

std::function<int()> add_checkpoint(CLI::App& app) {
  const auto request = std::make_shared<CheckpointRequest>();
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* help, const char* what) {
    CLI::App* command = app.add_subcommand(name, help);
    command->add_option("PATH", request->path, what)->required();
    return command;
  };
  const char* const one = "a checkpoint, or a folder of them, of which the newest is taken";
  CLI::App* inspect = add("inspect", "Say what a checkpoint is of, and what it holds", one);
  inspect->add_flag("--json", request->json, "print one JSON object");
  CLI::App* list = add("list", "List a folder's checkpoints", "what --save named");
  add("verify", "Read all of a checkpoint and compare it with its hashes", one);
  CLI::App* converted =
      add("convert", "Write a model's parameters in another format",
          "a checkpoint, or the newest of a folder; a Hugging Face folder; a model .bin of llm.c");
  converted->alias("export");
  converted
      ->add_option("OUTPUT", request->output,
                   "a new folder, or a new file for llm.c; a checkpoint is OUTPUT/step_0, with "
                   "neither optimizer nor data: --init takes it, and --resume with any of both")
      ->required();
  converted
      ->add_option("--to,--format", request->format,
                   "hugging-face, llm.c or tessera, which is a checkpoint [of a checkpoint "
                   "hugging-face, else tessera]")
      ->check(CLI::IsMember({"hugging-face", "hf", "llm.c", "llmc", "tessera"}));
  add_dtype(*converted, *request);
  add_base_format(*converted, *request);
  CLI::App* merged = app.add_subcommand("merge-adapter",
                                        "Write a model with its adapters merged into its matrices");
  merged->add_option("BASE", request->path, "a Hugging Face folder, or a model .bin of llm.c")
      ->required();
  merged->add_option("ADAPTER", request->adapter, "a folder as PEFT writes it")->required();
  merged->add_option("OUTPUT", request->output, "a new Hugging Face folder")->required();
  add_dtype(*merged, *request);
  add_base_format(*merged, *request);
  return [=] {
    if (merged->parsed()) return merge_adapter(*request);
    if (converted->parsed()) return convert(*request);
    if (inspect->parsed()) return inspect_checkpoint(*request);
    if (list->parsed()) return list_folder(*request);
    return verify_checkpoint(*request);
  };
}

}  // namespace tessera::cli
