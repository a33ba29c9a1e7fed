#include <limits>

#include "cuda/cuda_kernels.h"
#include "cuda/documents_cuda.h"
#include "cuda/elementwise_cuda.h"
#include "cuda/token_groups_cuda.h"
#include "elementwise_arguments.h"

// x (B, L, C) = scale wte[token] [+ wpe[position]]; backward adds the rows of dx, times the scale
// for wte, into the rows of the tables that they came from. A token outside of the vocabulary makes
// its row of x NaN and has no gradient in dwte.
//
// The backward groups the B L occurrences by token (token_groups_cuda.h). Then a warp per row of a
// table and group of columns adds the rows of dx in order of (b, l), in fp32, and writes once: the
// CPU's bits. Rows that do not occur are zeroed in the same launch. Bytes: dx once per table, the
// tables once (twice where they are added to). Positions of documents, which lie anywhere, are
// grouped as tokens are.

namespace tessera::cuda {
namespace {

constexpr int kEmbeddingWarps = 8;
constexpr int kEmbeddingThreads = 32 * kEmbeddingWarps;
/// Rows of dx whose loads are on their way together.
constexpr int kEmbeddingRowsAhead = 4;

template <typename T>
struct EmbeddingProblem {
  const std::int32_t* tokens;
  const T* wte;
  const T* wpe;  // null: no positions
  T* x;
  const std::int32_t* starts;  // null: one document in each sequence
  std::int64_t rows, length, channels, vocab_size;
  float scale;
};

template <int kSize, bool kPositions, typename T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_forward_kernel(EmbeddingProblem<T> p) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kEmbeddingWarps +
                           static_cast<std::int64_t>(threadIdx.x) / 32;
  if (row >= p.rows) return;
  const std::int32_t token = p.tokens[row];
  const bool known = token >= 0 && token < p.vocab_size;
  const T* const word = p.wte + (known ? token : 0) * p.channels;
  const std::int64_t place = row % p.length;
  const T* const position =
      kPositions ? p.wpe + (place - document_start(p.starts, row, place)) * p.channels : nullptr;
  T* const x = p.x + row * p.channels;
#pragma unroll 4
  for (std::int64_t c = threadIdx.x % 32 * kSize; c < p.channels; c += 32 * kSize) {
    Pack<T, kSize> sum = load_pack<kSize>(word + c), term{};
    if constexpr (kPositions) term = load_pack<kSize>(position + c);
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      float value = simt::to_float(sum.v[e]);
      value = kPositions ? fmaf(value, p.scale, simt::to_float(term.v[e])) : value * p.scale;
      sum.v[e] = simt::from_float<T>(known ? value : NAN);
    }
    store_pack(x + c, sum);
  }
}

/// What goes into a row of dwte: the rows of its token. Of dwpe with documents: those of a
/// position.
struct RowsOfTokens {
  TokenGroups groups;
  __device__ std::int32_t count(std::int64_t row) const {
    return groups.end[row] - groups.begin[row];
  }
  __device__ std::int64_t at(std::int64_t row, std::int32_t i) const {
    return groups.rows[groups.begin[row] + i];
  }
};

/// What goes into a row of dwpe: the rows of its position in each sequence.
struct RowsOfPositions {
  std::int64_t batch, length;
  __device__ std::int32_t count(std::int64_t row) const {
    return row < length ? static_cast<std::int32_t>(batch) : 0;
  }
  __device__ std::int64_t at(std::int64_t row, std::int32_t i) const { return i * length + row; }
};

