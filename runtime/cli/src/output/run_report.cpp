#include "output/run_report.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <ostream>

#include "output/terminal.h"
#include "output/text_output.h"
#include "tessera/core/error.h"
#include "tessera/lab/measurement_noise.h"
#include "tessera/sharding/operation.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/rank_device.h"
#include "tessera/trainer/setting.h"

namespace tessera::cli {
namespace {

constexpr int kIndent = 10;  // behind "schedule  "

/// Copies between tiers; those of a disk are told where there are any.
struct TierCopy {
  const char* name;
  std::int64_t Traffic::*bytes;
  bool is_of_disk;
};
constexpr TierCopy kTierCopies[] = {{"  device to host", &Traffic::to_host_bytes, false},
                                    {"  host to device", &Traffic::to_device_bytes, false},
                                    {"  host to disk", &Traffic::to_disk_bytes, true},
                                    {"  disk to host", &Traffic::from_disk_bytes, true}};

std::string in_words(std::string_view key) {
  std::string text(key);
  std::ranges::replace(text, '_', ' ');
  return text;
}

/// The bytes of one rank on each tier.
struct MemoryOfRank {
  const MemoryPeak& device;
  std::int64_t host = 0, disk = 0;
};

/// Calls `row(name, bytes of a, of b)` for each category that either uses, the total, and tiers.
template <typename Row>
void for_each_memory(const MemoryOfRank& a, const MemoryOfRank& b, const Row& row) {
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const std::int64_t first = a.device.by_category[category];
    const std::int64_t second = b.device.by_category[category];
    if (first != 0 || second != 0) row("  " + in_words(to_string(category)), first, second);
  }
  row("  peak of the sum", a.device.total, b.device.total);
  if (a.host > 0 || b.host > 0) row("  on the host", a.host, b.host);
  if (a.disk > 0) row("  on disk", a.disk, b.disk);
}

/// Calls `row(name, kind)` for each kind of collective that either has.
template <typename Row>
void for_each_collective(const Traffic& a, const Traffic& b, const Row& row) {
  for (int i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (a.calls_of(kind) == 0 && b.calls_of(kind) == 0) continue;
    row("  " + in_words(to_string(kind)), kind);
  }
}

/// Calls `row(name, bytes of a, of b)` for copies between tiers, if either has any.
template <typename Row>
void for_each_copy(const Traffic& a, const Traffic& b, const Row& row) {
  if (!moves_between_tiers(a) && !moves_between_tiers(b)) return;
  for (const auto& [name, bytes, is_of_disk] : kTierCopies) {
    if (!is_of_disk || a.*bytes > 0 || b.*bytes > 0) row(name, a.*bytes, b.*bytes);
  }
}

std::string verdict(std::int64_t predicted, std::int64_t measured) {
  if (predicted == measured) return "equal";
  const std::int64_t more = measured - predicted;
  return (more > 0 ? "+" : "") + with_commas(more) + " B";
}

/// The stages of a pipeline rank, as rows of tables tell them.
struct StagesOfRank {
  std::string stages;       ///< "0", "0, 4"
  int layers = 0;           ///< how many
  std::string layer_names;  ///< "embedding to h.3, h.8 to h.11"
};

StagesOfRank stages_of_rank(const TrainingPlan& plan, std::size_t pipeline_rank) {
  const Schedule& schedule = plan.step.ranks[pipeline_rank];
  const auto name = [&](int layer) {
    return schedule.layers[static_cast<std::size_t>(layer)].name;
  };
  StagesOfRank own;
  for (const int stage : schedule.pipeline.stages_of_rank(static_cast<int>(pipeline_rank),
                                                          schedule.pipeline_ranks())) {
    const LayerRange range = schedule.layers_of(stage);
    const std::string_view separator = own.stages.empty() ? "" : ", ";
    own.stages += concat(separator, stage);
    own.layers += range.end - range.begin;
    own.layer_names += concat(separator, name(range.begin));
    if (range.end - range.begin > 1) own.layer_names += " to " + name(range.end - 1);
  }
  return own;
}

/// "stage 1", or where ranks have several "pipeline rank 1".
std::string largest_stage_text(const TrainingPlan& plan) {
  const bool one_each = plan.options.pipeline.stages() == static_cast<int>(plan.stages.size());
  return concat(one_each ? "stage " : "pipeline rank ", plan.largest_stage);
}

std::int64_t total_sent(const Traffic& traffic) {
  return std::accumulate(traffic.sent_bytes.begin(), traffic.sent_bytes.end(), std::int64_t{0});
}

/// The cells of a prediction beside what came of it.
std::vector<std::string> compared(const std::string& name, std::int64_t predicted,
                                  std::int64_t measured) {
  return {name, format_bytes(predicted), format_bytes(measured), verdict(predicted, measured)};
}
std::vector<std::string> predicted(const std::string& name, std::int64_t bytes) {
  return {name, format_bytes(bytes), with_commas(bytes)};
}

/// A line for each stage, and whether predictions held.
void print_stages_comparison(std::ostream& out, const TrainingPlan& plan,
                             const TrainingSummary& summary) {
  if (summary.stages.empty()) return;
  TextTable table({"stage", "layers", "", "memory of a rank", "", "sent in all", ""});
  for (std::size_t s = 0; s < summary.stages.size(); ++s) {
    const TrainingSummary::Stage& stage = summary.stages[s];
    const std::int64_t sent = total_sent(stage.counted_traffic);
    const StagesOfRank own = stages_of_rank(plan, s);
    table.add({own.stages, std::to_string(own.layers), own.layer_names,
               format_bytes(stage.measured_memory.total),
               verdict(stage.predicted_memory.total, stage.measured_memory.total),
               format_bytes(sent), verdict(total_sent(stage.predicted_traffic), sent)});
  }
  table.print(out);
  out << "of " << largest_stage_text(plan) << ", which needs most memory:\n";
}

void print_memory_comparison(std::ostream& out, const TrainingSummary& summary) {
  TextTable table({"memory of a rank", "predicted", "measured", ""});
  for_each_memory(
      {summary.predicted_memory, summary.predicted_host_memory.total, summary.predicted_disk_bytes},
      {summary.measured_memory, summary.measured_host_memory.total, summary.measured_disk_bytes},
      [&](const auto&... cells) { table.add(compared(cells...)); });
  table.print(out);
}

void print_traffic_comparison(std::ostream& out, const TrainingSummary& summary) {
  const Traffic& predicted = summary.predicted_traffic;
  const Traffic& counted = summary.counted_traffic.front();
  TextTable table({"sent by a rank", "predicted", "counted", "", "calls"});
  bool any = false;
  for_each_collective(predicted, counted, [&](const std::string& name, CollectiveKind kind) {
    any = true;
    std::vector<std::string> row = compared(name, predicted.sent_of(kind), counted.sent_of(kind));
    row.push_back(with_commas(counted.calls_of(kind)));
    table.add(std::move(row));
  });
  if (any) {
    table.print(out);
    out << "  copied in or out around collectives: " << with_commas(counted.copied_bytes)
        << " bytes\n";
  }
  if (!moves_between_tiers(predicted) && !moves_between_tiers(counted)) return;
  TextTable copies({"copied by a rank", "predicted", "counted", ""});
  for_each_copy(predicted, counted, [&](const auto&... cells) { copies.add(compared(cells...)); });
  copies.print(out);
}

std::string exposed_share(const TimelineSummary& timeline) {
  const double share =
      timeline.step_seconds > 0.0 ? timeline.exposed_seconds / timeline.step_seconds : 0.0;
  return concat("communication is exposed for ", fixed(100.0 * share, 1), " % of a step");
}

}  // namespace

