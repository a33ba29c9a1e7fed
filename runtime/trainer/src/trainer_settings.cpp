#include "tessera/trainer/trainer_settings.h"

#include <algorithm>
#include <limits>

#include "setting_rows.h"
#include "tessera/core/error.h"
#include "tessera/core/mesh.h"

namespace tessera {

// The values of the members' types; see bound_setting.h. The dtypes are those of computation.
constexpr auto choices_of(ReductionOrder) {
  return std::array{ReductionOrder::kRank, ReductionOrder::kHierarchical};
}
constexpr auto choices_of(Recompute) {
  return std::array{Recompute::kNone, Recompute::kSelective, Recompute::kFull};
}
constexpr auto choices_of(DType) {
  return std::array{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
}
constexpr auto choices_of(DeviceChoice) {
  return std::array{DeviceChoice::kAuto, DeviceChoice::kCpu, DeviceChoice::kCuda};
}
constexpr auto choices_of(GroupChoice) {
  return std::array{GroupChoice::kAuto, GroupChoice::kThread, GroupChoice::kNccl};
}
constexpr auto choices_of(SaveFailures) {
  return std::array{SaveFailures::kFail, SaveFailures::kTolerate};
}
constexpr auto choices_of(BindPolicy) {
  using enum BindPolicy;
  return std::array{kAuto, kCores, kNuma, kNone};
}
constexpr auto choices_of(AttentionBackend) {
  return std::array{AttentionBackend::kAuto, AttentionBackend::kOwn, AttentionBackend::kCudnn};
}
constexpr auto choices_of(ActivationOffload) {
  return std::array{ActivationOffload::kNone, ActivationOffload::kHost};
}
static void parse_into(std::string_view text, StageLayers& layers) {
  layers = parse_stage_layers(text);
}
static void parse_into(std::string_view text, PipelineSchedule& schedule) {
  schedule = parse_pipeline_schedule(text);
}
static void parse_into(std::string_view text, WrapPolicy& policy) {
  policy = parse_wrap_policy(text);
}
static void parse_into(std::string_view text, Offload& offload) { offload = parse_offload(text); }
static void parse_into(std::string_view text, StepRange& steps) { steps = parse_step_range(text); }

namespace {

using O = TrainerOptions;
using nlohmann::json;

constexpr double kMaxInt = std::numeric_limits<int>::max();
constexpr double kMaxPrefetch = 1024;
constexpr double kMaxThreads = 4096;

std::string strategy_help() {
  std::string text = "how the training state is spread over ranks:";
  for (const Strategy& strategy : strategies()) {
    text += "\n  " + strategy.name + ": " + strategy.summary;
  }
  return text;
}

void check_strategy(const json& value) { find_strategy(value.get<std::string>()); }
void check_trainable_strategy(const json& value) {
  if (!value.get<std::string>().empty()) check_strategy(value);
}
void check_axes(const json& value) { parse_axes(value.get<std::string>()); }
void check_offload_to_host(const json& value) {
  require(parse_offload(value.get<std::string>()).disk == 0.0, ErrorCode::kConfig,
          kNoGradientsOnDisk);
}
void check_cpu_list(const json& value) { parse_cpu_list(value.get<std::string>()); }

/// One state of the placement: the strategy's, unless it is given.
Row placement(const char* name, const std::string& what, AxisSet Placement::*state) {
  return {
      {.name = name,
       .help = concat("over which axes ", what, " are sharded: ", axis_choices(),
                      " [as the strategy has it]"),
       .check = check_axes},
      [state](const O& o) { return o.placement ? json(to_string((*o.placement).*state)) : json(); },
      [state](O& o, const json& value) {
        if (!o.placement) o.placement = placement_of(o);
        (*o.placement).*state = parse_axes(value.get<std::string>());
      }};
}

/// A text that is absent where it is empty.
template <auto... members>
Row text_row(const char* name, const char* help, void (*check)(const json&), MustAgree must_agree) {
  Row row = bound<members...>(name, help, {.must_agree = must_agree});
  if (check != nullptr) row.setting.check = check;
  row.setting.fallback = nullptr;
  row.read = [read = row.read](const O& o) {
    json value = read(o);
    return value.get<std::string>().empty() ? json() : value;
  };
  return row;
}

template <auto... members>
Row path_row(const char* name, const char* help, MustAgree must_agree) {
  return text_row<members...>(name, help, check_path, must_agree);
}

std::vector<Row> sharding_rows() {
  return in_group(
      "Sharding",
      {
          bound<&O::ranks>(
              "ranks",
              "ranks that train together: threads of this process, or those that a launcher starts",
              {.minimum = 1, .maximum = kMaxRanks}),
          bound<&O::strategy>("strategy", strategy_help(), {.check = check_strategy}),
          bound<&O::trainable_strategy>(
              "trainable_strategy",
              "another strategy for what is trained, beside frozen parameters, whose strategy is "
              "`strategy` then [with adapters zero1, else the same]",
              {.check = check_trainable_strategy}),
          bound<&O::replicas>(
              "replicas",
              "copies of the sharded state; ranks / replicas share one (0: as the strategy has it: "
              "hybrids one per node, on one node 2 or as few as divide the ranks, others 1)",
              {.minimum = 0, .maximum = kMaxRanks}),
          bound<&O::ranks_per_node>(
              "ranks_per_node",
              "ranks of a node, by which hybrids choose their replicas (0: as the launcher has it, "
              "else all ranks on one node)",
              {.minimum = 0, .maximum = kMaxRanks, .must_agree = MustAgree::kNone}),
          placement("parameter_placement", "parameters", &Placement::parameter),
          placement("gradient_placement", "gradients", &Placement::gradient),
          placement("optimizer_placement", "optimizer states", &Placement::optimizer),
          bound<&O::reshard_after_forward>(
              "reshard_after_forward",
              "release gathered parameters after forward [as the strategy has it]"),
          bound<&O::reduction_order>(
              "reduction_order",
              "how gradients are added: by rank (same bits for every strategy), or inside replicas "
              "first (fewer bytes between them)"),
          bound<&O::wrap>("wrap",
                          "units, which are gathered together: layer, size:N (at least N "
                          "parameters) or none (all)"),
          bound<&O::offload_optimizer>(
              "offload_optimizer",
              "where optimizer state and fp32 master weights are: none (on the device), host (in "
              "the host's memory, and updated there), disk (in a file in `offload_path`, and "
              "updated on the host), or host:SHARE or disk:SHARE (those of a share of the units)"),
          bound<&O::offload_parameters>(
              "offload_parameters",
              "where the parameters are that layers do not read just now: none (on the device), "
              "host (in the host's memory, with the optimizer state of their units), disk (in a "
              "file "
              "in `offload_path`, with that state on the host at least), or host:SHARE or "
              "disk:SHARE"),
          bound<&O::offload_gradients>(
              "offload_gradients",
              "where reduced gradients are between micro-steps and until the optimizer step: none "
              "(on the device), host (in the host's memory) or host:SHARE",
              {.check = check_offload_to_host}),
          bound<&O::offload_activations>(
              "offload_activations",
              "where the inputs of recomputed layers wait for backward: none (on the device) or "
              "host (in the host's memory, but for the last ones); needs `policy.recompute` full"),
          path_row<&O::offload_path>(
              "offload_path",
              "a folder on the disk for what is offloaded to disk; each rank has a file there that "
              "no listing shows and that goes with the process",
              MustAgree::kNone),
          bound<&O::policy, &StepPolicy::prefetch_host>(
              "prefetch_host",
              "shards copied from the host ahead of their all-gather, gradients ahead of what is "
              "added to them, and layers' inputs ahead of their backward",
              {.minimum = 0, .maximum = kMaxPrefetch}),
          bound<&O::policy, &StepPolicy::prefetch_disk>(
              "prefetch_disk",
              "units read from disk ahead of the one that is copied to the device, or updated and "
              "written back",
              {.minimum = 0, .maximum = kMaxPrefetch}),
          bound<&O::policy, &StepPolicy::prefetch_forward>("prefetch_forward",
                                                           "units gathered ahead of use in forward",
                                                           {.minimum = 0, .maximum = kMaxPrefetch}),
          bound<&O::policy, &StepPolicy::prefetch_backward>(
              "prefetch_backward",
              "units gathered ahead of use, and reductions that may lag, in "
              "backward",
              {.minimum = 0, .maximum = kMaxPrefetch}),
      });
}

std::vector<Row> pipeline_rows() {
  using P = PipelineSplit;
  return in_group(
      "Pipeline",
      {
          bound<&O::pipeline, &P::ranks>(
              "pipeline",
              "pipeline ranks, which divide the layers into stages and pass micro-steps on to one "
              "another; each is ranks / pipeline of the ranks, over which `strategy` spreads its "
              "training state",
              {.minimum = 1, .maximum = kMaxRanks}),
          text_row<&O::pipeline, &P::schedule>(
              "pipeline_schedule",
              "in which order stages pass micro-steps: 1f1b (a backward after each forward once "
              "the pipeline is full), interleaved (the same with several stages on each pipeline "
              "rank), gpipe (all forwards first, which keeps more activations), zb-h1 (1f1b, with "
              "weight gradients where it would wait), zb-v (the same with the first and the last "
              "stage on one rank), or a .csv file with a row of passes for each pipeline rank, in "
              "PyTorch's compute_only form [1f1b; with virtual_stages interleaved]",
              nullptr, MustAgree::kAll),
          bound<&O::pipeline, &P::virtual_stages>(
              "virtual_stages", "stages on each pipeline rank [0: 1; of interleaved and zb-v 2]",
              {.minimum = 0, .maximum = kMaxRanks}),
          text_row<&O::pipeline, &P::layers>(
              "pipeline_split",
              "layers of each stage, like 4,5,2; the embedding and the head are layers [such that "
              "the slowest stage is as fast as can be]",
              nullptr, MustAgree::kAll),
          bound<&O::pipeline, &P::stage_blocks>(
              "layers_per_virtual_stage",
              "blocks of each stage, beside the embedding and the head, which decides "
              "`virtual_stages` and `pipeline.layers`, as Megatron-LM's "
              "--num-layers-per-virtual-pipeline-stage",
              {.minimum = 1, .maximum = kMaxInt}),
          bound<&O::pipeline, &P::first_blocks>(
              "first_rank_layers",
              "blocks of the first pipeline rank, beside the embedding; the others have equally "
              "many each, as Megatron-LM's --decoder-first-pipeline-num-layers",
              {.minimum = 1, .maximum = kMaxInt}),
          bound<&O::pipeline, &P::last_blocks>(
              "last_rank_layers", "the same of the last pipeline rank, beside the head",
              {.minimum = 1, .maximum = kMaxInt}),
          bound<&O::pipeline, &P::prefetch>(
              "pipeline_prefetch",
              "messages that a stage may receive ahead of the one it uses, and have on their way",
              {.minimum = 0, .maximum = kMaxPrefetch}),
          bound<&O::pipeline, &P::tied_apart>(
              "tied_apart",
              "add up the gradients of tied parameters apart for each layer, and then once, as "
              "stages do: gives one process the bits of a pipeline [with several stages true]"),
      });
}

std::vector<Row> step_rows() {
  return in_group(
      "Step",
      {
          bound<&O::steps>("steps", "optimizer steps", {.minimum = 1}),
          bound<&O::micro_batch>("micro_batch", "samples per micro-step and rank",
                                 {.minimum = 1, .maximum = kMaxInt}),
          bound<&O::accumulate>("accumulate", "micro-steps per step",
                                {.minimum = 1, .maximum = kMaxAccumulate}),
          bound<&O::accumulate_unsharded>(
              "accumulate_unsharded",
              "keep unsharded gradients until the last micro-step and reduce them once"),
          bound<&O::policy, &StepPolicy::recompute>(
              "recompute",
              "activations to recompute in backward: none, selective "
              "(attention and GELU) or full"),
          precision_row(),
          bound<&O::reduce_dtype>(
              "reduce_dtype", "dtype in which gradients are sent: fp32, or that of the parameters"),
          bound<&O::seed>("seed", "seed of initialisation, dropout and the order of data",
                          {.minimum = 0}),
      });
}

std::vector<Row> evaluation_rows() {
  return in_group(
      "Evaluation",
      {bound<&O::evaluate_every>(
           "eval_every", "steps between evaluations; 0: one after the last step", {.minimum = 0}),
       bound<&O::patience>("patience",
                           "stop after so many evaluations in a row that are no better than the "
                           "best before them; 0: run to the end",
                           {.minimum = 0}),
       bound<&O::min_improvement>(
           "min_improvement",
           "by more than this the loss must be lower than the best before, for `patience` to count "
           "anew",
           {.minimum = 0})});
}

std::vector<Row> checkpoint_rows() {
  using C = CheckpointOptions;
  return in_group(
      "Checkpoints",
      {
          path_row<&O::checkpoints, &C::folder>(
              "save",
              "write checkpoints into this folder: step_N, and latest, which names the newest",
              MustAgree::kAll),
          bound<&O::checkpoints, &C::every>("save_every",
                                            "steps between checkpoints; 0: one after the last step",
                                            {.minimum = 0}),
          bound<&O::checkpoints, &C::total_limit>(
              "save_total_limit",
              "keep the newest so many checkpoints; 0: all. The one of `checkpoints.save_best` is "
              "among them, "
              "or kept besides",
              {.minimum = 0}),
          bound<&O::checkpoints, &C::save_best>(
              "save_best",
              "write a checkpoint after each evaluation whose loss is the lowest so far; the file "
              "best in `checkpoints.folder` names it"),
          bound<&O::checkpoints, &C::asynchronous>(
              "save_async",
              "go on with the next step while a checkpoint's files are written, from a copy of the "
              "state in host memory"),
          bound<&O::checkpoints, &C::failures>(
              "save_failures", "what a checkpoint that cannot be written does to the run"),
          path_row<&O::checkpoints, &C::resume>(
              "resume",
              "go on from a checkpoint, at any number of ranks and with any strategy: its folder, "
              "latest (the newest in `checkpoints.folder`), auto (that, if there is one) or best "
              "(the "
              "best in `checkpoints.folder`)",
              MustAgree::kAll),
          bound<&O::checkpoints, &C::allow_other_data>(
              "allow_other_data",
              "resume with other data, tokenizer or seed than the checkpoint's"),
          bound<&O::checkpoints, &C::allow_other_optimizer>(
              "allow_other_optimizer",
              "resume with another optimizer or other hyperparameters than the checkpoint's"),
          bound<&O::checkpoints, &C::allow_other_model>(
              "allow_other_model",
              "resume with another model than the checkpoint's whose parameters have the same "
              "names "
              "and shapes"),
          bound<&O::stop_after>(
              "stop_after",
              "stop after so many steps of this run, though the learning rate's schedule counts to "
              "`steps`; 0: run to the end",
              {.minimum = 0}),
      });
}

std::vector<Row> machine_rows() {
  return in_group(
      "Machine",
      {
          bound<&O::device>("device", "where ranks compute; auto: a GPU if there is one"),
          bound<&O::group>(
              "group",
              "process group of the ranks of one process: nccl if each has a GPU of its own, "
              "thread if they share GPUs or are on the CPU; auto: as there are GPUs"),
          bound<&O::deterministic_collectives>(
              "deterministic_collectives",
              "NCCL adds in rank order, for the bits of every other group, but slower"),
          bound<&O::attention>(
              "attention",
              "attention kernels on a GPU; auto: cuDNN's where it fits and our own "
              "elsewhere, with a note; cudnn: cuDNN's or an error"),
          bound<&O::deterministic_attention>(
              "deterministic_attention",
              "cuDNN's attention gives the same bits every time; that takes memory that "
              "grows with the square of the length"),
          // Processes compare what is in it.
          path_row<&O::gemm_table>(
              "gemm_table",
              "how to run GEMMs on this GPU: a file that tessera calibrate has written [as "
              "cuBLASLt's heuristic says]",
              MustAgree::kNone),
          bound<&O::optimizer_blocks>(
              "optimizer_blocks",
              "with `overlap_steps` on a GPU: thread blocks of the optimizer that run at once, "
              "behind the kernels of the next forward pass, such as 64; 0: all, before them",
              {.minimum = 0, .maximum = 65535}),
          bound<&O::cuda_graph>("cuda_graph",
                                "replay steps as a CUDA graph where that is possible"),
          // On the CPU they decide how GEMMs split their sums, and so the bits.
          bound<&O::threads_per_rank>(
              "threads_per_rank",
              "threads of a rank's kernels (0: the cores that this process may "
              "use, or those of `bind_core_list`, divided by the ranks)",
              {.minimum = 0, .maximum = kMaxThreads, .must_agree = MustAgree::kOnCpus}),
          bound<&O::bind>(
              "bind",
              "run each rank and its threads on cores of its own (cores), on the NUMA node of its "
              "GPU or its share of the nodes (numa), or wherever there is time (none); auto: numa, "
              "or cores where ranks on the CPUs of one node get equally many, unless the process "
              "was started on some of the CPUs",
              {.must_agree = MustAgree::kNone}),
          text_row<&O::bind_core_list>(
              "bind_core_list",
              "ranks divide these CPUs only, like 0-3,8-11, numbered as taskset and numactl do",
              check_cpu_list, MustAgree::kNone),
          bound<&O::memory_limit_bytes>(
              "memory_limit",
              "memory of one rank, like 4GiB; a run that is predicted to need more is "
              "refused (0: what the machine has)",
              {.type = SettingType::kBytes, .must_agree = MustAgree::kNone}),
          bound<&O::timeout>(
              "timeout",
              "seconds that a rank waits for its peers; in a step that is replayed as a CUDA "
              "graph, in all",
              {.minimum = 0.001, .maximum = 1e6, .must_agree = MustAgree::kNone}),
          bound<&O::check_collectives>("check_collectives",
                                       "compare every collective over all ranks before it runs"),
          bound<&O::time_actions>("time_actions",
                                  "time the actions of a step, to measure exposed "
                                  "communication; steps are then no CUDA graphs "
                                  "[true where they are none anyway]"),
          path_row<&O::trace, &TraceOptions::file>(
              "trace",
              "write a timeline of some steps here, for https://ui.perfetto.dev: a row per rank "
              "and lane, an arrow per dependency, memory, bytes in flight; steps are then no CUDA "
              "graphs",
              MustAgree::kAll),
          bound<&O::trace, &TraceOptions::steps>("trace_steps",
                                                 "the steps of `trace.file`, counted from 1, like "
                                                 "3-5 or 7; of an evaluation its batches "
                                                 "[the third to the fifth of the run]"),
          bound<&O::overlap_steps>(
              "overlap_steps",
              "begin each step before the last one's results are read, and run the optimizer "
              "beside its forward pass [true where steps are replayed as a CUDA graph]"),
          path_row<&O::dump_folder>(
              "dump_folder",
              "where a run that fails, or gets SIGQUIT, writes what its ranks were doing, for "
              "tessera inspect-dump [the folder of `log`, or the current one]",
              MustAgree::kNone),
          bound<&O::allow_non_finite>("allow_non_finite", "go on when the loss is nan or infinite"),
          bound<&O::hash_parameters>(
              "parameters_hash",
              "after the last step gather the parameters once more, for their SHA-256"),
      });
}

}  // namespace

const std::vector<BoundSetting<TrainerOptions>>& trainer_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all;
    for (const auto& part :
         {sharding_rows(), pipeline_rows(), step_rows(), fp8_rows(), loss_scale_rows(),
          optimizer_rows(), evaluation_rows(), checkpoint_rows(), machine_rows()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return rows;
}

std::vector<Setting> trainer_settings() { return settings_of(trainer_rows()); }

std::vector<Setting> output_settings() {
  const auto path = [](const char* name, const char* help) {
    return Setting{.name = name, .help = help, .check = check_path};
  };
  return in_group("Output", MustAgree::kNone,
                  {path("log", "write a JSON object per line here: the run, each step, a summary"),
                   path("csv", "write a table of the steps here"),
                   path("tensorboard", "write an event file for TensorBoard in this folder")});
}

Setting state_dict_setting() {
  return {.name = "state_dict_type",
          .fallback = "sharded",
          .help =
              "sharded: every rank writes its part of a checkpoint, which any number of ranks can "
              "read; full: so, and the trained model as one Hugging Face folder, too, "
              "step_N_hugging_face in `checkpoints.folder`, at the end of the run",
          .group = "Checkpoints",
          .choices = {"sharded", "full"}};
}

TrainerOptions trainer_options(const Settings& settings) {
  check_typed_fp8(settings);
  return resolved(options_of(trainer_rows(), settings));
}

void set_effective(Settings& settings, const TrainerOptions& resolved) {
  const TrainerOptions given = options_of(trainer_rows(), settings);
  for (const Row& row : trainer_rows()) {
    const json value = row.read(resolved);
    const bool is_new = settings.is_null(row.setting.name) && !value.is_null();
    if (is_new || value != row.read(given)) settings.set_effective(row.setting.name, value);
  }
}

}  // namespace tessera