/// One group of columns of a row of `table`: [its value +] the rows of dx, scaled, in order.
template <int kSize, typename Rows, typename T, typename D>
__device__ void sum_rows(const Rows& rows, std::int64_t row, const T* dx, std::int64_t channels,
                         D* to, float scale, bool accumulate) {
  const std::int32_t count = rows.count(row);
  if (accumulate && count == 0) return;
  float sums[kSize] = {};
  if (accumulate) {
    const auto old = load_pack<kSize>(to);
#pragma unroll
    for (int e = 0; e < kSize; ++e) sums[e] = simt::to_float(old.v[e]);
  }
  const auto add = [&](const Pack<T, kSize>& term) {
#pragma unroll
    for (int e = 0; e < kSize; ++e) sums[e] = fmaf(simt::to_float(term.v[e]), scale, sums[e]);
  };
  std::int32_t i = 0;
  for (; i + kEmbeddingRowsAhead <= count; i += kEmbeddingRowsAhead) {
    Pack<T, kSize> terms[kEmbeddingRowsAhead];
#pragma unroll
    for (int a = 0; a < kEmbeddingRowsAhead; ++a) {
      terms[a] = load_pack<kSize>(dx + rows.at(row, i + a) * channels);
    }
#pragma unroll
    for (int a = 0; a < kEmbeddingRowsAhead; ++a) add(terms[a]);
  }
  for (; i < count; ++i) add(load_pack<kSize>(dx + rows.at(row, i) * channels));
  Pack<D, kSize> result;
#pragma unroll
  for (int e = 0; e < kSize; ++e) result.v[e] = simt::from_float<D>(sums[e]);
  store_pack(to, result);
}

/// A warp for each row of `table` (table_rows, channels), 32 groups of columns per gridDim.y.
template <int kSize, typename Rows, typename T, typename D>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_backward_kernel(Rows rows, const T* dx, D* table, std::int64_t table_rows,
                              std::int64_t channels, float scale, bool accumulate) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kEmbeddingWarps +
                           static_cast<std::int64_t>(threadIdx.x) / 32;
  const std::int64_t column =
      (static_cast<std::int64_t>(blockIdx.y) * 32 + threadIdx.x % 32) * kSize;
  if (row >= table_rows || column >= channels) return;
  sum_rows<kSize>(rows, row, dx + column, channels, table + row * channels + column, scale,
                  accumulate);
}

template <typename Rows, typename T, typename D>
void launch_backward(const Rows& rows, const TensorView& dx, const TensorView& table, float scale,
                     bool accumulate, cudaStream_t queue) {
  const auto* const from = device_data<T>(dx);
  auto* const to = device_data<D>(table);
  const std::int64_t channels = table.shape[1];
  const auto launch = [&](auto kernel, int size) {
    simt::launch(kernel,
                 dim3(blocks_for(table.shape[0], kEmbeddingWarps), blocks_for(channels, 32 * size)),
                 dim3(kEmbeddingThreads), 0, queue, rows, from, to, table.shape[0], channels, scale,
                 accumulate);
  };
  constexpr int kSize = kGroupOf<T> < kGroupOf<D> ? kGroupOf<T> : kGroupOf<D>;
  if (channels % kSize == 0 && groups_aligned<kSize>(from, to)) {
    launch(embedding_backward_kernel<kSize, Rows, T, D>, kSize);
  } else {
    launch(embedding_backward_kernel<1, Rows, T, D>, 1);
  }
}

template <typename Rows>
void add_rows(const Rows& rows, const TensorView& dx, const TensorView& table, float scale,
              bool accumulate, cudaStream_t queue) {
  constexpr const char* kName = "embedding_backward";
  with_element_types(kName, dx.dtype, table.dtype, [&](auto type, auto table_type) {
    launch_backward<Rows, typename decltype(type)::type, typename decltype(table_type)::type>(
        rows, dx, table, scale, accumulate, queue);
  });
}

const std::int32_t* device_starts(const TensorView& starts) {
  return starts ? starts.as<std::int32_t>() : nullptr;
}

/// positions[row] = that of the row of (B L) in its document.
__global__ void __launch_bounds__(kEmbeddingThreads)
    document_positions_kernel(const std::int32_t* starts, std::int64_t rows, std::int64_t length,
                              std::int32_t* positions) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kEmbeddingThreads + threadIdx.x;
  if (row >= rows) return;
  const std::int64_t place = row % length;
  positions[row] = static_cast<std::int32_t>(place - document_start(starts, row, place));
}

