#include "schedule/schedule_policy.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "schedule/schedule_words.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using PolicyWords = std::span<const std::string_view>;

std::string_view only(PolicyWords words) {
  require(words.size() == 1, ErrorCode::kConfig, "one word belongs here, not ", words.size());
  return words.front();
}

template <typename Number>
Number read_number(std::string_view word) {
  Number value{};
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  require(error == std::errc{} && stop == end && value >= Number{}, ErrorCode::kConfig, "'", word,
          "' is not a number of at least 0");
  return value;
}

bool read_choice(std::string_view word) {
  require(word == "yes" || word == "no", ErrorCode::kConfig, "'", word, "' is neither yes nor no");
  return word == "yes";
}

/// The shortest digits that read back as the same number.
std::string write_share(double share) {
  std::string text(32, '\0');
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), share);
  text.resize(static_cast<std::size_t>(end - text.data()));
  return text;
}

PolicyRow choice(std::string_view name, bool PlanOptions::*option, bool always = true) {
  return {name, [=](const PlanOptions& o) { return std::string(o.*option ? "yes" : "no"); },
          [=](PlanOptions& o, PolicyWords words) { o.*option = read_choice(only(words)); }, always};
}

PolicyRow choice(std::string_view name, bool StepPolicy::*option) {
  return {name, [=](const PlanOptions& o) { return std::string(o.policy.*option ? "yes" : "no"); },
          [=](PlanOptions& o, PolicyWords words) { o.policy.*option = read_choice(only(words)); },
          false};
}

PolicyRow depth(std::string_view name, int StepPolicy::*option) {
  return {
      name, [=](const PlanOptions& o) { return concat(o.policy.*option); },
      [=](PlanOptions& o, PolicyWords words) { o.policy.*option = read_number<int>(only(words)); }};
}

PolicyRow share(std::string_view name, double PlanOptions::*option) {
  return {name, [=](const PlanOptions& o) { return write_share(o.*option); },
          [=](PlanOptions& o, PolicyWords words) { o.*option = read_number<double>(only(words)); },
          false};
}

std::string write_tensors(const PlanOptions& options) {
  std::string text;
  for (const OptimizerTensor& tensor : options.optimizer_tensors) {
    text += concat(text.empty() ? "" : " ", quote_name(tensor.name), ' ', to_string(tensor.format),
                   ' ', tensor.block);
  }
  return text.empty() ? "-" : text;
}

void read_tensors(PlanOptions& options, PolicyWords words) {
  options.optimizer_tensors.clear();
  if (words.size() == 1 && words.front() == "-") return;
  require(words.size() % 3 == 0, ErrorCode::kConfig,
          "each tensor of the optimizer has a name, a format and a block");
  for (; !words.empty(); words = words.subspan(3)) {
    options.optimizer_tensors.push_back({.name = unquote_name(words[0]),
                                         .format = parse_dtype(words[1]),
                                         .block = read_number<std::int64_t>(words[2])});
  }
}

/// Writes listed passes: those of pipeline ranks, one rank after the other.
std::string write_passes(const PlanOptions& options) {
  std::string text;
  for (std::size_t rank = 0; rank < options.pipeline.listed.size(); ++rank) {
    if (rank > 0) text += " |";
    for (const StagePass& pass : options.pipeline.listed[rank]) {
      text += concat(text.empty() ? "" : " ", to_string(pass));
    }
  }
  return text;
}

void read_passes(PlanOptions& options, PolicyWords words) {
  options.pipeline.listed.assign(1, {});
  for (const std::string_view word : words) {
    if (word == "|") {
      options.pipeline.listed.emplace_back();
    } else {
      options.pipeline.listed.back().push_back(parse_stage_pass(word));
    }
  }
}

/// A list of numbers, which is left out where it is empty.
template <typename Number, typename Get>
PolicyRow numbers(std::string_view name, Get get) {
  return {name,
          [get](const PlanOptions& options) {
            std::string text;
            for (const Number number : get(const_cast<PlanOptions&>(options))) {  // NOLINT: reads
              text += concat(text.empty() ? "" : " ", number);
            }
            return text;
          },
          [get](PlanOptions& options, PolicyWords words) {
            std::vector<Number>& list = get(options);
            list.clear();
            for (const std::string_view word : words) list.push_back(read_number<Number>(word));
          },
          false};
}

}  // namespace

