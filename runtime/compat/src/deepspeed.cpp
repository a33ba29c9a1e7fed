#include "deepspeed.h"

#include <array>
#include <cmath>

#include "keys.h"
#include "tessera/core/text.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::compat {
namespace {

constexpr const char* kCommunication = "communication_data_type";

/// The number of ranks of the command line or the launcher.
std::optional<std::int64_t> launched_ranks(const KnownSettings& known) {
  const auto given = known.override_integer("ranks");
  if (given || known.launch().ranks == 0) return given;
  return known.launch().ranks;
}

class DeepSpeed {
 public:
  DeepSpeed(const Document& document, const std::optional<ThroughAccelerate>& accelerate,
            const KnownSettings& known, ConfigTranslation& translation)
      : known_(known),
        through_accelerate_(accelerate.has_value()),
        autos_(accelerate ? accelerate->autos : AutoValues{}),
        ranks_(accelerate ? accelerate->ranks : launched_ranks(known)),
        top_(translation, document.path, document.root, table_of("deepspeed"), &known) {}

  void translate() {
    attempt([this] { ranks_ = translate_batch(top_, ranks_, autos_.accumulate, known_); });
    attempt([this] { read_zero(); });
    attempt([this] { read_precision(); });
    attempt([this] { read_clipping(); });
    attempt([this] { read_updates(); });
    attempt([this] { translate_monitors(top_, known_); });
    attempt([this] { read_checked_sections(); });
  }

 private:
  void read_zero() {
    const Node* node = top_.open("zero_optimization");
    if (node == nullptr) {
      top_.derive("zero_optimization", "strategy", strategy_of_stage(0), without_zero(),
                  told_if(through_accelerate_ && !top_.has("zero_optimization")));
      return;
    }
    if (node->kind != Node::Kind::kMap) return read_old_zero(*node);
    Section zero = top_.below("zero_optimization");
    if (zero.flag("overlap_comm") == false) {
      zero.differ("overlap_comm",
                  "DeepSpeed then reduces after each backward, not during it; the "
                  "sums are the same",
                  Told::kByExplain);
    }
    attempt([&] { read_stage(zero); });
    attempt([&] { read_optimizer_offload(zero); });
    attempt([&] { read_parameter_offload(zero); });
    attempt([&] { read_saving(zero); });
  }

  /// The form of the first versions: true or false in place of the section.
  void read_old_zero(const Node& node) {
    constexpr const char* kKey = "zero_optimization";
    if (!node.scalar.is_boolean()) {
      top_.refuse_for({top_.with(kKey, nlohmann::ordered_json{{"stage", 2}})}, kKey,
                      "is neither a section of keys nor true or false; write {\"stage\": 2}");
    }
    stage_ = node.scalar.get<bool>() ? 1 : 0;
    top_.honour(kKey, "strategy", strategy_of_stage(stage_), "the old form of a stage");
  }

  /// A key by its alias, by the name of its field or by its old name: the first that is there.
  void read_saving(Section& zero) {
    const char* key = nullptr;
    for (const char* const name :
         {"stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save",
          "stage3_gather_fp16_weights_on_model_save"}) {
      if (zero.has(name) && key != nullptr) {
        zero.no_effect(name, concat(key, " decides"), Told::kByRun);
      } else if (zero.has(name)) {
        key = name;
      }
    }
    if (key == nullptr) return;
    const std::optional<bool> whole = zero.is_auto(key) ? autos_.whole_model : zero.flag(key);
    translate_state_dict_type(zero, key, whole.value_or(false), known_,
                              zero.is_auto(key) ? "\"auto\": is zero3_save_16bit_model of "
                                                  "Accelerate's launcher, false without it"
                                                : "");
  }

  std::string without_zero() const {
    constexpr const char* kNothing = "without it DeepSpeed shards nothing";
    return through_accelerate_ && !top_.has("zero_optimization")
               ? concat(kNothing, "; Accelerate refuses a file of DeepSpeed's without it")
               : kNothing;
  }

  /// "none", "cpu" or "nvme"; the section's "auto" is what the launcher was told.
  static std::string read_device(Section& offload, const std::string& exported) {
    const std::string told = exported.empty() ? "none" : lowercase(exported);
    return offload.is_auto("device") ? told : offload.text("device").value_or("none");
  }

  static std::string note_of_device(Section& offload) {
    return offload.is_auto("device")
               ? "\"auto\": is what Accelerate's launcher was told, none without it"
               : "";
  }

