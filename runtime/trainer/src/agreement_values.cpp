#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tessera/core/digest.h"
#include "tessera/core/error.h"
#include "tessera/trainer/agreement.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
namespace {

// Where something lies.
constexpr std::array kPaths{"data", "log", "csv", "tensorboard", "append", "overwrite"};
// What is shown, by the first process.
constexpr std::array kShown{"verbose", "quiet",  "prompt", "temperature",
                            "top_k",   "format", "actions"};
// What a machine has, and how long its processes wait.
constexpr std::array kOfMachine{"memory_limit", "timeout"};

// Where the data do not tell what they are, micro-batches of the run are compared: so many, spread
// over its steps, of which the first million will do.
constexpr std::int64_t kSampledBatches = 8;
constexpr std::int64_t kSampledSteps = 1 << 20;

/// Reads by hand: where memory is short, a stream of the standard library says that reading failed.
std::string hash_of_file(const std::string& path) {
  Digest digest;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::array<char, 1 << 16> block{};
  ssize_t count = -1;
  while (file >= 0 && (count = read(file, block.data(), block.size())) > 0) {
    digest.add({block.data(), static_cast<std::size_t>(count)});
  }
  const int error = errno;
  if (file >= 0) close(file);
  require(count == 0, ErrorCode::kIo, path, ", a file of this program, cannot be read (",
          std::strerror(error), "); processes compare what they run, so make it readable");
  return digest.hex();
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

/// Tessera's modules that are loaded now.
std::vector<std::string> loaded_modules() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* list) {
        const std::string path = info->dlpi_name;
        if (!file_name(path).starts_with("libtessera")) return 0;
        static_cast<std::vector<std::string>*>(list)->push_back(path);
        return 0;
      },
      &paths);
  std::ranges::sort(paths, {}, file_name);
  return paths;
}

/// A value as every process writes it, however the user did.
std::string in_words(const Setting& setting, const nlohmann::ordered_json& value) {
  const bool is_number = setting.type == SettingType::kNumber && value.is_number();
  return is_number ? nlohmann::json(value.get<double>()).dump() : value.dump();
}

std::string in_words(double number) { return nlohmann::json(number).dump(); }
std::string in_words(bool flag) { return flag ? "true" : "false"; }

/// Threads of a rank: on the CPU they decide how sums of matrix products are cut, and so the bits.
bool bits_depend_on_threads(DeviceChoice device) { return device != DeviceChoice::kCuda; }

}  // namespace

bool may_differ(std::string_view setting) {
  const auto has = [&](const auto& names) {
    return std::ranges::find(names, setting) != names.end();
  };
  return has(kPaths) || has(kShown) || has(kOfMachine);
}

NamedText identity_of_program() {
  static const std::string program = hash_of_file("/proc/self/exe");
  std::string text = "build " + program;
  for (const std::string& path : loaded_modules()) {
    text += concat(", ", file_name(path), " ", hash_of_file(path));
  }
  return {"the program", text};
}

std::vector<NamedText> identity_of_settings(const Config& config) {
  const bool compares_threads =
      bits_depend_on_threads(parse_device(config.get<std::string>("device")));
  std::vector<NamedText> all;
  for (const Setting& setting : config.table()) {
    if (may_differ(setting.name)) continue;
    if (setting.name == "threads_per_rank" && !compares_threads) continue;
    all.push_back({flag_name(setting.name), in_words(setting, config.values().at(setting.name))});
  }
  return all;
}

