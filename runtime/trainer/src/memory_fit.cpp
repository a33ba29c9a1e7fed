#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "fit_search.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gpu_overhead.h"
#include "tessera/trainer/training_plan.h"

// Refusing a run that does not fit, and finding one that would. Free memory is asked of a GPU that
// has the process's context already, and a limit holds for what the plan allocates: so plans are
// compared by their peaks here, and tight_memory_note tells of what comes beside them. Where no
// process runs, device_bytes counts both.
namespace tessera {
namespace {

/// A change of options that saves memory, in the words of the command line.
struct Remedy {
  std::string words;
  TrainerOptions options;
};

std::int64_t allowed_per_rank(const TrainerOptions& options, std::int64_t available_bytes) {
  const std::int64_t share = available_bytes / ranks_on_host(options);
  return options.memory_limit_bytes > 0 ? std::min(options.memory_limit_bytes, share) : share;
}

/// Strategies that shard more than `options`: those after it in the table, full_shard last of all
/// as the one that saves most.
std::vector<std::string> more_sharded(const TrainerOptions& options) {
  std::vector<std::string> names;
  const auto& all = strategies();
  const auto current = std::find_if(all.begin(), all.end(),
                                    [&](const Strategy& s) { return s.name == options.strategy; });
  for (auto it = current == all.end() ? all.begin() : current + 1; it != all.end(); ++it) {
    if (!it->hybrid) names.push_back(it->name);
  }
  const bool is_full = options.placement == find_strategy("full_shard").placement &&
                       options.replicas == 1 && options.reshard_after_forward == true;
  if (!is_full && std::find(names.begin(), names.end(), "full_shard") == names.end()) {
    names.push_back("full_shard");
  }
  return names;
}

void add_strategies(const Remedy& base, std::vector<Remedy>& remedies) {
  if (base.options.ranks == 1) return;
  for (const std::string& name : more_sharded(base.options)) {
    Remedy remedy = base;
    remedy.words += (remedy.words.empty() ? "" : " ") + concat("`strategy` ", name);
    remedy.options = with_strategy(base.options, name);
    remedies.push_back(std::move(remedy));
  }
}

/// Divisors of `number` below `limit`, from the largest to `smallest` or the one next to it. Each
/// is at most half of the one before, so that few are planned.
std::vector<std::int64_t> ever_smaller(std::int64_t number, std::int64_t limit,
                                       std::int64_t smallest) {
  std::vector<std::int64_t> all = divisors(number);
  std::erase_if(all, [&](std::int64_t d) { return d < smallest || d >= limit; });
  std::vector<std::int64_t> chosen;
  for (auto d = all.rbegin(); d != all.rend(); ++d) {
    if (*d <= (chosen.empty() ? limit : chosen.back()) / 2 || *d == all.front()) {
      chosen.push_back(*d);
    }
  }
  return chosen;
}

/// Keeps the samples per step, in smaller micro-batches.
void add_micro_batches(const Remedy& base, std::vector<Remedy>& remedies) {
  const std::int64_t samples = base.options.micro_batch * base.options.accumulate;
  const std::int64_t smallest = (samples + kMaxAccumulate - 1) / kMaxAccumulate;
  for (const std::int64_t size : ever_smaller(samples, base.options.micro_batch, smallest)) {
    Remedy remedy = base;
    remedy.options.micro_batch = size;
    remedy.options.accumulate = static_cast<int>(samples / size);
    remedy.words += (remedy.words.empty() ? "" : " ") +
                    concat("`micro_batch` ", size, " `accumulate` ", remedy.options.accumulate);
    remedies.push_back(std::move(remedy));
  }
}

/// Keeps the samples per step, on fewer ranks: fewer copies of what is not sharded, and of
/// activations.
void add_fewer_ranks(const Remedy& base, std::vector<Remedy>& remedies) {
  const SampleDivision division = sample_division(base.options);
  const std::int64_t fewest =
      (division.micro_batches_per_step() + kMaxAccumulate - 1) / kMaxAccumulate;
  for (const std::int64_t ranks : ever_smaller(base.options.ranks, base.options.ranks, fewest)) {
    if (ranks % base.options.pipeline.ranks != 0) continue;
    Remedy remedy = base;
    remedy.options.ranks = static_cast<int>(ranks);
    remedy.options.accumulate =
        static_cast<int>(*division.micro_steps_among(ranks / base.options.pipeline.ranks));
    remedy.words = concat("`ranks` ", ranks, " `accumulate` ", remedy.options.accumulate);
    remedies.push_back(std::move(remedy));
  }
}

/// Not where a limit holds for each rank, which fewer ranks shard less for, nor where whoever has
/// started the processes decides.
bool may_use_fewer_ranks(const TrainerOptions& options) {
  return options.memory_limit_bytes == 0 && options.world == nullptr && options.ranks > 1;
}

/// Returns a pipeline rank's stage with the most layers, or with the fewest.
std::size_t stage_of_rank(const TrainingPlan& plan, std::size_t rank, bool most) {
  const PipelineOptions& pipeline = plan.step.ranks.front().pipeline;
  const std::vector<int> own =
      pipeline.stages_of_rank(static_cast<int>(rank), plan.options.pipeline.ranks);
  const auto layers = [&](int stage) {
    return plan.options.pipeline.layers.counts[static_cast<std::size_t>(stage)];
  };
  return static_cast<std::size_t>(most ? *std::ranges::max_element(own, {}, layers)
                                       : *std::ranges::min_element(own, {}, layers));
}

/// Gives layers of the pipeline rank that needs most memory to the one that needs least, one after
/// the other, and those in between pass as many on.
void add_splits(const TrainingPlan& plan, std::vector<Remedy>& remedies) {
  const auto least = std::ranges::min_element(
      plan.stages, {}, [](const RankCosts& costs) { return costs.memory.total; });
  const auto largest = static_cast<std::size_t>(plan.largest_stage);
  const auto smallest = static_cast<std::size_t>(least - plan.stages.begin());
  if (largest == smallest) return;
  Remedy remedy{"", plan.options};
  std::vector<int>& counts = remedy.options.pipeline.layers.counts;
  const std::size_t from = stage_of_rank(plan, largest, true);
  const std::size_t to = stage_of_rank(plan, smallest, false);
  while (counts[from] > 1) {
    --counts[from];
    ++counts[to];
    remedy.words = concat("`pipeline.layers` ", to_string(remedy.options.pipeline.layers));
    remedies.push_back(remedy);
  }
}

/// From the mildest change to the strongest; none changes which samples a step is made of.
std::vector<Remedy> remedies_for(const TrainingPlan& plan) {
  const TrainerOptions& options = plan.options;
  const Remedy unchanged{"", options};
  std::vector<Remedy> remedies;
  if (options.pipeline.stages() > 1) add_splits(plan, remedies);
  add_strategies(unchanged, remedies);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    if (recompute <= options.policy.recompute) continue;
    Remedy remedy{concat("`policy.recompute` ", to_string(recompute)), options};
    remedy.options.policy.recompute = recompute;
    remedies.push_back(std::move(remedy));
  }
  add_micro_batches(unchanged, remedies);
  // All at once: the last of each kind is its strongest.
  Remedy strongest = remedies.empty() ? unchanged : remedies.back();
  if (options.policy.recompute != Recompute::kFull) {
    strongest.options.policy.recompute = Recompute::kFull;
    strongest.words += " `policy.recompute` full";
    remedies.push_back(strongest);
  }
  add_strategies(strongest, remedies);
  if (may_use_fewer_ranks(options)) add_fewer_ranks(unchanged, remedies);
  return remedies;
}

std::optional<std::string> first_that_fits(const TrainingPlan& plan, std::int64_t available,
                                           std::int64_t& smallest) {
  const std::vector<Remedy> remedies = remedies_for(plan);
  std::int64_t total = 0;
  const auto found =
      first_fit({.inputs = plan.inputs,
                 .candidates = remedies.size(),
                 .options = [&](std::size_t i) { return std::optional(remedies[i].options); },
                 .takes =
                     [&](std::size_t i, const TrainingPlan& other) {
                       total = other.memory.total;
                       smallest = std::min(smallest, total);
                       return total <= allowed_per_rank(remedies[i].options, available);
                     },
                 .refused = [](const Error&) {}});  // it is no remedy: too many micro-steps
  if (!found) return std::nullopt;
  return concat(remedies[*found].words, " (", format_bytes(total), " per rank)");
}

std::string by_category(const MemoryPeak& peak) {
  std::string text;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const std::int64_t bytes = peak.by_category[category];
    if (bytes == 0) continue;
    text += (text.empty() ? "" : ", ") + concat(to_string(category), " ", format_bytes(bytes));
  }
  return text;
}

