#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/attention_blocks.h"
#include "cpu/gemm_cpu.h"
#include "tessera/kernels/kernel_table.h"

// The two passes of one head, in a file each; attention_cpu.cpp splits the work over threads.
namespace tessera::cpu {

/// Sizes of qkv (B, L, 3, H, D) and where the parts of head h of batch b begin.
struct AttentionShape {
  AttentionShape(const TensorView& qkv, std::int64_t attention_window,
                 const TensorView& document_starts, bool is_causal,
                 const AttentionScores& attention_scores)
      : batch(qkv.shape[0]),
        length(qkv.shape[1]),
        heads(qkv.shape[3]),
        head_dim(qkv.shape[4]),
        window(attention_window == 0 ? length : std::min(attention_window, length)),
        causal(is_causal),
        scores{attention_scores.scale_of(head_dim), attention_scores.soft_cap},
        starts(document_starts ? document_starts.as<std::int32_t>() : nullptr) {}

  /// Behind the last key that queries before `queries_end` see. If attention is not causal, only
  /// documents hide any of the others.
  std::int64_t keys_end(std::int64_t queries_end) const { return causal ? queries_end : length; }
  /// Elements between the rows of q, k, v; and of out.
  std::int64_t qkv_stride() const { return 3 * heads * head_dim; }
  std::int64_t out_stride() const { return heads * head_dim; }
  /// First element of q (part 0), k (1) or v (2) of a head, and of its output.
  std::int64_t qkv_offset(std::int64_t b, std::int64_t h, int part) const {
    return b * length * qkv_stride() + (part * heads + h) * head_dim;
  }
  std::int64_t out_offset(std::int64_t b, std::int64_t h) const {
    return b * length * out_stride() + h * head_dim;
  }
  std::int64_t lse_offset(std::int64_t b, std::int64_t h) const { return (b * heads + h) * length; }
  std::int64_t query_blocks() const { return (length + kQueryBlock - 1) / kQueryBlock; }
  /// Where the document of a position begins.
  std::int64_t start_of(std::int64_t b, std::int64_t position) const {
    return starts == nullptr ? 0 : starts[b * length + position];
  }
  /// Where the document of a position ends.
  std::int64_t end_of(std::int64_t b, std::int64_t position) const {
    if (starts == nullptr) return length;
    std::int64_t end = position + 1;
    while (end < length && starts[b * length + end] != end) ++end;
    return end;
  }
  /// The first key of the first key block that queries of batch b from q0 on see.
  std::int64_t first_key(std::int64_t b, std::int64_t q0) const {
    const std::int64_t of_window = causal ? q0 - window + 1 : 0;
    return std::max(start_of(b, q0), of_window) / kKeyBlock * kKeyBlock;
  }
  /// The first query of the first query block that sees a key of the block from k0 on.
  std::int64_t first_query(std::int64_t b, std::int64_t k0) const {
    return causal ? k0 : start_of(b, k0) / kQueryBlock * kQueryBlock;
  }
  /// The last query block that sees one of the keys before `end`. A block sees a key block by this
  /// if and only if it does by first_key. `document_end`: of the document of the last of them.
  std::int64_t last_query_block(std::int64_t end, std::int64_t document_end) const {
    const std::int64_t last = std::min(end - 1 + window - 1, document_end - 1);
    return std::min(query_blocks() - 1, last / kQueryBlock);
  }

  std::int64_t batch, length, heads, head_dim;
  std::int64_t window;  ///< positions that a query sees, itself included
  bool causal;          ///< else a query sees all keys of its document
  AttentionScores scores;
  const std::int32_t* starts;  ///< (B, L): of documents; null: one in each sequence
};

/// Zeros `count` elements.
template <typename T>
void clear(T* to, std::int64_t count) {
  std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(count) * sizeof(T));
}

/// The output and lse of query block `block` of head h of batch b.
void attention_forward_block(const AttentionForwardArgs& args, const AttentionShape& shape,
                             std::int64_t b, std::int64_t h, std::int64_t block,
                             std::byte* scratch);

/// d_qkv of head h of batch b.
void attention_backward_head(const AttentionBackwardArgs& args, const AttentionShape& shape,
                             std::int64_t b, std::int64_t h, std::byte* scratch);

}  // namespace tessera::cpu