std::span<const PolicyRow> policy_rows() {
  static const std::vector<PolicyRow> rows{
      depth("prefetch_forward", &StepPolicy::prefetch_forward),
      depth("prefetch_backward", &StepPolicy::prefetch_backward),
      depth("prefetch_host", &StepPolicy::prefetch_host),
      depth("prefetch_disk", &StepPolicy::prefetch_disk),
      choice("reshard_after_forward", &PlanOptions::reshard_after_forward),
      choice("accumulate_unsharded", &PlanOptions::accumulate_unsharded),
      choice("split_backward", &StepPolicy::split_backward),
      choice("overlap_optimizer", &PlanOptions::overlap_optimizer),
      choice("gather_codes", &PlanOptions::gather_codes, false),
      {"scale_units", [](const PlanOptions& o) { return concat(o.scale_units); },
       [](PlanOptions& o, PolicyWords words) { o.scale_units = read_number<int>(only(words)); },
       false},
      {"fp8_history", [](const PlanOptions& o) { return concat(o.fp8_history); },
       [](PlanOptions& o, PolicyWords words) { o.fp8_history = read_number<int>(only(words)); },
       false},
      choice("updates_wait_for_norm", &PlanOptions::updates_wait_for_norm, false),
      {"reduction_order",
       [](const PlanOptions& o) { return std::string(to_string(o.reduction_order)); },
       [](PlanOptions& o, PolicyWords words) {
         o.reduction_order = parse_reduction_order(only(words));
       }},
      {"optimizer_tensors", write_tensors, read_tensors},
      choice("scale_parameter", &PlanOptions::scale_parameter, false),
      share("offload_optimizer", &PlanOptions::offload_optimizer),
      share("offload_parameters", &PlanOptions::offload_parameters),
      share("offload_gradients", &PlanOptions::offload_gradients),
      share("disk_optimizer", &PlanOptions::disk_optimizer),
      share("disk_parameters", &PlanOptions::disk_parameters),
      numbers<std::int64_t>(
          "offload_activations", [](PlanOptions & o) -> auto& { return o.offload_activations; }),
      {"pipeline_rank", [](const PlanOptions& o) { return concat(o.pipeline.rank); },
       [](PlanOptions& o, PolicyWords words) { o.pipeline.rank = read_number<int>(only(words)); },
       false},
      {"pipeline_schedule",
       [](const PlanOptions& o) { return std::string(to_string(o.pipeline.order)); },
       [](PlanOptions& o, PolicyWords words) {
         o.pipeline.order = parse_pipeline_order(only(words));
       },
       false},
      {"pipeline_prefetch", [](const PlanOptions& o) { return concat(o.pipeline.prefetch); },
       [](PlanOptions& o, PolicyWords words) {
         o.pipeline.prefetch = read_number<int>(only(words));
       },
       false},
      {"pipeline_passes", write_passes, read_passes, false},
      numbers<int>(
          "pipeline_stage_ranks", [](PlanOptions & o) -> auto& { return o.pipeline.stage_ranks; }),
      numbers<int>(
          "pipeline_stages", [](PlanOptions & o) -> auto& { return o.pipeline.first_layers; }),
      numbers<std::int64_t>(
          "pipeline_inputs", [](PlanOptions & o) -> auto& { return o.pipeline.input_numels; })};
  return rows;
}

bool is_written(const PolicyRow& row, const PlanOptions& options) {
  return row.always || row.write(options) != row.write(PlanOptions());
}

void read_policy(PlanOptions& options, std::string_view name, PolicyWords words) {
  const auto found = std::ranges::find(policy_rows(), name, &PolicyRow::name);
  require(found != policy_rows().end(), ErrorCode::kConfig, "a policy has no '", name, "'");
  found->read(options, words);
}

}  // namespace tessera
