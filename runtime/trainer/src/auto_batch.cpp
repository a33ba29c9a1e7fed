#include "tessera/trainer/auto_batch.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "divisors.h"
#include "tessera/core/error.h"
#include "tessera/trainer/byte_size.h"
#include "tessera/trainer/launch.h"
#include "tessera/trainer/rank_device.h"

namespace tessera {
BatchChoice choose_batch(const Model& model, const BatchSource& source,
                         const TrainerOptions& options, std::int64_t bytes_per_rank,
                         double margin) {
  require(margin >= 0.0 && margin < 1.0, ErrorCode::kInvalidArgument, "a margin of ", margin,
          " is not in [0, 1)");
  const std::int64_t samples = options.micro_batch * options.accumulate;
  TrainerOptions here = options;
  here.device = resolved_device(options.device);
  here.group = resolved_group(here);
  const auto with = [&](std::int64_t micro_batch) {
    TrainerOptions changed = here;
    changed.micro_batch = micro_batch;
    changed.accumulate = static_cast<int>(samples / micro_batch);
    return changed;
  };
  std::vector<std::int64_t> sizes = divisors(samples);
  std::erase_if(sizes, [&](std::int64_t size) { return samples / size > kMaxAccumulate; });
  BatchChoice choice;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    const TrainingPlan plan = make_training_plan(model, source, with(*size));
    choice.predicted_bytes = plan.memory.total;
    choice.overhead = gpu_overhead(plan);
    choice.budget_bytes =
        here.device == DeviceChoice::kCuda
            ? bytes_per_rank - total_bytes(choice.overhead)
            : static_cast<std::int64_t>(static_cast<double>(bytes_per_rank) * (1.0 - margin));
    if (choice.predicted_bytes <= choice.budget_bytes) {
      choice.micro_batch = *size;
      choice.accumulate = with(*size).accumulate;
      return choice;
    }
    choice.next_micro_batch = *size;
    choice.next_bytes = choice.predicted_bytes;
  }
  fail(ErrorCode::kOutOfMemory, "no micro-batch fits: ", sizes.front(),
       sizes.front() == 1 ? " sample" : " samples", " at a time need",
       sizes.front() == 1 ? "s " : " ", format_bytes(choice.predicted_bytes), " per rank, and ",
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
  std::atomic<std::int64_t> least{own};
  launch_ranks(options.world->groups(), [&](int, ProcessGroup& group) {
    const auto device = options.world->make_device();
    const auto stream = device->create_stream({.name = "auto-batch"});
    Memory memory(*device);
    const auto tensor = [&](std::int64_t numel) {
      return Tensor::empty(memory, Shape{numel}, DType::kFloat64, MemoryCategory::kWorkspace,
                           "auto-batch");
    };
    const Tensor mine = tensor(1);  // every number of bytes that there can be is exact in fp64
    const Tensor all = tensor(group.size());
    *mine.as<double>() = static_cast<double>(own);
    group.all_gather(mine, all, *stream);
    stream->synchronize();
    const double* const bytes = all.as<double>();
    least = static_cast<std::int64_t>(*std::min_element(bytes, bytes + group.size()));
  });
  return least;
}

}  // namespace tessera
