#include "tessera/trainer/auto_batch.h"

#include <algorithm>
#include <vector>

#include "fit_search.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/gather.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {

BatchChoice choose_batch(const RunInputs& inputs, const TrainerOptions& options,
                         std::int64_t bytes_per_rank, double margin) {
  require(margin >= 0.0 && margin < 1.0, ErrorCode::kInvalidArgument, "a margin of ", margin,
          " is not in [0, 1)");
  const std::int64_t samples = options.micro_batch * options.accumulate;
  TrainerOptions here = options;
  here.device = resolved_device(options.device);
  here.group = resolved_group(here);
  std::vector<std::int64_t> sizes = divisors(samples);
  std::erase_if(sizes, [&](std::int64_t size) { return samples / size > kMaxAccumulate; });
  std::ranges::reverse(sizes);
  BatchChoice choice;
  const auto options_of = [&](std::size_t i) {
    TrainerOptions changed = here;
    changed.micro_batch = sizes[i];
    changed.accumulate = static_cast<int>(samples / sizes[i]);
    return std::optional(changed);
  };
  const auto fits = [&](std::size_t i, const TrainingPlan& plan) {
    choice.predicted_bytes = plan.memory.total;
    choice.overhead = gpu_overhead(plan);
    choice.budget_bytes =
        here.device == DeviceChoice::kCuda
            ? bytes_per_rank - total_bytes(choice.overhead)
            : static_cast<std::int64_t>(static_cast<double>(bytes_per_rank) * (1.0 - margin));
    if (choice.predicted_bytes <= choice.budget_bytes) {
      choice.micro_batch = plan.options.micro_batch;
      choice.accumulate = plan.options.accumulate;
      return true;
    }
    choice.next_micro_batch = sizes[i];
    choice.next_bytes = choice.predicted_bytes;
    return false;
  };
  if (first_fit({inputs, sizes.size(), options_of, fits})) return choice;
  fail(ErrorCode::kOutOfMemory, "no micro-batch fits: ", sizes.back(),
       sizes.back() == 1 ? " sample" : " samples", " at a time need",
       sizes.back() == 1 ? "s " : " ", format_bytes(choice.predicted_bytes), " per rank, and ",
       format_bytes(std::max<std::int64_t>(choice.budget_bytes, 0)), " may be used (",
       format_bytes(bytes_per_rank), " less ", describe_room(choice, margin),
       "); shard more with `strategy`, recompute with `policy.recompute` full, or use a smaller "
       "model");
}

std::string describe_room(const BatchChoice& choice, double margin) {
  if (choice.overhead.empty()) return concat("a margin of ", margin * 100.0, " %");
  return concat(format_bytes(total_bytes(choice.overhead)), " that a GPU holds beside the plan (",
                describe(choice.overhead), ")");
}

std::int64_t bytes_per_rank(const TrainerOptions& options) {
  TrainerOptions here = options;
  here.device = resolved_device(options.device);
  const std::int64_t share = available_bytes(here) / ranks_on_host(here);
  return options.memory_limit_bytes > 0 ? std::min(options.memory_limit_bytes, share) : share;
}

std::int64_t agreed_bytes_per_rank(const TrainerOptions& options) {
  const std::int64_t own = bytes_per_rank(options);
  if (options.world == nullptr) return own;
  return std::ranges::min(gather_ranks(*options.world, [&](int) { return own; }));
}

}  // namespace tessera
