#include "foreign/accelerate.h"

#include <algorithm>
#include <filesystem>

#include "foreign/accelerate_keys.h"
#include "foreign/accelerate_machines.h"
#include "foreign/deepspeed.h"
#include "foreign/fsdp.h"
#include "foreign/known_settings.h"

namespace tessera::foreign {
namespace {

constexpr const char* kType = "distributed_type";
constexpr const char* kPrecision = "mixed_precision";
constexpr const char* kProcesses = "num_processes";
constexpr const char* kUseCpu = "use_cpu";

const Node& empty_map() {
  static const Node node{.kind = Node::Kind::kMap};
  return node;
}

class Accelerate {
 public:
  Accelerate(const Document& document, AccelerateSource source, const TranslationContext& context,
             ConfigTranslation& translation)
      : path_(document.path),
        source_(source),
        known_(context),
        translation_(translation),
        top_(translation, path_, document.root, accelerate_keys(), {.name = "", .known = &known_}) {
  }

  void translate() {
    const DistributedType& type = read_type();
    read_ranks(type);
    machines_ = translate_machines(top_, path_, ranks_, known_.launch());
    if (top_.has("ipex_config")) {
      top_.differ("ipex_config", "Accelerate 1.15 refuses the key, which it knew before");
    }
    if (const auto debug = top_.flag("debug")) top_.honour("debug", "check_collectives", *debug);
    read_device();
    read_small_sections();
    const bool fsdp = std::string_view(type.name) == "FSDP";
    const bool deepspeed = std::string_view(type.name) == "DEEPSPEED";
    if (type.strategy != nullptr) top_.honour(kType, "strategy", type.strategy);
    if (fsdp || deepspeed) top_.agree(kType, fsdp ? "see fsdp_config" : "see deepspeed_config");
    read_fsdp(fsdp);
    read_deepspeed(deepspeed);
    if (!followed_) read_precision(fsdp || deepspeed);
  }

 private:
  const DistributedType& read_type() {
    const auto& types = distributed_types();
    const auto name = top_.text(kType);
    static const DistributedType kUntold{"", nullptr, nullptr};
    if (!name && source_ == AccelerateSource::kEnvironment) return kUntold;
    if (!name) {
      top_.refuse(kType, "is missing, which Accelerate refuses; add distributed_type: ",
                  "FSDP, DEEPSPEED, MULTI_GPU, MULTI_CPU or NO");
    }
    const auto found = std::find_if(types.begin(), types.end(), [&](const DistributedType& type) {
      return type.name == upper(*name);
    });
    if (found == types.end()) {
      std::vector<std::string> names;
      for (const DistributedType& known : types) {
        if (known.refusal == nullptr) names.emplace_back(known.name);
      }
      top_.refuse(kType, unknown_value(*name, names));
    }
    if (found->refusal != nullptr) top_.refuse(kType, "'", *name, "': ", found->refusal);
    if (*name != found->name) {
      top_.differ(kType, concat("Accelerate refuses it unless it is spelt ", found->name));
    }
    return *found;
  }

  /// Who says how many ranks there are: the first of these that says anything.
  enum class RanksFrom : std::uint8_t { kByFlag, kByKey, kByLauncher, kByType, kByNobody };

  static bool is_one_process(const DistributedType& type) {
    return std::string_view(type.name) == "NO";
  }

  RanksFrom ranks_from(const DistributedType& type) const {
    if (known_.override_integer("ranks")) return RanksFrom::kByFlag;
    if (top_.integer(kProcesses).value_or(-1) != -1) return RanksFrom::kByKey;
    if (known_.launch().ranks > 0) return RanksFrom::kByLauncher;
    return is_one_process(type) ? RanksFrom::kByType : RanksFrom::kByNobody;
  }