  /// DeepSpeed does what `key` asks from ZeRO's stage `first` on. Below it this says so, and is
  /// true.
  bool below(Section& section, const char* key, std::int64_t first) const {
    if (stage_ >= first) return false;
    section.no_effect(key, concat("DeepSpeed offloads it from stage ", first, " on"), Told::kByRun);
    return true;
  }

  static Offload offloaded(double share, bool on_disk) {
    return on_disk ? Offload{.disk = share} : Offload{.host = share};
  }

  void read_path(Section& offload, const std::string& exported, bool on_disk) {
    const char* key = "nvme_path";
    if (!offload.has(key)) return;
    const bool is_auto = offload.is_auto(key);
    const std::string path = is_auto ? exported : offload.text(key).value_or("");
    if (!on_disk || path.empty() || lowercase(path) == "none") {
      offload.no_effect(key, on_disk ? "it says no folder" : "nothing of it is kept on a disk");
      return;
    }
    if (!folder_.empty() && path != folder_) {
      offload.refuse_for({offload.with(key, folder_)}, key,
                         "names another folder than offload_optimizer, ", folder_,
                         ", but a rank has one file for both; make them equal");
    }
    folder_ = path;
    offload.honour(key, "offload_path", path,
                   is_auto ? "\"auto\": is what Accelerate's launcher was told" : "");
  }

  void read_optimizer_offload(Section& zero) {
    constexpr const char* kOld = "cpu_offload";
    const Node* node = zero.open("offload_optimizer");
    if (zero.has(kOld) && node != nullptr) {
      zero.no_effect(kOld, "offload_optimizer decides", Told::kByRun);
    } else if (const auto on = zero.flag(kOld)) {
      if (!below(zero, kOld, 1)) zero.honour(kOld, "offload_optimizer", *on ? "host" : "none");
    }
    if (node == nullptr) return;
    Section offload = zero.below("offload_optimizer");
    const std::string device = read_device(offload, autos_.offload_optimizer);
    const bool on = device != "none", on_disk = device == "nvme";
    read_path(offload, autos_.offload_path, on_disk);
    const auto ratio = offload.number("ratio");
    const bool parted = on && ratio && stage_ == 3;
    if (offload.has("device") && (!on || !below(offload, "device", 1))) {
      const Offload share = offloaded(parted ? *ratio : on ? 1.0 : 0.0, on_disk);
      offload.honour("device", "offload_optimizer", to_string(share), note_of_device(offload));
    }
    if (!offload.has("ratio")) return;
    if (!parted) {
      offload.no_effect("ratio", on ? "DeepSpeed reads it at stage 3" : "nothing is offloaded");
      return;
    }
    offload.honour("ratio", "offload_optimizer", to_string(offloaded(*ratio, on_disk)));
    offload.differ("ratio",
                   "DeepSpeed counts sub-groups of sub_group_size elements, all of them if there "
                   "is one; here units are counted",
                   told_if(*ratio > 0.0 && *ratio < 1.0));
  }

  void read_parameter_offload(Section& zero) {
    const Node* node = zero.open("offload_param");
    for (const char* old : {"cpu_offload_params", "cpu_offload_param"}) {
      const auto on = zero.flag(old);
      if (!on) continue;
      if (node != nullptr) {
        zero.no_effect(old, "offload_param decides", Told::kByRun);
      } else if (!*on || !below(zero, old, 3)) {
        zero.honour(old, "offload_parameters", *on ? "host" : "none");
      }
    }
    if (node == nullptr) return;
    Section offload = zero.below("offload_param");
    const std::string device = read_device(offload, autos_.offload_parameters);
    const bool on_disk = device == "nvme";
    attempt([&] { read_path(offload, autos_.parameters_path, on_disk && stage_ >= 3); });
    if (!offload.has("device") || (device != "none" && below(offload, "device", 3))) return;
    offload.honour("device", "offload_parameters",
                   on_disk           ? "disk"
                   : device == "cpu" ? "host"
                                     : "none",
                   note_of_device(offload));
  }

  void read_stage(Section& zero) {
    const char* key = "stage";
    if (zero.is_auto(key)) {
      if (!through_accelerate_) {
        zero.refuse(key, "\"auto\" means something only in Accelerate; set 0 to 3");
      }
      set_stage(zero, autos_.stage.value_or(2),
                autos_.stage ? "\"auto\": is ACCELERATE_DEEPSPEED_ZERO_STAGE"
                             : "\"auto\": Accelerate's default is 2");
    } else if (const auto text = zero.text(key)) {
      const bool legacy = *text == "true" || *text == "false";
      const std::int64_t stage = legacy ? (*text == "true" ? 1 : 0) : std::stoll(*text);
      set_stage(zero, stage, legacy ? "the old form of a stage" : "");
    } else {
      set_stage(zero, 0, "DeepSpeed's default is 0");
    }
  }