std::string describe_ranks(const TrainerOptions& options) {
  std::string text = options.strategy + " on " + counted(options.ranks, "rank");
  if (const PipelineSplit& pipeline = options.pipeline; pipeline.stages() > 1) {
    text += concat(", ", pipeline.stages(), " stages on ", pipeline.ranks, " pipeline ranks");
    if (options.ranks > pipeline.ranks) text += concat(" of ", options.ranks / pipeline.ranks);
    text += concat(" in ", to_string(pipeline.schedule), " order with ", to_string(pipeline.layers),
                   " layers");
  }
  if (options.replicas > 1 || find_strategy(options.strategy).hybrid) {
    text += " (" + counted(options.replicas, "replica") + " of " +
            std::to_string(mesh_of(options).size(Axis::kShard)) + ")";
  }
  return text + ", " + precision_name(options) + ", " +
         counted(options.threads_per_rank, "thread") + " per rank";
}

std::string describe_mesh(const Mesh& mesh, bool with_stages) {
  const std::string stages = with_stages ? concat(mesh.size(Axis::kPipeline), " x ") : "";
  return concat(stages, mesh.size(Axis::kReplicate), " x ", mesh.size(Axis::kShard));
}

std::string device_note(const Config& config, const TrainerOptions& options) {
  if (config.given("device") || resolved_device(options.device) != DeviceChoice::kCpu) return "";
  for (const ConfigTranslation& file : config.translations()) {
    for (const ConfigEntry& entry : file.entries) {
      if (entry.key != "distributed_type" || !entry.value.is_string()) continue;
      const auto type = entry.value.get<std::string>();
      if (type == "NO" || type == "MULTI_CPU") continue;
      return concat(entry.where(), ": ", entry.key, ": ", type,
                    " asks for GPUs; there is none, so the run is on the CPU");
    }
  }
  return "";
}

