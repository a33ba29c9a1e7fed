#include "settings/option_names.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

/// Flags of fields that are no setting of a TrainerOptions by that name; those have the field's
/// name, with dashes.
constexpr std::array kFlags{
    Pair{"adapter", "--adapter"},
    Pair{"auto_batch", "--auto-batch"},
    Pair{"base_format", "--base-format"},
    Pair{"chat_template", "--chat-template"},
    Pair{"checkpoints.allow_other_data", "--allow-other-data"},
    Pair{"checkpoints.allow_other_model", "--allow-other-model"},
    Pair{"checkpoints.allow_other_optimizer", "--allow-other-optimizer"},
    Pair{"checkpoints.folder", "--save"},
    Pair{"checkpoints.resume", "--resume"},
    Pair{"checkpoints.save_best", "--save-best"},
    Pair{"eval_data", "--eval-data"},
    Pair{"evaluate_every", "--eval-every"},
    Pair{"export_dtype", "--export-dtype"},
    Pair{"help", "--help"},
    Pair{"labels", "--labels"},
    Pair{"learning_rate.decay_steps", "--decay-steps"},
    Pair{"learning_rate.peak", "--learning-rate"},
    Pair{"learning_rate.warmup_steps", "--warmup-steps"},
    Pair{"lora", "--lora"},
    Pair{"loss_scale.choice", "--loss-scale"},
    Pair{"loss_scale.dialect", "--loss-scale-dialect"},
    Pair{"memory_limit_bytes", "--memory-limit"},
    Pair{"optimizer.clip_norm", "--clip-norm"},
    Pair{"optimizer.stochastic_rounding", "--stochastic-rounding"},
    Pair{"overwrite", "--overwrite"},
    Pair{"packing", "--packing"},
    Pair{"pipeline.layers", "--pipeline-split"},
    Pair{"pipeline.ranks", "--pipeline"},
    Pair{"policy.recompute", "--recompute"},
    Pair{"rendezvous.address", "--main-address"},
    Pair{"rendezvous.port", "--main-port"},
    Pair{"rendezvous.process", "--node-rank"},
    Pair{"rendezvous.processes", "--processes"},
    Pair{"sequence_length", "--sequence-length"},
    Pair{"trace.file", "--trace"},
    Pair{"trace.steps", "--trace-steps"},
};

const std::set<std::string, std::less<>>& setting_names() {
  static const auto names = [] {
    auto all = names_in(trainer_settings());
    all.merge(names_in(output_settings()));
    return all;
  }();
  return names;
}

}  // namespace

std::set<std::string, std::less<>> names_in(const std::vector<Setting>& table) {
  std::set<std::string, std::less<>> names;
  for (const Setting& setting : table) names.insert(setting.name);
  return names;
}

std::string flag_of_field(std::string_view field) {
  const auto* const found = std::ranges::find(kFlags, field, &Pair::first);
  if (found != kFlags.end()) return std::string(found->second);
  return setting_names().contains(field) ? flag_name(field) : "";
}

std::string with_flags(std::string_view message) {
  std::string text;
  while (true) {
    const std::size_t begin = message.find('`');
    const std::size_t end = begin == message.npos ? begin : message.find('`', begin + 1);
    if (end == message.npos) return text.append(message);
    const std::string flag = flag_of_field(message.substr(begin + 1, end - begin - 1));
    if (flag.empty()) {  // the second one may begin a field
      text.append(message.substr(0, end));
      message.remove_prefix(end);
    } else {
      text.append(message.substr(0, begin)).append(flag);
      message.remove_prefix(end + 1);
    }
  }
}

}  // namespace tessera::cli
