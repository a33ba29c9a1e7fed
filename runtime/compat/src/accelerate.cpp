#include "accelerate.h"

#include <algorithm>
#include <filesystem>

#include "accelerate_fp8.h"
#include "deepspeed.h"
#include "keys.h"
#include "known_settings.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera::compat {
namespace {

constexpr const char* kType = "distributed_type";
constexpr const char* kMegatron = "MEGATRON_LM";
constexpr const char* kMegatronSection = "megatron_lm_config";
constexpr const char* kPrecision = "mixed_precision";
constexpr const char* kProcesses = "num_processes";
constexpr const char* kUseCpu = "use_cpu";

class Accelerate {
 public:
  Accelerate(const Document& document, AccelerateSource source, const AutoValues& autos,
             const TranslationContext& context, ConfigTranslation& translation)
      : path_(document.path),
        source_(source),
        known_(context),
        translation_(translation),
        top_(translation, path_, document.root, table_of("accelerate"), &known_),
        autos_(autos) {}

  void translate() {
    attempt([this] { read_type(); });
    attempt([this] { read_ranks(*type_); });
    attempt([this] { machines_ = translate_machines(top_, path_, ranks_, known_.launch()); });
    count_nodes();
    if (top_.has("ipex_config")) {
      top_.differ("ipex_config", "Accelerate 1.15 refuses the key, which it knew before");
    }
    top_.pass_on("debug", "check_collectives");
    attempt([this] { read_affinity(); });
    read_device();
    read_small_sections();
    const bool fsdp = is_type("FSDP");
    const bool deepspeed = is_type("DEEPSPEED");
    const bool megatron = is_type(kMegatron);
    if (fsdp || deepspeed) top_.agree(kType, fsdp ? "see fsdp_config" : "see deepspeed_config");
    if (megatron) top_.agree(kType, "see megatron_lm_config");
    attempt([&] { read_fsdp(fsdp); });
    attempt([&] { read_deepspeed(deepspeed); });
    attempt([&] { read_megatron(megatron); });
    attempt([&] {
      if (!followed_) read_precision(fsdp || deepspeed);
    });
    read_fp8();
  }

 private:
  static const DistributedType* find_type(const std::string& name) {
    const auto& types = distributed_types();
    const auto found = std::find_if(types.begin(), types.end(),
                                    [&](const DistributedType& type) { return type.name == name; });
    return found == types.end() ? nullptr : &*found;
  }

  static std::vector<std::string> type_names() {
    std::vector<std::string> names;
    for (const DistributedType& known : distributed_types()) {
      if (known.refusal == nullptr) names.emplace_back(known.name);
    }
    return names;
  }

  /// Sets type_. Where the key is refused, to the type that is nearest to what the file asks for:
  /// the other keys are judged by that.
  void read_type() {
    const auto name = top_.text(kType);
    static const DistributedType kUntold{"", nullptr, nullptr};
    if (!name && source_ == AccelerateSource::kEnvironment) {
      type_ = &kUntold;
      return;
    }
    const DistributedType* found = name ? find_type(upper(*name)) : nullptr;
    if (found != nullptr && found->refusal == nullptr) {
      type_ = found;
      if (*name != found->name) {
        top_.differ(kType, concat("Accelerate refuses it unless it is spelt ", found->name));
      }
      return;
    }
    type_ = find_type(nearest_type(name.value_or("")));
    const std::vector<ConfigChange> change{top_.with(kType, type_->name)};
    if (!name) {
      top_.refuse_for(change, kType, "is missing, which Accelerate refuses; add distributed_type: ",
                      "FSDP, DEEPSPEED, MEGATRON_LM, MULTI_GPU, MULTI_CPU or NO");
    }
    if (found == nullptr) top_.refuse_for(change, kType, unknown_value(*name, type_names()));
    top_.refuse_for(change, kType, "'", *name, "': ", found->refusal);
  }

