#include "tessera/trainer/gpu_overhead.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/segment_pool.h"
#include "tessera/sharding/groups.h"
#include "tessera/sharding/operation.h"
#include "tessera/trainer/byte_size.h"

namespace tessera {
namespace {

constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;

/// Users of PyTorch report 300 to 500 MiB. Of an H100's, 264 MiB are local memory: 1 KiB of stack
/// for each of 132 x 2048 threads.
constexpr std::int64_t kContextBytes = 640 * kMiB;

/// The few dozen kernels of cuBLASLt and cuDNN that a model needs, up to some MiB each, and our
/// own: each is loaded when it is first launched.
constexpr std::int64_t kKernelBytes = 256 * kMiB;

/// Up to 4 KiB of parameters, and as much again for the launch. Before CUDA 12.4 and driver 550,
/// which CUDA 13 does not run on, it was 64 KiB (PyTorch's documentation of CUDAGraph Trees).
constexpr std::int64_t kGraphNodeBytes = 8 * kKiB;
/// The nodes of a pass through a layer: more than a block of the GPT has, fewer than a loss in many
/// chunks.
constexpr std::int64_t kNodesPerPass = 24;
/// The nodes of any other action: a collective and its conversions, or an optimizer step.
constexpr std::int64_t kNodesPerAction = 4;

/// The buffers of a channel to one neighbour: LL, LL128 and Simple (DEFAULT_*_BUFFSIZE in NCCL's
/// init.cc).
constexpr std::int64_t kChannelBytes = 512 * kKiB + 4'915'200 + 4 * kMiB;
/// NCCL logs so many channels for a ring over the NVLink of eight H100.
constexpr std::int64_t kChannels = 24;
/// For NVLink SHARP (NCCL's transport/nvls.cc): to and from each GPU of the node, 16 channels with
/// 8 steps of 128 KiB.
constexpr std::int64_t kNvlsBytesPerGpu = 2 * std::int64_t{16} * 8 * 128 * kKiB;
constexpr int kGpusOfNode = 8;

std::int64_t graph_nodes(const Schedule& schedule) {
  std::int64_t nodes = 0;
  for (const Action& action : schedule.actions) {
    nodes += action.operation->is_pass ? kNodesPerPass : kNodesPerAction;
  }
  return nodes;
}

/// One for each lane and group of ranks that some collective of the run uses, one for each pair of
/// pipeline ranks of which this one is, and one for scalars: see RankGroups::split_from.
std::int64_t communicators(const TrainingPlan& plan, int pipeline_rank) {
  std::set<std::pair<Lane, std::string>> used;
  std::set<PipelinePair> pairs;
  const auto add = [&](const StepPlan& step) {
    for (const Schedule& schedule : step.ranks) {
      for (const Action& action : schedule.actions) {
        if (!action.axes.empty()) used.emplace(action.lane, to_string(action.axes));
        if (action.operation->is_message && schedule.pipeline.rank == pipeline_rank) {
          pairs.insert(PipelinePair::of(action.lane, schedule.pipeline.rank, action.peer));
        }
      }
    }
  };
  add(plan.step);
  if (plan.evaluation) add(*plan.evaluation);
  if (plan.forward) add(*plan.forward);
  const std::int64_t of_scalars = plan.step.ranks.size() > 1 ? 2 : 1;
  return static_cast<std::int64_t>(used.size() + pairs.size()) + of_scalars;
}

}  // namespace

std::vector<OverheadItem> gpu_overhead(const TrainingPlan& plan, int pipeline_rank) {
  const auto rank = static_cast<std::size_t>(pipeline_rank);
  const RankCosts& costs = plan.stages.at(rank);
  const TrainerOptions& options = plan.options;
  if (options.device != DeviceChoice::kCuda) return {};
  std::vector<OverheadItem> items{
      {.name = "memory pool",
       .bytes = costs.pool_bytes - costs.memory.total,
       .source = "simulated: free blocks that no request fits, and the rest of segments of " +
                 format_bytes(SegmentPool::kSegmentBytes)},
      {.name = "CUDA context",
       .bytes = kContextBytes,
       .source = "an allowance: 300 to 500 MiB are reported"},
      {.name = "kernels",
       .bytes = kKernelBytes,
       .source = "an allowance: of our own, cuBLASLt and cuDNN, loaded when first launched"}};
  if (plan.cuda_graph) {
    const std::int64_t nodes = graph_nodes(plan.step.ranks[rank]);
    items.push_back(
        {.name = "CUDA graph",
         .bytes = nodes * kGraphNodeBytes,
         .source = concat("at most ", nodes, " nodes of ", format_bytes(kGraphNodeBytes))});
  }
  if (options.ranks > 1 && options.group != GroupChoice::kThread) {
    const std::int64_t count = communicators(plan, pipeline_rank);
    const std::int64_t ring = kChannels * kChannelBytes;
    const std::int64_t nvls = std::min(options.ranks, kGpusOfNode) * kNvlsBytesPerGpu;
    items.push_back(
        {.name = "NCCL",
         .bytes = count * (ring + nvls),
         .source = concat(count, " communicators with ", format_bytes(ring), " for a ring of ",
                          kChannels, " channels and ", format_bytes(nvls), " for NVLink SHARP")});
  }
  return items;
}

std::int64_t total_bytes(const std::vector<OverheadItem>& items) {
  std::int64_t total = 0;
  for (const OverheadItem& item : items) total += item.bytes;
  return total;
}

std::int64_t device_bytes(const TrainingPlan& plan, int pipeline_rank) {
  return plan.stages.at(static_cast<std::size_t>(pipeline_rank)).memory.total +
         total_bytes(gpu_overhead(plan, pipeline_rank));
}

std::vector<OverheadItem> gpu_overhead(const TrainingPlan& plan) {
  return gpu_overhead(plan, plan.largest_stage);
}

std::int64_t device_bytes(const TrainingPlan& plan) {
  return device_bytes(plan, plan.largest_stage);
}

std::string describe(const std::vector<OverheadItem>& items) {
  std::string text;
  for (const OverheadItem& item : items) {
    text += concat(text.empty() ? "" : ", ", item.name, " ", format_bytes(item.bytes));
  }
  return text;
}

}  // namespace tessera