  void read_ranks(const DistributedType& type) {
    const RanksFrom from = ranks_from(type);
    const auto key = top_.integer(kProcesses);  // -1 leaves it to others
    const auto flag = known_.override_integer("ranks");
    const LaunchFacts& launch = known_.launch();
    refuse_ranks(type, from);
    if (key && *key != -1) {
      top_.honour(kProcesses, "ranks", *key,
                  flag && *flag != *key ? concat("the command line has ", *flag) : "");
    }
    switch (from) {
      case RanksFrom::kByFlag:
        if (key == -1) top_.agree(kProcesses, "left to --ranks");
        ranks_ = *flag;
        break;
      case RanksFrom::kByKey:
        ranks_ = *key;
        break;
      case RanksFrom::kByLauncher:
        ranks_ = launch.ranks;
        if (source_ == AccelerateSource::kFile) {
          set_ranks(concat("as many as ", launch.launcher, " has started"));
        }
        break;
      case RanksFrom::kByType:
        ranks_ = 1;
        set_ranks("distributed_type NO is one process");
        break;
      case RanksFrom::kByNobody:
        ranks_ = kUnknownRanks;
        break;
    }
    tell_processes(type);
  }

  /// The number is not in the file, or is -1 there.
  void set_ranks(const std::string& note) {
    if (top_.has(kProcesses)) {
      top_.honour(kProcesses, "ranks", ranks_, note);
    } else {
      top_.derive(kProcesses, "ranks", ranks_, note);
    }
  }

  void refuse_ranks(const DistributedType& type, RanksFrom from) const {
    const auto key = top_.integer(kProcesses);
    const LaunchFacts& launch = known_.launch();
    const bool one = is_one_process(type);
    if (key && *key < 1 && *key != -1) {
      top_.refuse(kProcesses, "is ", *key, "; it must be at least 1, or -1 to give --ranks");
    }
    if (one && key && *key > 1) {
      top_.refuse(kProcesses, "is ", *key, ", but distributed_type NO is one process; use 1, or ",
                  "distributed_type: FSDP or MULTI_GPU");
    }
    // A launcher of others takes no number from the file, and nobody has said who is right.
    if (from == RanksFrom::kByKey && launch.ranks > 0 && launch.ranks != *key) {
      top_.refuse(kProcesses, "is ", *key, ", but ", launch.launcher, " has started ", launch.ranks,
                  launch.ranks == 1 ? " process" : " processes",
                  "; start as many, or give --ranks ",
                  *key % launch.ranks == 0 ? *key : launch.ranks);
    }
    if (from == RanksFrom::kByLauncher && one && launch.ranks > 1) {
      top_.refuse(kType, "NO is one process, but ", launch.launcher, " has started ", launch.ranks,
                  "; use FSDP, MULTI_CPU or MULTI_GPU");
    }
    if (from == RanksFrom::kByNobody && source_ == AccelerateSource::kFile) {
      top_.refuse(kProcesses, key ? "is -1" : "is missing", "; set it, or give --ranks",
                  launch.launcher.empty() ? "" : ", or --processes to 'tessera launch'");
    }
  }

  /// Where `accelerate launch` would start other processes, or computes elsewhere.
  void tell_processes(const DistributedType& type) {
    const std::string_view name = type.name;
    const bool alone = known_.launch().launcher.empty() || known_.launch().launcher == kOwnLauncher;
    if (name == "MULTI_CPU" && alone && ranks_ > 1) {
      top_.differ(top_.has(kProcesses) ? kProcesses : kType,
                  concat("'accelerate launch' starts one process for MULTI_CPU, unless ",
                         "mpirun_hostfile is given; here there are ", ranks_, " ranks"),
                  true);
    }
    const bool on_gpus = name == "FSDP" || name == "DEEPSPEED" || name == "MULTI_GPU";
    if (on_gpus && top_.flag(kUseCpu).value_or(false)) {
      top_.differ(kUseCpu, concat("'accelerate launch' ignores the key with distributed_type ",
                                  name, " and runs on GPUs; here ranks compute on the CPU"));
    }
  }

