#include <dlfcn.h>
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
#include "tessera/trainer/trainer_settings.h"

namespace tessera {
namespace {

// Where the data do not tell what they are, micro-batches of the run are compared: so many, spread
// over its steps, of which the first million will do.
constexpr std::int64_t kSampledBatches = 8;
constexpr std::int64_t kSampledSteps = 1 << 20;

/// Reads by hand: where memory is short, a stream of the standard library says that reading failed.
/// `why` it must be readable is for the error.
std::string hash_of_file(const std::string& path, const char* what = "a file of this program",
                         const char* why = "processes compare what they run, so make it readable") {
  Digest digest;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::array<char, 1 << 16> block{};
  ssize_t count = -1;
  while (file >= 0 && (count = read(file, block.data(), block.size())) > 0) {
    digest.add({block.data(), static_cast<std::size_t>(count)});
  }
  const int error = errno;
  if (file >= 0) close(file);
  require(count == 0, ErrorCode::kIo, path, ", ", what, ", cannot be read (", std::strerror(error),
          "); ", why);
  return digest.hex();
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

/// The shared library that this is a part of, as a Python extension is; "" in a program.
std::string own_library() {
  Dl_info own{};
  const bool found = dladdr(reinterpret_cast<const void*>(&own_library), &own) != 0;
  return found && file_name(own.dli_fname).find(".so") != std::string::npos ? own.dli_fname : "";
}

/// Tessera's modules that are loaded now.
std::vector<std::string> loaded_modules() {
  std::vector<std::string> paths;
  if (const std::string own = own_library(); !own.empty()) paths.push_back(own);
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
std::string in_words(const Setting& setting, const nlohmann::json& value) {
  const bool is_number = setting.type == SettingType::kNumber && value.is_number();
  return is_number ? nlohmann::json(value.get<double>()).dump() : value.dump();
}

bool is_compared(const Setting& setting, bool on_cpus) {
  return setting.must_agree == MustAgree::kAll ||
         (setting.must_agree == MustAgree::kOnCpus && on_cpus);
}

}  // namespace

NamedText identity_of_program() {
  static const std::string program = hash_of_file("/proc/self/exe");
  std::string text = "build " + program;
  for (const std::string& path : loaded_modules()) {
    text += concat(", ", file_name(path), " ", hash_of_file(path));
  }
  return {"the program", text};
}

std::vector<NamedText> identity_of_settings(const Settings& settings) {
  const bool on_cpus = settings.get<std::string>("device") != to_string(DeviceChoice::kCuda);
  std::vector<NamedText> all;
  for (const Setting& setting : settings.table()) {
    if (!is_compared(setting, on_cpus)) continue;
    all.push_back({flag_name(setting.name), in_words(setting, settings.value(setting.name))});
  }
  return all;
}

std::vector<NamedText> identity_of_options(const TrainerOptions& options) {
  TrainerOptions o = options;
  o.learning_rate = resolved(o.learning_rate);
  std::vector<NamedText> all{{"total_steps", concat(o.learning_rate.total_steps)},
                             {"gather_parameters", o.gather_parameters ? "true" : "false"},
                             {"forward", o.forward ? "true" : "false"}};
  if (o.device == DeviceChoice::kCuda) {
    all.push_back(
        {"gemm_table", o.gemm_table.empty()
                           ? "none"
                           : concat("hash ", hash_of_file(o.gemm_table, "a table of GEMMs",
                                                          "tessera calibrate writes one"))});
  }
  for (const auto& [setting, read, write, field] : trainer_rows()) {
    if (!is_compared(setting, o.device != DeviceChoice::kCuda)) continue;
    const nlohmann::json value = read(o);
    all.push_back(
        {setting.name, value.is_string() ? value.get<std::string>() : in_words(setting, value)});
  }
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
                        p.initializer.mean, " ", p.initializer.spread, " ", p.weight_decay_scale,
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
      std::min(options.steps, kSampledSteps) * sample_division(options).micro_batches_per_step();
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