std::vector<std::string> learning_rate_notes(const Config& config,
                                             const LearningRateSchedule& schedule) {
  using Kind = LearningRateSchedule::Kind;
  std::vector<std::string> notes;
  const auto useless = [&](const char* setting, const char* why) {
    if (!config.is_typed(setting)) return;
    notes.push_back(concat(flag_name(setting), " has no effect: the learning rate is ",
                           to_string(schedule.kind), ", and ", why));
  };
  if (schedule.kind == Kind::kConstant) useless("minimum_learning_rate", "does not decay");
  if (schedule.kind != Kind::kWsd) {
    useless("decay_steps", "only that of --learning-rate-schedule wsd decays at the end");
  }
  return notes;
}

std::string describe_evaluation(const EvaluationRecord& record, int decimals,
                                const std::vector<std::string>& labels) {
  const auto percent = [](const char* what, const std::optional<double>& share) {
    return share ? concat(", ", what, fixed(100.0 * *share, 2), " %") : std::string();
  };
  const std::string loss = concat("loss ", fixed(record.loss, decimals));
  const std::string accuracy = percent("accuracy ", record.token_accuracy());
  if (!record.classes.empty()) {
    std::string f1 = percent("F1 ", record.f1());
    if (!f1.empty()) f1 += labels.empty() ? " of label 1" : concat(" of '", labels.at(1), "'");
    return concat(loss, accuracy, f1, percent("macro F1 ", record.macro_f1()), ", on ",
                  counted(record.tokens, "text"));
  }
  return concat(loss, ", perplexity ", fixed(record.perplexity, 2), accuracy, " on ",
                with_commas(record.tokens),
                record.positions > record.tokens
                    ? concat(" targets of ", with_commas(record.positions), " positions")
                    : " tokens");
}