/// Names the change that would fit, and its cost, or the way out if none is enough.
std::string remedy(const TrainingPlan& plan, std::int64_t available, bool over_limit) {
  std::int64_t smallest = plan.memory.total;
  const auto fitting = first_that_fits(plan, available, smallest);
  if (fitting) return "this would fit: " + *fitting;
  const std::string nothing =
      concat("no strategy, recomputation",
             may_use_fewer_ranks(plan.options) ? ", micro-batch or lower number of ranks"
                                               : " or micro-batch",
             " would fit (at least ", format_bytes(smallest), over_limit ? "" : " per rank", "): ");
  return nothing + (over_limit ? "raise `memory_limit_bytes`, add ranks, or take a smaller model"
                               : "take a smaller model or sequence length");
}

/// Or as many bytes as there can be.
std::int64_t times(std::int64_t bytes, int ranks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return bytes > kMost / ranks ? kMost : bytes * ranks;
}

std::string together(const TrainingPlan& plan) {
  const int ranks = ranks_on_host(plan.options);
  if (ranks == 1) return "";
  return concat(" and ", ranks, " ranks together ", format_bytes(times(plan.memory.total, ranks)));
}

std::string where_free(const TrainerOptions& options) {
  return options.device == DeviceChoice::kCuda ? "that the GPUs have free"
                                               : "that this machine has free";
}

