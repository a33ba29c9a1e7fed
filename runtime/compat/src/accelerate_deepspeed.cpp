#include "accelerate_deepspeed.h"

#include "deepspeed.h"
#include "scalar.h"
#include "tessera/core/text.h"

namespace tessera::compat {
namespace {

/// DeepSpeed offloads it from ZeRO's stage `first` on.
void read_offload(Section& section, const char* key, const char* setting, std::int64_t first) {
  const auto device = section.text(key);
  if (!device) return;
  const bool on_disk = *device == "nvme";
  if (*device != "none" && section.integer("zero_stage").value_or(2) < first) {
    section.no_effect(key, concat("DeepSpeed offloads it from stage ", first, " on"), Told::kByRun);
    return;
  }
  section.honour(key, setting, on_disk ? "disk" : *device == "cpu" ? "host" : "none");
}

struct OnDisk {
  const char* device;
  const char* path;
};
constexpr OnDisk kOptimizer{"offload_optimizer_device", "offload_optimizer_nvme_path"};
constexpr OnDisk kParameters{"offload_param_device", "offload_param_nvme_path"};

/// The folder, "" if none is used. `other`: that of what else is on disk, which must be the same.
std::string read_path(Section& section, const OnDisk& keys, std::int64_t first,
                      const std::string& other) {
  const auto path = section.text(keys.path);
  if (!path) return "";
  if (section.text(keys.device).value_or("none") != "nvme" ||
      section.integer("zero_stage").value_or(2) < first) {
    section.no_effect(keys.path, concat(keys.device, " keeps nothing on a disk"));
  } else if (lowercase(*path) == "none") {
    section.no_effect(keys.path, "it says no folder");
  } else if (!other.empty() && *path != other) {
    section.refuse_for({section.with(keys.path, other)}, keys.path,
                       "names another folder than offload_optimizer_nvme_path, ", other,
                       ", but a rank has one file for both; make them equal");
  } else {
    section.honour(keys.path, "offload_path", *path);
    return *path;
  }
  return "";
}

void read_stage(Section& section) {
  const std::int64_t stage = section.integer("zero_stage").value_or(2);
  section.set("zero_stage", "strategy", strategy_of_stage(stage), "", "Accelerate's default is 2");
}

void read_accumulation(Section& section, const KnownSettings& known) {
  const char* key = "gradient_accumulation_steps";
  if (!section.pass_on(key, "accumulate") && section.has(key)) {
    section.agree(key, concat("\"auto\" is --accumulate, ", known.integer("accumulate")));
  }
}

void read_clipping(Section& section) {
  const char* key = "gradient_clipping";
  if (section.pass_on(key, "clip_norm")) return;
  section.set(key, "clip_norm", 1.0, "", "Accelerate's default for DeepSpeed is 1.0");
}

void read_saving(Section& section, const KnownSettings& known) {
  const char* key = "zero3_save_16bit_model";
  if (const auto whole = section.flag(key)) {
    translate_state_dict_type(section, key, *whole, known);
  }
}

}  // namespace

void translate_deepspeed_section(Section& section, const KnownSettings& known) {
  read_stage(section);
  attempt([&] { read_accumulation(section, known); });
  attempt([&] { read_clipping(section); });
  attempt([&] { read_offload(section, "offload_optimizer_device", "offload_optimizer", 1); });
  attempt([&] { read_offload(section, "offload_param_device", "offload_parameters", 3); });
  std::string folder;
  attempt([&] { folder = read_path(section, kOptimizer, 1, ""); });
  attempt([&] { read_path(section, kParameters, 3, folder); });
  attempt([&] { read_saving(section, known); });
}

}  // namespace tessera::compat