std::string describe_best(const EvaluationRecord& record, std::int64_t patience) {
  if (!record.best) return "";
  const BestEvaluation& best = *record.best;
  const auto at_step = [](const BestEvaluation& one) {
    return concat(fixed(one.loss, 4), " at step ", one.step);
  };
  std::string text;
  if (best.step == record.step) {
    text = "best so far";
    if (record.best_before) text += concat(" (", at_step(*record.best_before), ")");
  } else {
    text = concat("the best is ", at_step(best));
  }
  if (best.without_improvement == 0) return text;
  const auto count = static_cast<long long>(best.without_improvement);
  const std::string evaluations = patience > 0
                                      ? concat(count, " of ", counted(patience, "evaluation"))
                                      : counted(count, "evaluation");
  return best.step == record.step
             ? concat(text, ", by no more than --min-improvement for ", evaluations)
             : concat(text, ", no better for ", evaluations);
}

std::string describe_trace(const TrainerOptions& options, std::int64_t traced) {
  if (options.trace.file.empty()) return "";
  const char* const what = options.trace.of_evaluation ? "batch" : "step";
  if (traced == 0) {
    return concat("trace     none: the run ended before the first ", what, " of --trace-steps");
  }
  const std::string plural = options.trace.of_evaluation ? "batches" : "steps";
  return concat("trace     ", traced, " ", traced == 1 ? what : plural, " in ", options.trace.file,
                ", for https://ui.perfetto.dev");
}

std::string describe_shape(const Schedule& schedule) {
  const auto count = [&](auto&& matches, const auto& list) {
    return static_cast<std::int64_t>(std::ranges::count_if(list, matches));
  };
  std::string kinds;
  for (const Operation* const operation : all_operations()) {
    const std::int64_t actions = count(
        [&](const Action& action) { return action.operation == operation; }, schedule.actions);
    if (actions == 0) continue;
    kinds += (kinds.empty() ? "" : ", ") + with_commas(actions) + " " + in_words(operation->name);
  }
  const auto slots = [&](Role role) {
    return count([&](const ScheduleBuffer& b) { return b.is_slot() && b.role == role; },
                 schedule.buffers);
  };
  const auto size = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
  return counted(size(schedule.actions), "action") + " per step (" + kinds + "); " +
         counted(std::ranges::count(schedule.units, -1, &ScheduleUnit::mirrors), "unit") + ", " +
         counted(slots(Role::kParameter), "parameter slot") + ", " +
         (slots(Role::kCode) > 0 ? counted(slots(Role::kCode), "code slot") + ", " : "") +
         counted(slots(Role::kGradient), "gradient slot");
}

std::string describe_model(const TrainingPlan& plan) {
  const Model& model = plan.inputs.model;
  const std::int64_t all = parameter_count(model), trained = trained_count(model);
  const std::string of_them =
      trained == all ? ""
                     : concat(" (", with_prefix(static_cast<double>(trained)), " trained",
                              plan.options.trainable_strategy.empty() ? "" : ", ",
                              plan.options.trainable_strategy, ")");
  return model.name + ": " + with_prefix(static_cast<double>(all)) + " parameters" + of_them +
         " in " + counted(std::ranges::count(plan.layout.units, -1, &Unit::mirrors), "unit");
}

void print_stages(std::ostream& out, const TrainingPlan& plan) {
  if (plan.stages.size() == 1) return;
  TextTable table({"stage", "layers", "", "memory of a rank", "sent per step"});
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const RankCosts& costs = plan.stages[s];
    const std::int64_t sent = total_sent(costs.traffic);
    const StagesOfRank own = stages_of_rank(plan, s);
    table.add({own.stages, std::to_string(own.layers), own.layer_names,
               format_bytes(costs.memory.total), format_bytes(sent)});
  }
  table.print(out);
  out << "\nof " << largest_stage_text(plan) << ", which needs most memory:\n";
}

void print_memory(std::ostream& out, const TrainingPlan& plan) {
  TextTable table({"memory of a rank", "predicted", "bytes"});
  const MemoryOfRank memory{plan.memory, plan.host_memory.total, plan.disk_bytes};
  for_each_memory(memory, memory, [&](const std::string& name, std::int64_t bytes, std::int64_t) {
    table.add(predicted(name, bytes));
  });
  table.print(out);
}