  void set_stage(Section& zero, std::int64_t stage, const std::string& note) {
    const char* key = "stage";
    stage_ = stage;
    const bool mics = read_mics(zero, stage);
    const char* strategy = mics ? "hybrid_shard" : strategy_of_stage(stage);
    zero.set(key, "strategy", strategy, note, note);
  }

  /// MiCS: ZeRO-3 inside groups of ranks. Returns whether it is on.
  bool read_mics(Section& zero, std::int64_t stage) {
    const char* key = "mics_shard_size";
    if (!zero.has(key)) return false;
    const std::int64_t size = zero.integer(key).value_or(-1);
    if (size == -1) {
      zero.agree(key, "MiCS is off");
      return false;
    }
    if (size < 1) zero.refuse(key, "is ", size, "; it must be at least 1, or -1 for none");
    if (stage != 3) zero.refuse(key, "MiCS needs stage 3; set it, or set this key to -1");
    if (!ranks_) return true;  // a key of the batch is refused
    if (*ranks_ % size != 0) {
      zero.refuse(key, "is ", size, ", which does not divide ", *ranks_,
                  " ranks; change it, or give --ranks");
    }
    zero.honour(key, "replicas", *ranks_ / size);
    return true;
  }

  /// True if "auto", or a section that is absent, stands for this precision.
  bool is_exported(const char* key) const {
    const std::string& precision = autos_.precision;
    if (std::string_view(key) == "fp16") return precision == "fp16";
    return precision == "bf16";
  }

  /// True if the section `key` is there and enabled, or if Accelerate would enable it.
  bool is_enabled(const char* key) {
    const bool is_fp16 = std::string_view(key) == "fp16";
    const char* const dtype = is_fp16 ? "fp16" : "bf16";
    if (top_.open(key) == nullptr) {
      if (top_.has(key) || !is_exported(key)) return false;
      constexpr const char* kExported = "is ACCELERATE_MIXED_PRECISION";
      top_.derive(key, "precision", dtype, kExported);
      if (!top_.has(kCommunication)) top_.derive(key, "reduce_dtype", sent_in(dtype), kExported);
      if (is_fp16 && scales_loss()) {
        top_.derive(key, "loss_scale_dialect", "deepspeed", kRules);
      }
      return true;
    }
    Section section = top_.below(key, dtype);
    const bool automatic = section.is_auto("enabled");
    const bool enabled = automatic ? is_exported(key) : section.flag("enabled").value_or(false);
    if (enabled) {
      const char* note = automatic ? "\"auto\": is ACCELERATE_MIXED_PRECISION" : "";
      section.honour("enabled", "precision", dtype, note);
      if (!top_.has(kCommunication)) {
        section.honour("enabled", "reduce_dtype", sent_in(dtype));
      }
      if (is_fp16 && scales_loss()) read_loss_scale(section);
    } else if (section.has("enabled")) {
      section.agree("enabled",
                    !automatic ? concat(key, " is off")
                    : autos_.precision.empty()
                        ? "\"auto\" follows mixed_precision, which no file sets"
                        : concat("\"auto\": ACCELERATE_MIXED_PRECISION is ", autos_.precision));
    }
    section.leave_unused(enabled ? "--precision decides" : "only fp16 scales its loss",
                         told_if(enabled));
    return enabled;
  }

  /// Gradients are sent in the precision of parameters, which the command line may change.
  std::string sent_in(const char* dtype) const {
    return known_.override_text("precision").value_or(dtype);
  }

  /// Whether nothing else than fp16 is asked for on the command line.
  bool scales_loss() const { return sent_in("fp16") == "fp16"; }

  /// A loss scale of 0, the default, is a dynamic one.
  void read_loss_scale(Section& section) {
    const double fixed = section.number("loss_scale").value_or(0.0);
    const char* const key = section.has("loss_scale") ? "loss_scale" : "enabled";
    if (fixed > 0.0) {
      section.honour(key, "loss_scale", concat(fixed));
      section.leave_unused("the loss scale is fixed", Told::kByExplain);
      return;
    }
    section.honour(key, "loss_scale_dialect", "deepspeed", kRules);
    if (const auto power = section.integer("initial_scale_power")) {
      section.honour("initial_scale_power", "loss_scale_initial",
                     std::ldexp(1.0, static_cast<int>(*power)));
    }
    section.pass_on("loss_scale_window", "loss_scale_window");
    section.pass_on("hysteresis", "loss_scale_hysteresis");
    section.pass_on("consecutive_hysteresis", "loss_scale_consecutive_hysteresis");
    section.pass_on("min_loss_scale", "loss_scale_minimum");
    section.leave_unused("\"auto\": the default", Told::kByExplain);
  }

