#include "cpu/attention_cpu.h"

#include <algorithm>
#include <atomic>

#include "attention_arguments.h"
#include "cpu/cpu_kernels.h"
#include "documents_argument.h"
#include "tessera/core/error.h"
#include "tessera/core/thread_team.h"

// Attention by blocks: the L x L scores exist a block at a time, in the scratch of the
// thread that works on them. Each (batch, head[, query block]) is computed by one thread in a fixed
// order, so results do not depend on the number of threads.

namespace tessera::cpu {
namespace {

/// Calls body(task, scratch) for every task in [0, tasks), each on whichever thread is free next:
/// tasks take different times, and which thread runs one changes no bit.
template <typename Body>
void run_tasks(std::int64_t tasks, const TensorView& workspace, std::int64_t scratch_bytes,
               const Body& body) {
  const std::int64_t limit = std::min<std::int64_t>(tasks, team_threads());
  const std::int64_t fit = workspace.bytes() / scratch_bytes;
  if (!(fit >= 1))
    fail(ErrorCode::kInvalidArgument, "attention: the workspace has ", workspace.bytes(),
         " bytes, wanted ", scratch_bytes, " per thread (attention_workspace_bytes)");
  const auto threads = static_cast<int>(std::min(limit, fit));
  std::atomic<std::int64_t> next = 0;
  on_team(threads, [&](int thread) {
    std::byte* scratch = workspace.data + thread * scratch_bytes;
    for (std::int64_t task = next++; task < tasks; task = next++) body(task, scratch);
  });
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, Stream&) {
  check_attention(args);
  check_start_values("attention", args.starts);
  const AttentionShape shape(args.qkv, args.window, args.starts, args.causal, args.scores);
  if (args.qkv.numel() == 0) return;
  const std::int64_t heads = shape.batch * shape.heads;
  const std::int64_t blocks = shape.query_blocks();
  // Head by head, so that its keys stay in the cache; the last query block sees the most keys and
  // goes first, so that the short ones fill the gaps at the end.
  run_tasks(heads * blocks, args.workspace,
            attention_scratch_bytes(shape.length, shape.head_dim, args.qkv.dtype),
            [&](std::int64_t task, std::byte* scratch) {
              const std::int64_t head = task / blocks;
              attention_forward_block(args, shape, head / shape.heads, head % shape.heads,
                                      blocks - 1 - task % blocks, scratch);
            });
}

void attention_backward(const AttentionBackwardArgs& args, Stream&) {
  check_attention(args);
  check_start_values("attention", args.starts);
  const AttentionShape shape(args.qkv, args.window, args.starts, args.causal, args.scores);
  if (args.qkv.numel() == 0) return;
  run_tasks(shape.batch * shape.heads, args.workspace,
            attention_scratch_bytes(shape.length, shape.head_dim, args.qkv.dtype),
            [&](std::int64_t task, std::byte* scratch) {
              attention_backward_head(args, shape, task / shape.heads, task % shape.heads, scratch);
            });
}

}  // namespace tessera::cpu
