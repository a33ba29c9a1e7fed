#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tessera/core/dtype.h"
#include "tessera/kernels/kernel_table.h"

// How attention cuts its work and its scratch memory, shared by the kernels and
// attention_workspace_bytes.
namespace tessera::cpu {

/// Queries and keys per block. A block of scores is 64 x 512 fp32, 128 KiB: with the operands it
/// fits the L2 cache of a core, and is large enough for GEMM to run well; more queries would waste
/// more on the diagonal (128: 10 to 15 % slower at L = 512). A key block is a whole number of query
/// blocks, so that a query block never starts before a key block it meets.
inline constexpr std::int64_t kQueryBlock = 64;
inline constexpr std::int64_t kKeyBlock = 512;
/// Rows of scores are padded so that they do not all fall on the same cache sets.
inline constexpr std::int64_t kScorePadding = 16;

/// Hands out parts of one thread's scratch, each aligned to a cache line. With a null base it only
/// counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  void* take(std::int64_t count, std::size_t size) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * static_cast<std::int64_t>(size) + 63) / 64 * 64;
    return at;
  }
  template <typename T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take(count, sizeof(T)));
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

/// One block of scores and where it stands.
struct ScoreBlock {
  ScoreBlock(std::int64_t dim, std::int64_t attention_window, const AttentionScores& scores)
      : window(attention_window),
        head_dim(dim),
        scale(scores.scale_of(dim)),
        soft_cap(scores.soft_cap) {}

  std::int64_t queries = 0, keys = 0;
  std::int64_t window;  ///< and of those the last `window`
  /// Query r sees keys [0, diagonal + r] of the block: its position less that of key 0, less r. If
  /// attention is not causal, all of its document.
  std::int64_t diagonal = 0;
  bool causal = true;

  /// Behind the last key that query r sees, in [0, keys].
  std::int64_t keys_end(std::int64_t r) const {
    const std::int64_t end = causal            ? diagonal + r + 1
                             : ends == nullptr ? keys
                                               : ends[r] - first_key;
    return std::clamp<std::int64_t>(end, 0, keys);
  }
  std::int64_t head_dim;
  float scale;        ///< of q k^T
  float soft_cap;     ///< 0: none
  bool first = true;  ///< nothing has been accumulated before this block
  /// Positions where the document of query r, or in the backward pass of key c, begins and ends,
  /// and the block's first key and query. Forward has no ends if attention is causal, and
  /// backward then no starts.
  const std::int32_t* starts = nullptr;
  const std::int32_t* ends = nullptr;
  std::int64_t first_key = 0;
  std::int64_t first_query = 0;
};

/// Scratch of one thread in the forward pass: for one block of queries.
struct ForwardScratch {
  ForwardScratch(std::byte* base, std::int64_t length, std::int64_t head_dim, DType dtype) {
    Carver carver(base);
    const std::int64_t queries = std::min(length, kQueryBlock);
    score_stride = std::min(length, kKeyBlock) + kScorePadding;
    scores = carver.take<float>(queries * score_stride);
    if (dtype != DType::kFloat32) rounded = carver.take(queries * score_stride, size_of(dtype));
    out = carver.take<float>(queries * head_dim);
    maxima = carver.take<float>(queries);
    sums = carver.take<float>(queries);
    bytes = carver.used();
  }

  float* scores;            // (queries, score_stride): q k^T, then exp of it
  void* rounded = nullptr;  // the same, rounded for the second GEMM; bf16 and fp16 only
  float* out;               // (queries, D): exp(scores) v so far
  float *maxima, *sums;     // (queries): running maximum, and sum of exp(score - maximum)
  std::int64_t score_stride;
  std::int64_t bytes;
};

/// Scratch of one thread in the backward pass: for one head. Scores are held transposed, a row per
/// key.
struct BackwardScratch {
  BackwardScratch(std::byte* base, std::int64_t length, std::int64_t head_dim, DType dtype) {
    Carver carver(base);
    const std::int64_t keys = std::min(length, kKeyBlock);
    score_stride = std::min(length, kQueryBlock) + kScorePadding;
    scores = carver.take<float>(keys * score_stride);
    d_scores = carver.take<float>(keys * score_stride);
    if (dtype != DType::kFloat32) {
      rounded = carver.take(keys * score_stride, size_of(dtype));
      d_rounded = carver.take(keys * score_stride, size_of(dtype));
    }
    dq = carver.take<float>(length * head_dim);
    dk = carver.take<float>(keys * head_dim);
    dv = carver.take<float>(keys * head_dim);
    delta = carver.take<float>(length);
    bytes = carver.used();
  }

  float *scores, *d_scores;  // (keys, score_stride): k q^T, then p^T; v do^T, then ds^T
  void *rounded = nullptr, *d_rounded = nullptr;  // the same, rounded; bf16 and fp16 only
  float* dq;                                      // (L, D)
  float *dk, *dv;                                 // (keys, D)
  float* delta;                                   // (L): row sums of do * out
  std::int64_t score_stride;
  std::int64_t bytes;
};

/// The scratch that one thread needs for either pass.
inline std::int64_t attention_scratch_bytes(std::int64_t length, std::int64_t head_dim,
                                            DType dtype) {
  return std::max(ForwardScratch(nullptr, length, head_dim, dtype).bytes,
                  BackwardScratch(nullptr, length, head_dim, dtype).bytes);
}

}  // namespace tessera::cpu