  void read_device() {
    if (!top_.has(kUseCpu)) return;
    if (top_.flag(kUseCpu).value_or(false)) {
      top_.honour(kUseCpu, "device", "cpu");
    } else {
      top_.no_effect(kUseCpu, "--device tells where ranks compute");
    }
  }

  void read_small_sections() {
    if (const Node* node = top_.node("dynamo_config")) {
      const Section dynamo(translation_, path_, *node, dynamo_keys(),
                           {.name = "dynamo_config", .prefix = "dynamo_"});
    }
    if (const Node* node = top_.node("mpirun_config")) {
      const Section mpirun(translation_, path_, *node, mpirun_keys(),
                           {.name = "mpirun_config", .prefix = "mpirun_"});
    }
    for (const char* key : {"dynamo_config", "mpirun_config", "fsdp_config", "parallelism_config",
                            "deepspeed_config"}) {
      if (top_.has(key)) top_.agree(key, top_.node(key) != nullptr ? "see its keys" : "is empty");
    }
  }

  void read_fsdp(bool wanted) {
    const Node* fsdp_node = top_.node("fsdp_config");
    const Node* mesh_node = top_.node("parallelism_config");
    std::optional<Section> mesh;
    if (mesh_node != nullptr) {
      mesh.emplace(translation_, path_, *mesh_node, parallelism_keys(),
                   Section::Options{.name = "parallelism_config",
                                    .prefix = "parallelism_config_",
                                    .apart_from_prefix = true});
    }
    if (!wanted) {
      if (fsdp_node != nullptr) {
        Section(translation_, path_, *fsdp_node, fsdp_keys(),
                {.name = "fsdp_config", .prefix = "fsdp_"})
            .leave_unused("is read only with distributed_type: FSDP, as in Accelerate", true);
      }
      if (mesh) refuse_mesh(*mesh);
      return;
    }
    Section fsdp(translation_, path_, fsdp_node != nullptr ? *fsdp_node : empty_map(), fsdp_keys(),
                 {.name = "fsdp_config", .prefix = "fsdp_"});
    translate_fsdp(fsdp, mesh ? &*mesh : nullptr, ranks_, machines_);
  }

  void refuse_mesh(Section& mesh) {
    for (const char* key :
         {"parallelism_config_dp_shard_size", "parallelism_config_dp_replicate_size"}) {
      if (mesh.integer(key).value_or(1) != 1) {
        mesh.refuse(key,
                    "parallelism_config needs distributed_type: FSDP and fsdp_version: 2, in "
                    "Accelerate as well");
      }
    }
    mesh.leave_unused("an axis of one rank", false);
  }

  void read_deepspeed(bool wanted) {
    const Node* node = top_.node("deepspeed_config");
    Section section(translation_, path_, node != nullptr ? *node : empty_map(),
                    accelerate_deepspeed_keys(), {.name = "deepspeed_config"});
    if (!wanted) {
      section.leave_unused("is read only with distributed_type: DEEPSPEED, as in Accelerate", true);
      return;
    }
    if (section.has("deepspeed_config_file")) {
      follow(section);
    } else {
      read_stage(section);
      read_accumulation(section);
      read_clipping(section);
    }
  }

  void read_stage(Section& section) {
    if (const auto stage = section.integer("zero_stage")) {
      section.honour("zero_stage", "strategy", strategy_of_stage(*stage));
    } else {
      section.derive("zero_stage", "strategy", strategy_of_stage(2), "Accelerate's default is 2");
    }
  }

  void read_accumulation(Section& section) {
    const char* key = "gradient_accumulation_steps";
    if (const auto steps = section.integer(key)) {
      if (*steps < 1) section.refuse(key, "is ", *steps, "; it must be at least 1");
      section.honour(key, "accumulate", *steps);
    } else if (section.has(key)) {
      section.agree(key, concat("\"auto\" is --accumulate, ", known_.integer("accumulate")));
    }
  }