void print_gpu_overhead(std::ostream& out, const TrainingPlan& plan) {
  const std::vector<OverheadItem> items = gpu_overhead(plan);
  if (items.empty()) return;
  TextTable table({"beside it on a GPU", "about", "bytes"});
  for (const OverheadItem& item : items) {
    table.add(predicted("  " + item.name, item.bytes));
  }
  table.add(predicted("  in all", total_bytes(items)));
  table.add(predicted("needs of its GPU", device_bytes(plan)));
  table.print(out);
  for (const OverheadItem& item : items) {
    print_paragraph(out, concat("  ", item.name, ": ", item.source), 4);
  }
}

void print_traffic(std::ostream& out, const Traffic& traffic) {
  TextTable table({"sent by a rank per step", "predicted", "bytes", "calls"});
  for_each_collective(traffic, traffic, [&](const std::string& name, CollectiveKind kind) {
    std::vector<std::string> row = predicted(name, traffic.sent_of(kind));
    row.push_back(with_commas(traffic.calls_of(kind)));
    table.add(std::move(row));
  });
  table.add(predicted("  in all", total_sent(traffic)));
  table.print(out);
  if (!moves_between_tiers(traffic)) return;
  out << "\n";
  TextTable copies({"copied by a rank per step", "predicted", "bytes"});
  for_each_copy(traffic, traffic, [&](const char* name, std::int64_t bytes, std::int64_t) {
    copies.add(predicted(name, bytes));
  });
  copies.print(out);
}

void print_summary(std::ostream& out, const TrainingPlan& plan, const TrainingSummary& summary,
                   const RunMeasurements& measurements) {
  print_paragraph(out, "schedule  " + describe_shape(plan.schedule()), kIndent);
  out << "loss      " << fixed(summary.first_loss, 4) << " -> " << fixed(summary.last_loss, 4)
      << " in " << counted(summary.steps, "step") << ", " << as_clock(summary.seconds) << "\n";
  if (summary.evaluation) {
    print_paragraph(out, "evaluated " + describe_evaluation(*summary.evaluation), kIndent);
    if (const auto& best = summary.evaluation->best) {
      const CheckpointOptions& saves = plan.options.checkpoints;
      print_paragraph(out,
                      concat("best      loss ", fixed(best->loss, 4), " at step ", best->step,
                             saves.save_best ? concat(", in ", saves.folder, "/best") : ""),
                      kIndent);
    }
  }
  const SpeedRates rates{summary.tokens_per_second, summary.positions_per_second};
  std::string speed = "speed     " + describe_speed(rates);
  if (measurements.mfu) {
    speed += concat(", MFU ", rates.has_padding() ? "of targets " : "") +
             fixed(100.0 * *measurements.mfu, 1) + " % of the " +
             with_prefix(measurements.matmul_flops_per_second) + "FLOP/s measured in matmul";
  }
  if (plan.cuda_graph) speed += ", steps replayed as a CUDA graph";
  if (summary.timeline && plan.options.ranks > 1) speed += ", " + exposed_share(*summary.timeline);
  print_paragraph(out, speed, kIndent);
  print_stages_comparison(out, plan, summary);
  print_memory_comparison(out, summary);
  print_traffic_comparison(out, summary);
  if (plan.options.hash_parameters) {
    out << "sha256    " << summary.parameters_sha256 << "\n";
  }
}

std::string describe_speed(const SpeedRates& rates) {
  if (!rates.has_padding()) return with_prefix(rates.tokens) + " tokens/s";
  return concat(with_prefix(rates.positions), " positions/s, ", with_prefix(rates.tokens),
                " targets/s");
}

void note_noise(const HardwareProfile& profile) {
  if (!profile.noise) return;
  const std::vector<std::string> seen = disturbances(*profile.noise);
  if (seen.empty()) return;
  print_note(concat("the profile ", profile.name, " was measured on a busy machine (",
                    tessera::joined(seen, "; "),
                    "), so predicted times are too long; 'tessera calibrate' makes another"));
}

}  // namespace tessera::cli