/// Adds the rows of dx into those of dwpe by their positions in documents.
void add_document_rows(const EmbeddingBackwardArgs& args, CudaStream& stream) {
  const std::int64_t n = args.tokens.numel(), table_rows = args.dwpe.shape[0];
  require(table_rows < std::numeric_limits<std::int32_t>::max(), ErrorCode::kInvalidArgument,
          "embedding_backward: dwpe has ", table_rows, " rows; wanted fewer than 2^31");
  const std::size_t groups_bytes = token_groups_bytes(n, table_rows);
  auto* const scratch = static_cast<std::byte*>(
      stream.scratch(groups_bytes + static_cast<std::size_t>(n) * sizeof(std::int32_t)));
  auto* const positions = reinterpret_cast<std::int32_t*>(scratch + groups_bytes);
  if (n > 0) {
    simt::launch(document_positions_kernel, dim3(blocks_for(n, kEmbeddingThreads)),
                 dim3(kEmbeddingThreads), 0, stream.handle(), device_starts(args.starts), n,
                 args.tokens.shape[1], positions);
  }
  const TokenGroups groups = group_by_token(positions, n, table_rows, scratch, stream.handle());
  add_rows(RowsOfTokens{groups}, args.dx, args.dwpe, 1.0F, args.accumulate_wpe, stream.handle());
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) {
  check_arguments(args);
  const cudaStream_t queue = handle(stream);
  if (args.x.numel() == 0) return;
  with_element_type("embedding_forward", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const EmbeddingProblem<T> problem{.tokens = args.tokens.as<std::int32_t>(),
                                      .wte = device_data<T>(args.wte),
                                      .wpe = args.wpe ? device_data<T>(args.wpe) : nullptr,
                                      .x = device_data<T>(args.x),
                                      .starts = device_starts(args.starts),
                                      .rows = args.tokens.numel(),
                                      .length = args.tokens.shape[1],
                                      .channels = args.x.shape[2],
                                      .vocab_size = args.wte.shape[0],
                                      .scale = args.scale};
    constexpr int kSize = kGroupOf<T>;
    const bool grouped =
        problem.channels % kSize == 0 && groups_aligned<kSize>(problem.wte, problem.wpe, problem.x);
    const auto launch = [&](auto kernel) {
      simt::launch(kernel, dim3(blocks_for(problem.rows, kEmbeddingWarps)), dim3(kEmbeddingThreads),
                   0, queue, problem);
    };
    if (args.wpe) {
      launch(grouped ? embedding_forward_kernel<kSize, true, T>
                     : embedding_forward_kernel<1, true, T>);
    } else {
      launch(grouped ? embedding_forward_kernel<kSize, false, T>
                     : embedding_forward_kernel<1, false, T>);
    }
  });
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  check_arguments(args);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t n = args.tokens.numel();
  const std::int64_t vocab_size = args.dwte ? args.dwte.shape[0] : 0;
  require(n <= kMost && vocab_size < kMost, ErrorCode::kInvalidArgument, "embedding_backward: ", n,
          " tokens of a vocabulary of ", vocab_size, ", each must be below 2^31");
  CudaStream& queue = cuda_stream(stream);
  if (args.dx.shape[2] == 0) return;
  if (vocab_size > 0) {
    void* const scratch = queue.scratch(token_groups_bytes(n, vocab_size));
    const TokenGroups groups =
        group_by_token(args.tokens.as<std::int32_t>(), n, vocab_size, scratch, queue.handle());
    add_rows(RowsOfTokens{groups}, args.dx, args.dwte, args.scale, args.accumulate_wte,
             queue.handle());
  }
  if (!args.dwpe || args.dwpe.shape[0] == 0) return;
  if (args.starts) {
    add_document_rows(args, queue);
  } else {
    const RowsOfPositions positions{args.tokens.shape[0], args.tokens.shape[1]};
    add_rows(positions, args.dx, args.dwpe, 1.0F, args.accumulate_wpe, queue.handle());
  }
}

}  // namespace tessera::cuda