  std::string nearest_type(const std::string& name) const {
    const std::string near = near_word(upper(name), type_names());
    if (!near.empty()) return near;
    if (top_.node("fsdp_config") != nullptr) return "FSDP";
    if (top_.node("deepspeed_config") != nullptr) return "DEEPSPEED";
    if (top_.node(kMegatronSection) != nullptr) return kMegatron;
    if (top_.integer(kProcesses).value_or(1) == 1) return "NO";
    return top_.flag(kUseCpu).value_or(false) ? "MULTI_CPU" : "MULTI_GPU";
  }

  /// The source of the number of ranks: the first of these that says anything.
  enum class RanksFrom : std::uint8_t { kByFlag, kByKey, kByLauncher, kByType, kByNobody };

  bool is_type(std::string_view name) const { return name == type_->name; }

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
  void set_ranks(const std::string& note) { top_.set(kProcesses, "ranks", ranks_, note, note); }

  void refuse_ranks(const DistributedType& type, RanksFrom from) {
    const auto key = top_.integer(kProcesses);
    const LaunchFacts& launch = known_.launch();
    const bool one = is_one_process(type);
    const std::vector<ConfigChange> one_each{top_.with(kProcesses, fewest_ranks())};
    if (key && *key < 1 && *key != -1) {
      top_.refuse_for(one_each, kProcesses, "is ", *key,
                      "; it must be at least 1, or -1 to give --ranks");
    }
    if (key && *key > kMaxRanks) {
      top_.refuse_for(one_each, kProcesses, "is ", *key, "; it must be at most ", kMaxRanks);
    }
    if (one && key && *key > 1) {
      top_.refuse_for({top_.with(kProcesses, 1)}, kProcesses, "is ", *key,
                      ", but distributed_type NO is one process; use 1, or ",
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
      top_.refuse_for(one_each, kProcesses, key ? "is -1" : "is missing",
                      "; set it, or give --ranks",
                      launch.launcher.empty() ? "" : ", or --processes to 'tessera launch'");
    }
  }

  /// Where neither the file nor a launcher says how many machines there are, --ranks-per-node does.
  void count_nodes() {
    constexpr const char* kPerNode = "ranks_per_node";
    const bool told = known_.launch().machines > 0 || top_.has("num_machines");
    const std::int64_t per_node = known_.has(kPerNode) ? known_.integer(kPerNode) : 0;
    if (told || per_node == 0 || ranks_ <= per_node || ranks_ % per_node != 0) return;
    machines_ = ranks_ / per_node;
  }

  /// One for each machine.
  std::int64_t fewest_ranks() const {
    return is_one_process(*type_)
               ? 1
               : std::max<std::int64_t>(1, top_.integer("num_machines").value_or(1));
  }

  /// Where `accelerate launch` would start other processes, or computes elsewhere.
  void tell_processes(const DistributedType& type) {
    const std::string_view name = type.name;
    const bool alone = known_.launch().launcher.empty() || known_.launch().launcher == kOwnLauncher;
    if (name == "MULTI_CPU" && alone && ranks_ > 1) {
      top_.differ(top_.has(kProcesses) ? kProcesses : kType,
                  concat("'accelerate launch' starts one process for MULTI_CPU, unless ",
                         "mpirun_hostfile is given; here there are ", ranks_, " ranks"),
                  Told::kByExplain);
    }
    const bool on_gpus =
        name == "FSDP" || name == "DEEPSPEED" || name == kMegatron || name == "MULTI_GPU";
    if (on_gpus && top_.flag(kUseCpu).value_or(false)) {
      top_.differ(kUseCpu, concat("'accelerate launch' ignores the key with distributed_type ",
                                  name, " and runs on GPUs; here ranks compute on the CPU"));
    }
  }

  /// Its launcher reads the flag and the variable, but not the key.
  void read_affinity() {
    const char* key = "enable_cpu_affinity";
    if (!top_.has(key)) return;
    if (!top_.flag(key).value_or(false)) {
      top_.agree(key, "asks for nothing");
      return;
    }
    top_.honour(key, "bind", "numa");
    if (source_ == AccelerateSource::kFile) {
      top_.differ(key, "'accelerate launch' ignores the key in a file; here it takes effect",
                  Told::kByExplain);
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
    top_.below("dynamo_config");
    Section mpirun = top_.below("mpirun_config");
    if (!is_type("MULTI_CPU") && !is_type("NO")) {
      mpirun.switch_off("is read only with distributed_type: MULTI_CPU, as in Accelerate");
    }
    for (const char* key : {"dynamo_config", "mpirun_config", "fsdp_config", "parallelism_config",
                            "deepspeed_config", kMegatronSection, "fp8_config"}) {
      top_.open(key);
    }
  }

  void read_fsdp(bool wanted) {
    std::optional<Section> mesh;
    if (top_.node("parallelism_config") != nullptr) mesh.emplace(top_.below("parallelism_config"));
    Section fsdp = top_.below("fsdp_config");
    if (!wanted) {
      fsdp.switch_off("is read only with distributed_type: FSDP, as in Accelerate");
      if (type_->strategy != nullptr) top_.honour(kType, "strategy", type_->strategy);
      if (mesh) read_replicas(*mesh);
      return;
    }
    translate_fsdp(fsdp, mesh ? &*mesh : nullptr, ranks_, machines_, known_);
  }

  /// Without FSDP there is nothing to shard over, but DDP is a mesh of replicas.
  void read_replicas(Section& mesh) {
    const std::int64_t replicas = mesh.integer(kReplicate).value_or(1);
    const bool ddp = is_type("MULTI_GPU") || is_type("MULTI_CPU");
    for (const char* key : {kShard, kReplicate}) {
      const std::int64_t size = mesh.integer(key).value_or(1);
      attempt([&] {
        if (size > 1 && !(ddp && key == kReplicate)) {
          mesh.refuse(key, "is ", size, ", which needs distributed_type: FSDP and fsdp_version: 2");
        }
      });
    }
    const std::int64_t stages = mesh.integer(kStages).value_or(1);
    attempt([&] {
      if (stages > 1 && !ddp) {
        mesh.refuse(kStages, "is ", stages, ", which needs distributed_type: FSDP, MULTI_GPU or ",
                    "MULTI_CPU; with MEGATRON_LM set megatron_lm_pp_degree, else give --pipeline");
      }
      translate_stages(mesh, kStages, ranks_);
    });
    if (replicas > 1) mesh.agree(kReplicate, "every rank is a replica");
    mesh.leave_unused("an axis of one rank", Told::kByExplain);
    const bool known = ranks_ != kUnknownRanks && !is_axis_refused(mesh);
    if (replicas > 1 && known && replicas != ranks_ / stages) {
      mesh.refuse(kReplicate, "is ", replicas, ", but there are ", ranks_, " ranks",
                  stages > 1 ? concat(" in ", stages, " stages") : "",
                  "; make them equal, or use distributed_type: FSDP to shard in each replica");
    }
  }

  void read_deepspeed(bool wanted) {
    Section section = top_.below("deepspeed_config");
    if (!wanted) {
      section.switch_off("is read only with distributed_type: DEEPSPEED, as in Accelerate");
      return;
    }
    if (section.has("deepspeed_config_file")) {
      follow(section);
    } else {
      translate_deepspeed_section(section, known_);
    }
  }

  void read_megatron(bool wanted) {
    Section section = top_.below(kMegatronSection);
    if (wanted) {
      translate_megatron_section(section, ranks_, known_);
    } else {
      section.switch_off("is read only with distributed_type: MEGATRON_LM, as in Accelerate");
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
      section.refuse(key, "there is no file ", compat::quoted(path),
                     "; give the path of DeepSpeed's JSON file");
    }
    section.agree(key, concat("is read: ", path));
    section.leave_unused("the DeepSpeed file decides", Told::kByExplain);
    translate_deepspeed(
        read_named(section, key, path),
        ThroughAccelerate{.ranks = ranks_ == kUnknownRanks ? known_.integer("ranks") : ranks_,
                          .autos = autos_},
        known_, translation_);
    followed_ = true;
  }

  static Document read_named(Section& section, const char* key, const std::string& path) {
    try {
      return read_document(path);
    } catch (const Error& error) {
      section.refuse(key, error.what());
    }
  }

  /// Accelerate's own rule and words: two files must not say the same thing.
  void refuse_conflicts(Section& section) const {
    std::vector<std::string> names;
    std::vector<ConfigChange> changes;
    const auto collect = [&](const Section& where, const char* key) {
      if (!where.has(key)) return;
      names.emplace_back(key);
      changes.push_back({.key = where.with(key, nullptr).key});
    };
    for (const char* key :
         {"gradient_accumulation_steps", "gradient_clipping", "zero_stage",
          "offload_optimizer_device", "offload_param_device", "offload_param_nvme_path",
          "offload_optimizer_nvme_path", "zero3_save_16bit_model"}) {
      collect(section, key);
    }
    collect(top_, kPrecision);
    const char* file = "deepspeed_config_file";
    if (names.empty()) return;
    section.refuse_for(
        changes, file,
        "When using deepspeed_config_file, the following accelerate config variables "
        "will be ignored: [",
        joined(names), "]; remove them here and set them in ", section.text(file).value_or(""));
  }

  void read_precision(bool low_precision_reduction) {
    const auto precision = top_.text(kPrecision);
    if (!precision) return read_old_precision(low_precision_reduction);
    if (top_.has("fp16")) top_.no_effect("fp16", "mixed_precision is there, too");
    if (top_.node(kPrecision)->scalar.is_boolean()) {
      top_.differ(kPrecision,
                  "Accelerate stops at a no without quotes, which YAML takes for false");
    }
    const bool narrow = *precision != "no";
    top_.honour(kPrecision, "precision", narrow ? *precision : "fp32");
    std::string chosen = known_.override_text("precision").value_or(*precision);
    if (chosen == "fp8") chosen = "bf16";  // of parameters
    // FSDP and DeepSpeed reduce in the precision of the parameters, DDP in that of its fp32
    // masters, Megatron-LM in fp16 or fp32.
    const bool low = low_precision_reduction || (is_type(kMegatron) && chosen == "fp16");
    top_.honour(kPrecision, "reduce_dtype", narrow && low ? chosen : "fp32");
    if (*precision != "fp16" || chosen != "fp16") return;
    if (is_type("DEEPSPEED")) {
      top_.honour(kPrecision, "loss_scale_dialect", "deepspeed",
                  "DeepSpeed's rules; elsewhere Accelerate has torch's");
    } else if (is_type(kMegatron)) {
      top_.honour(kPrecision, "loss_scale_dialect", "megatron", "Megatron-LM's rules");
    }
  }

  void read_fp8() {
    Section section = top_.below("fp8_config");
    translate_fp8_section(section, top_.text(kPrecision).value_or("no"), known_);
  }

  /// The switch of files from before mixed_precision.
  void read_old_precision(bool low_precision_reduction) {
    const auto fp16 = top_.flag("fp16");
    if (!fp16) return;
    if (!*fp16) return top_.agree("fp16", "fp16 is off");
    top_.honour("fp16", "precision", "fp16", "is mixed_precision now");
    top_.honour(
        "fp16", "reduce_dtype",
        low_precision_reduction ? known_.override_text("precision").value_or("fp16") : "fp32");
  }

  const std::string& path_;
  AccelerateSource source_;
  KnownSettings known_;
  ConfigTranslation& translation_;
  Section top_;
  const AutoValues& autos_;
  const DistributedType* type_ = nullptr;
  std::int64_t ranks_ = kUnknownRanks;
  std::int64_t machines_ = 1;
  bool followed_ = false;
};

}  // namespace

void translate_accelerate(const Document& document, AccelerateSource source,
                          const AutoValues& autos, const TranslationContext& context,
                          ConfigTranslation& translation) {
  Accelerate(document, source, autos, context, translation).translate();
}

}  // namespace tessera::compat