  static constexpr const char* kRules = "fp16 scales its loss by DeepSpeed's rules";

  void read_precision() {
    if (top_.has("bf16") && top_.has("bfloat16")) {
      top_.refuse("bfloat16", "is the old name of bf16, which is there, too; keep one");
    }
    if (autos_.precision == "fp8" && !known_.is_overridden("precision")) {
      top_.refuse("bf16",
                  "ACCELERATE_MIXED_PRECISION is fp8, which DeepSpeed's files have no key for; "
                  "enable bf16 here and give --precision fp8");
    }
    const bool fp16 = is_enabled("fp16");
    const char* const bf16_key = top_.has("bfloat16") ? "bfloat16" : "bf16";
    const bool bf16 = is_enabled(bf16_key);
    if (fp16 && bf16) {
      top_.refuse_for({{.key = concat(bf16_key, ".enabled"), .value = false}}, bf16_key,
                      "fp16 is enabled, too, which DeepSpeed refuses; keep one");
    }
    if (!bf16 && !fp16) {
      top_.derive("bf16", "precision", "fp32", "neither fp16 nor bf16 is enabled");
    }
    if (const auto type = top_.text(kCommunication)) {
      top_.honour(kCommunication, "reduce_dtype", *type == "bfp16" ? "bf16" : *type);
    } else if (!bf16 && !fp16) {
      top_.derive("bf16", "reduce_dtype", "fp32", "neither fp16 nor bf16 is enabled");
    }
  }

  void read_clipping() {
    const char* key = "gradient_clipping";
    if (top_.pass_on(key, "clip_norm")) return;
    if (top_.has(key)) {
      top_.honour(key, "clip_norm", autos_.clip_norm.value_or(1.0),
                  autos_.clip_norm ? "\"auto\": is ACCELERATE_GRADIENT_CLIPPING"
                                   : "\"auto\": Accelerate takes 1.0");
    } else {
      if (has_norm_in_optimizer(top_)) return;  // and that is read with it
      top_.derive(key, "clip_norm", 0.0, "DeepSpeed's default is 0, never");
    }
  }

  void read_updates() {
    std::optional<TypedSection> optimizer = open_optimizer(top_);
    std::optional<TypedSection> scheduler = open_scheduler(top_);
    const PeakRate peak =
        decide_peak(optimizer ? &*optimizer : nullptr, scheduler ? &*scheduler : nullptr, known_);
    if (optimizer) translate_optimizer(*optimizer, peak, top_.has("gradient_clipping"));
    if (scheduler) {
      translate_scheduler(*scheduler, peak, known_);
    } else if (optimizer && top_.node("scheduler") == nullptr) {
      top_.absent(
          "scheduler",
          concat("DeepSpeed then keeps the learning rate unless the script changes it; here ",
                 "learning_rate_schedule shapes it, give --learning-rate-schedule constant "
                 "--warmup-steps 0 for the same"),
          Told::kByRun);
    }
  }

  /// Sections that ask for nothing we could do, or are refused by their keys.
  void read_checked_sections() {
    for (const char* const name :
         {"activation_checkpointing", "tensor_parallel", "data_types", "checkpoint"}) {
      top_.open(name);
      top_.below(name, "", UnknownKeys::kNoted);
    }
  }

  const KnownSettings& known_;
  bool through_accelerate_;
  AutoValues autos_;
  std::optional<std::int64_t> ranks_;
  std::string folder_{};    ///< on a disk, "" so far
  std::int64_t stage_ = 3;  ///< the last where the file does not say it rightly
  Section top_;
};

}  // namespace

const char* strategy_of_stage(std::int64_t stage) {
  constexpr std::array kStrategies{"no_shard", "zero1", "zero2", "full_shard"};
  return kStrategies.at(static_cast<std::size_t>(stage));
}

void translate_deepspeed(const Document& document, std::optional<ThroughAccelerate> accelerate,
                         const KnownSettings& known, ConfigTranslation& translation) {
  DeepSpeed(document, accelerate, known, translation).translate();
}

}  // namespace tessera::compat