std::vector<NamedText> identity_of_options(const TrainerOptions& o) {
  std::vector<NamedText> all;
  const auto text = [&](const char* name, std::string_view value) {
    all.push_back({name, std::string(value)});
  };
  const auto number = [&](const char* name, auto value) { all.push_back({name, concat(value)}); };
  const auto real = [&](const char* name, double value) { text(name, in_words(value)); };
  const auto flag = [&](const char* name, bool value) { text(name, in_words(value)); };
  text("strategy", o.strategy);
  text("parameter_placement", to_string(o.placement->parameter));
  text("gradient_placement", to_string(o.placement->gradient));
  text("optimizer_placement", to_string(o.placement->optimizer));
  flag("reshard_after_forward", *o.reshard_after_forward);
  number("ranks", o.ranks);
  number("replicas", o.replicas);
  text("reduction_order", to_string(o.reduction_order));
  text("wrap", to_string(o.wrap));
  number("prefetch_forward", o.prefetch_forward);
  number("prefetch_backward", o.prefetch_backward);
  number("steps", o.steps);
  number("micro_batch", o.micro_batch);
  number("accumulate", o.accumulate);
  flag("accumulate_unsharded", o.accumulate_unsharded);
  text("recompute", to_string(o.recompute));
  text("precision", to_string(o.precision));
  text("reduce_dtype", to_string(o.reduce_dtype));
  real("beta1", o.optimizer.beta1);
  real("beta2", o.optimizer.beta2);
  real("epsilon", o.optimizer.epsilon);
  real("weight_decay", o.optimizer.weight_decay);
  real("clip_norm", o.optimizer.clip_norm);
  flag("stochastic_rounding", o.optimizer.stochastic_rounding);
  const LearningRateSchedule rate = resolved(o.learning_rate);
  text("learning_rate_schedule", to_string(rate.kind));
  real("learning_rate", rate.peak);
  real("minimum_learning_rate", *rate.minimum);
  number("total_steps", rate.total_steps);
  number("warmup_steps", *rate.warmup_steps);
  number("decay_steps", *rate.decay_steps);
  number("seed", o.seed);
  text("device", to_string(o.device));
  text("group", to_string(o.group));
  flag("deterministic_collectives", o.deterministic_collectives);
  text("attention", to_string(o.attention));
  flag("deterministic_attention", o.deterministic_attention);
  flag("cuda_graph", o.cuda_graph);
  if (bits_depend_on_threads(o.device)) number("threads_per_rank", o.threads_per_rank);
  flag("check_collectives", o.check_collectives);
  text("trace", o.trace ? in_words(*o.trace) : "null");
  flag("allow_non_finite", o.allow_non_finite);
  flag("gather_parameters", o.gather_parameters);
  flag("parameters_hash", o.hash_parameters);
  return all;
}

NamedText identity_of_model(const Model& model) {
  Digest digest;
  std::int64_t tensors = 0;
  for (const auto& layer : model.layers) {
    digest.add(layer->name());
    digest.add(layer->type());
    for (const ParameterSpec& p : layer->parameters()) {
      ++tensors;
      digest.add(concat(p.name, " ", p.shape, " ", static_cast<int>(p.initializer.kind), " ",
                        p.initializer.mean, " ", p.initializer.stddev, " ", p.weight_decay_scale,
                        " ", p.trainable));
    }
    for (const std::string& name : layer->tied_parameters()) digest.add(name);
  }
  return {"the model", concat(parameter_count(model), " parameters in ", tensors, " tensors of ",
                              model.layers.size(), " layers (hash ", digest.hex(), ")")};
}

std::vector<NamedText> identity_of_data(const BatchSource& source, const TrainerOptions& options) {
  std::vector<NamedText> own = source.identity();
  if (!own.empty()) return own;
  const std::int64_t samples = options.micro_batch;
  const std::int64_t batches =
      std::min(options.steps, kSampledSteps) * options.accumulate * options.ranks;
  const Shape input_shape = source.input_shape(samples),
              target_shape = source.target_shape(samples);
  const auto bytes = [](const Shape& shape, DType dtype) {
    return std::string(static_cast<std::size_t>(shape.numel()) * size_of(dtype), '\0');
  };
  std::string inputs = bytes(input_shape, source.input_dtype());
  std::string targets = bytes(target_shape, source.target_dtype());
  Digest digest;
  for (std::int64_t i = 0; i < kSampledBatches; ++i) {
    const std::int64_t batch = batches / kSampledBatches * i;
    const std::int64_t counted =
        source.fill(batch * samples, samples, {inputs.data(), source.input_dtype(), input_shape},
                    {targets.data(), source.target_dtype(), target_shape});
    digest.add(inputs);
    digest.add(targets);
    digest.add(concat(counted));
  }
  return {{"the data", concat("inputs ", input_shape, ", targets ", target_shape,
                              " per micro-batch (hash ", digest.hex(), ")")}};
}

}  // namespace tessera
