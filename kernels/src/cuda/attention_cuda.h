#pragma once

#include <cstdint>

#include "cuda/documents_cuda.h"
#include "cuda_attention_sizes.h"
#include "tessera/core/cuda_device.h"
#include "tessera/kernels/kernel_table.h"

// The common part of attention's implementations on CUDA: how heads lie in memory, and who they
// are. attention_cuda.cpp chooses among them.
namespace tessera::cuda {

/// Sizes of qkv (B, L, 3, H, D) and out (B, L, H, D), and where a head's rows are. Goes to kernels
/// by value.
struct AttentionLayout {
  AttentionLayout() = default;
  AttentionLayout(const TensorView& qkv, std::int64_t attention_window,
                  const TensorView& document_starts = {}, bool is_causal = true,
                  const AttentionScores& scores = {})
      : batch(qkv.shape[0]),
        length(static_cast<int>(qkv.shape[1])),
        heads(static_cast<int>(qkv.shape[3])),
        head_dim(static_cast<int>(qkv.shape[4])),
        qkv_stride(3 * heads * head_dim),
        out_stride(heads * head_dim),
        window(attention_window == 0 || attention_window > length
                   ? length
                   : static_cast<int>(attention_window)),
        scale(scores.scale_of(qkv.shape[4])),
        soft_cap(scores.soft_cap),
        starts(document_starts ? document_starts.as<std::int32_t>() : nullptr),
        causal(is_causal) {}

  std::int64_t batch = 0;
  int length = 0, heads = 0, head_dim = 0;
  int qkv_stride = 0, out_stride = 0;    ///< elements between the rows of a head
  int window = 0;                        ///< positions that a query sees, itself included
  float scale = 0.0F;                    ///< of the scores
  float soft_cap = 0.0F;                 ///< of the scaled scores; 0: none
  const std::int32_t* starts = nullptr;  ///< (B, L): of documents; null: one in each sequence
  bool causal = true;                    ///< else a query sees all keys of its document

  /// Where the masks take a query to be. From the last place of a sequence, the window of which is
  /// all of it, no key is hidden but those behind the end: so much for attention that is not
  /// causal, without documents.
  template <bool kCausal>
  constexpr int position(int query) const {
    return kCausal ? query : length - 1;
  }
  /// Behind the last key that queries before `queries_end` see.
  constexpr int keys_end(int queries_end) const {
    return causal && queries_end < length ? queries_end : length;
  }
  /// The keys that a query sees: `seen` of them, of which the last is `place`.
  struct Visible {
    int place, seen;
  };
  constexpr Visible visible(int query, const Documents& of) const {
    if (causal) return {query, of.seen(query, window)};
    const int row = query < length ? query : length - 1;
    const int end = of.end(row);
    return {end - 1, end - of.start(row)};
  }
  constexpr std::int64_t all_heads() const { return batch * heads; }
  constexpr std::int64_t tiles(int rows) const { return (length + rows - 1) / rows; }
  /// The documents of sequence b. Not kSeveral: there are no starts, which the compiler then knows,
  /// too.
  template <bool kSeveral = true>
  constexpr Documents documents(std::int64_t b) const {
    return {kSeveral && starts != nullptr ? starts + b * length : nullptr, length};
  }
  /// The first of the tiles of `rows` keys that a query sees, by its first key.
  constexpr int first_key(int query, int rows, const Documents& of) const {
    const int seen = of.seen(query, window);
    return query < seen ? 0 : (query - seen + 1) / rows * rows;
  }
  /// Behind the last query that sees one of the keys before `keys_end`.
  constexpr int queries_end(int keys_end, const Documents& of) const {
    const int of_window = keys_end - 1 < length - window ? keys_end - 1 + window : length;
    const int of_document = of.end(keys_end - 1);
    return of_window < of_document ? of_window : of_document;
  }
};

/// Whether a query does not see a key: one after it, which makes the difference huge, or one before
/// the `seen` that it sees.
constexpr bool hides(int query, int key, int seen) {
  return static_cast<unsigned>(query - key) >= static_cast<unsigned>(seen);
}

/// Numbers of each query that the backward pass needs besides the tensors, (B * H, padded length)
/// each.
struct RowStatistics {
  const float* lse2 = nullptr;   ///< lse * log2(e); +inf for padding
  const float* delta = nullptr;  ///< sum of d_out * out; 0 for padding
  std::int64_t stride = 0;       ///< padded length
};

/// `bytes` aligned to 256: the call's workspace, or if that does not suffice the stream's scratch.
inline void* attention_scratch(const TensorView& workspace, std::size_t bytes, CudaStream& stream) {
  constexpr std::uintptr_t kAlignment = 256;
  const bool fits = workspace && static_cast<std::size_t>(workspace.bytes()) >= bytes &&
                    reinterpret_cast<std::uintptr_t>(workspace.data) % kAlignment == 0;
  return fits ? workspace.data : stream.scratch(bytes);
}

/// Computes them into scratch.
RowStatistics row_statistics(const AttentionBackwardArgs& args, CudaStream& stream);

/// The tensor-core kernels: bf16 or fp16, D a multiple of 8 up to kTensorCoreHeadDim, all views
/// aligned to 16 bytes, and no soft cap unless attention is causal.
inline constexpr std::int64_t kTensorCoreHeadDim = 256;
void tensor_core_attention_forward(const AttentionForwardArgs& args, CudaStream& stream);
void tensor_core_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream);

/// fp32 arithmetic on any dtype, head size and alignment, and all else.
void any_attention_forward(const AttentionForwardArgs& args, CudaStream& stream);
void any_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream);

}  // namespace tessera::cuda