std::string needs(const TrainingPlan& plan) {
  const std::string who = plan.stages.size() == 1
                              ? std::string("each rank")
                              : concat("each rank of stage ", plan.largest_stage);
  return concat(who, " needs ", format_bytes(plan.memory.total),
                " (peaks: ", by_category(plan.memory), ")");
}

}  // namespace

void require_memory(const TrainingPlan& plan, std::int64_t available_bytes) {
  const TrainerOptions& options = plan.options;
  const std::int64_t allowed = allowed_per_rank(options, available_bytes);
  if (plan.memory.total <= allowed) return;

  const bool over_limit =
      options.memory_limit_bytes > 0 && plan.memory.total > options.memory_limit_bytes;
  const std::string excess =
      over_limit ? concat(", more than its limit of ", format_bytes(options.memory_limit_bytes))
                 : concat(together(plan), ", more than the ", format_bytes(available_bytes), " ",
                          where_free(options));
  fail(ErrorCode::kOutOfMemory, needs(plan), excess, "; ",
       remedy(plan, available_bytes, over_limit));
}

std::string tight_memory_note(const TrainingPlan& plan, std::int64_t available_bytes) {
  const std::vector<OverheadItem> overhead = gpu_overhead(plan);
  const std::int64_t allowed = allowed_per_rank(plan.options, available_bytes);
  const std::int64_t left = allowed - plan.memory.total;
  if (overhead.empty() || left >= total_bytes(overhead)) return "";
  return concat("the plan leaves ", format_bytes(left), " of the ", format_bytes(allowed),
                " that a rank may use of its GPU, and about ", format_bytes(total_bytes(overhead)),
                " are needed beside it (", describe(overhead),
                "): the run may end for want of memory; `auto_batch` leaves room for them, and so "
                "does a smaller `micro_batch` or `policy.recompute` full");
}

std::string memory_advice(const TrainingPlan& plan, std::int64_t available_bytes) {
  const std::int64_t allowed = allowed_per_rank(plan.options, available_bytes);
  const std::string now = concat("by the plan ", needs(plan), ", and without this run ",
                                 format_bytes(allowed), " per rank are free now");
  if (plan.memory.total > allowed) {
    return concat(now, ": others have taken memory since the run was planned; ",
                  remedy(plan, available_bytes, false));
  }
  return now +
         ": it should fit, unless others take memory at times, or libraries need much beside the "
         "plan; end other programs, or leave more room (`policy.recompute` full, a smaller "
         "`micro_batch`)";
}

}  // namespace tessera