  void read_clipping(Section& section) {
    const char* key = "gradient_clipping";
    if (const auto norm = section.number(key)) {
      if (*norm < 0) section.refuse(key, "is ", *norm, "; it must be at least 0");
      section.honour(key, "clip_norm", *norm);
    } else if (section.has(key)) {
      section.honour(key, "clip_norm", 1.0);
    } else {
      section.derive(key, "clip_norm", 1.0, "Accelerate's default for DeepSpeed is 1.0");
    }
  }

  void follow(Section& section) {
    const char* key = "deepspeed_config_file";
    refuse_conflicts(section);
    std::string path = *section.text(key);
    const std::string found = beside(path_, path);
    if (found != path) {
      path = found;
      section.differ(
          key, concat("Accelerate looks for it from the current folder only; here it is ", path));
    }
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      section.refuse(key, "there is no file '", path, "'; give the path of DeepSpeed's JSON file");
    }
    section.agree(key, concat("is read: ", path));
    section.leave_unused("the DeepSpeed file decides", false);
    translate_deepspeed(read_document(path), ranks_, known_, translation_);
    followed_ = true;
  }

  /// Accelerate's own rule and words: two files must not say the same thing.
  void refuse_conflicts(Section& section) {
    std::vector<std::string> names;
    int line = 0;
    const auto collect = [&](Section& where, const char* key) {
      if (!where.has(key)) return;
      if (names.empty()) line = where.line(key);
      names.emplace_back(key);
    };
    for (const char* key :
         {"gradient_accumulation_steps", "gradient_clipping", "zero_stage",
          "offload_optimizer_device", "offload_param_device", "offload_param_nvme_path",
          "offload_optimizer_nvme_path", "zero3_save_16bit_model"}) {
      collect(section, key);
    }
    collect(top_, kPrecision);
    require(
        names.empty(), ErrorCode::kConfig, at_line(path_, line),
        "deepspeed_config.deepspeed_config_file: When using deepspeed_config_file, the following "
        "accelerate config variables will be ignored: [",
        joined(names), "]; remove them here and set them in ",
        section.text("deepspeed_config_file").value_or(""));
  }

  void read_precision(bool low_precision_reduction) {
    const auto precision = top_.text(kPrecision);
    if (!precision) return;
    if (*precision == "fp16" || *precision == "fp8") {
      if (top_.overridden(kPrecision, "precision", concat(*precision, " is not supported"))) return;
      top_.refuse(kPrecision, *precision, " is not supported; use bf16",
                  *precision == "fp16" ? ", which needs no loss scaling" : "");
    }
    if (top_.node(kPrecision)->scalar.is_boolean()) {
      top_.differ(kPrecision,
                  "Accelerate stops at a no without quotes, which YAML takes for false");
    }
    const bool bf16 = *precision == "bf16";
    top_.honour(kPrecision, "precision", bf16 ? "bf16" : "fp32");
    // FSDP and DeepSpeed reduce in the precision of the parameters, DDP in that of its fp32
    // masters.
    top_.honour(kPrecision, "reduce_dtype", bf16 && low_precision_reduction ? "bf16" : "fp32");
  }

  const std::string& path_;
  AccelerateSource source_;
  KnownSettings known_;
  ConfigTranslation& translation_;
  Section top_;
  std::int64_t ranks_ = 1;
  std::int64_t machines_ = 1;
  bool followed_ = false;
};

}  // namespace

// Accelerate looks from the current folder; files that lie together should work from anywhere.
std::string beside(const std::string& of, const std::string& named) {
  const auto other = std::filesystem::path(of).parent_path() / named;
  std::error_code error;
  const bool there =
      !std::filesystem::exists(named, error) && std::filesystem::exists(other, error);
  return there ? other.string() : named;
}

void translate_accelerate(const Document& document, AccelerateSource source,
                          const TranslationContext& context, ConfigTranslation& translation) {
  Accelerate(document, source, context, translation).translate();
}

}  // namespace tessera::foreign
