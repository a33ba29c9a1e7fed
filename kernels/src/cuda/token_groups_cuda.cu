#include <bit>
#include <utility>

#include "cuda/token_groups_cuda.h"

// A stable radix sort of (token, row) pairs by token, eight bits at a time from the lowest, then
// the bounds of each run of equal tokens. Stable, so that the rows of a token stay in ascending
// order.
//
// A pass: tiles of 2048 pairs count their digits (counts[digit][tile]); one block turns the counts
// into the places where each tile's pairs of each digit begin (their sum over all earlier digits,
// and earlier tiles of the same digit); tiles move their pairs there. Within a tile a warp takes
// neighbouring pairs, 32 at a time, and ranks equal digits among them by ballots. Integers only,
// and no order is left to chance. Bytes: some 40 n per pass, of which a step of 2^16 tokens has 3
// MB.

namespace tessera::cuda {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kSortWarps = 8;
constexpr int kSortThreads = 32 * kSortWarps;
static_assert(kSortThreads == kDigits, "a thread per digit");
/// Pairs of a warp, in rounds of 32. More would leave multiprocessors idle at usual batch sizes.
constexpr int kWarpPairs = 256;
constexpr int kTilePairs = kSortWarps * kWarpPairs;
constexpr int kScanThreads = 1024;

struct Pairs {
  std::int32_t* tokens;
  std::int32_t* rows;
};

/// Pairs that a pass reads: the caller's tokens in the first, with their places as rows.
struct Source {
  const std::int32_t* tokens;
  const std::int32_t* rows;  // null: the first pass
  std::int64_t n;
  std::int32_t vocab_size;

  /// Tokens outside of the vocabulary become the one after its last.
  __device__ std::int32_t token(std::int64_t i) const {
    const std::int32_t token = tokens[i];
    return token >= 0 && token < vocab_size ? token : vocab_size;
  }
  __device__ std::int32_t row(std::int64_t i) const {
    return rows != nullptr ? rows[i] : static_cast<std::int32_t>(i);
  }
};

__device__ int digit_of(std::int32_t token, int shift) { return (token >> shift) & (kDigits - 1); }

__global__ void __launch_bounds__(kSortThreads)
    count_digits_kernel(Source source, int shift, std::int32_t* counts) {
  SIMT_SHARED(std::int32_t[kDigits], of_digit);
  of_digit[threadIdx.x] = 0;
  __syncthreads();
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x) * kTilePairs;
  for (int p = static_cast<int>(threadIdx.x); p < kTilePairs && tile + p < source.n;
       p += kSortThreads) {
    atomicAdd(&of_digit[digit_of(source.token(tile + p), shift)], 1);  // a count: in any order
  }
  __syncthreads();
  counts[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

/// The sum of `value` over the threads of the block before this one.
__device__ std::int32_t sum_before(std::int32_t value) {
  SIMT_SHARED(std::int32_t[32], of_warp);
  const unsigned lane = threadIdx.x % 32;
  std::int32_t sum = value;  // of the warp's lanes up to this one
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const std::int32_t before = __shfl_up_sync(0xffffffffU, sum, distance);
    if (lane >= distance) sum += before;
  }
  if (lane == 31) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  std::int32_t warps_before = 0;
  for (unsigned w = 0; w < threadIdx.x / 32; ++w) warps_before += of_warp[w];
  return warps_before + sum - value;
}

/// counts[i] = sum of counts[0, i), one block: every thread takes a stretch of neighbours.
__global__ void __launch_bounds__(kScanThreads)
    add_up_counts_kernel(std::int32_t* counts, std::int64_t n) {
  const std::int64_t stretch = (n + kScanThreads - 1) / kScanThreads;
  const std::int64_t begin = threadIdx.x * stretch;
  const std::int64_t end = begin + stretch < n ? begin + stretch : n;
  std::int32_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += counts[i];
  sum = sum_before(sum);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int32_t count = counts[i];
    counts[i] = sum;
    sum += count;
  }
}

/// The lanes of the warp with this lane's digit, of those in `active`, to which it belongs.
__device__ std::uint32_t lanes_with(int digit, std::uint32_t active) {
  std::uint32_t same = active;
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = (digit >> bit & 1) != 0;
    const std::uint32_t others = __ballot_sync(0xffffffffU, set);
    same &= set ? others : ~others;
  }
  return same;
}

/// next: of each warp and digit, the place of the next pair; first its count.
__global__ void __launch_bounds__(kSortThreads)
    move_pairs_kernel(Source source, int shift, const std::int32_t* places, Pairs to) {
  SIMT_SHARED(std::int32_t[kSortWarps][kDigits], next);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTilePairs + warp * kWarpPairs;
  for (int w = 0; w < kSortWarps; ++w) next[w][threadIdx.x] = 0;
  __syncthreads();
  for (int p = lane; p < kWarpPairs && begin + p < source.n; p += 32) {
    atomicAdd(&next[warp][digit_of(source.token(begin + p), shift)], 1);
  }
  __syncthreads();
  std::int32_t place = places[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x];
  for (int w = 0; w < kSortWarps; ++w) {
    const std::int32_t count = next[w][threadIdx.x];
    next[w][threadIdx.x] = place;
    place += count;
  }
  __syncthreads();
  for (std::int64_t round = begin; round < begin + kWarpPairs && round < source.n; round += 32) {
    const std::int64_t i = round + lane;
    const bool active = i < source.n;
    const std::uint32_t all_active = __ballot_sync(0xffffffffU, active);
    const std::int32_t token = active ? source.token(i) : 0;
    const int digit = digit_of(token, shift);
    const std::uint32_t same = lanes_with(digit, all_active);
    const std::int32_t first = next[warp][digit];
    const int rank = __popc(same & ((1U << lane) - 1));
    __syncwarp();  // all have read before the last of each digit writes
    if (active) {
      to.tokens[first + rank] = token;
      to.rows[first + rank] = source.row(i);
      if (same >> lane == 1U) next[warp][digit] = first + rank + 1;
    }
    __syncwarp();
  }
}

__global__ void clear_bounds_kernel(std::int32_t* begin, std::int32_t* end,
                                    std::int64_t vocab_size) {
  const std::int64_t v = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (v < vocab_size) begin[v] = end[v] = 0;
}

__global__ void mark_bounds_kernel(const std::int32_t* tokens, std::int64_t n,
                                   std::int64_t vocab_size, std::int32_t* begin,
                                   std::int32_t* end) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n || tokens[i] >= vocab_size) return;
  if (i == 0 || tokens[i - 1] != tokens[i]) begin[tokens[i]] = static_cast<std::int32_t>(i);
  if (i == n - 1 || tokens[i + 1] != tokens[i]) end[tokens[i]] = static_cast<std::int32_t>(i) + 1;
}

/// Where the arrays are in scratch, each at a multiple of 256 bytes.
struct Arrays {
  Arrays(void* scratch, std::int64_t n, std::int64_t vocab_size)
      : next(reinterpret_cast<std::uintptr_t>(scratch)) {
    for (Pairs& pairs : pair_arrays) pairs = {take(n), take(n)};
    counts = take(ceil_div(n, kTilePairs) * kDigits);
    begin = take(vocab_size);
    end = take(vocab_size);
  }
  std::int32_t* take(std::int64_t count) {
    auto* const array = reinterpret_cast<std::int32_t*>(next);
    next += static_cast<std::uintptr_t>(ceil_div(count * 4, 256)) * 256;
    return array;
  }

  std::uintptr_t next;
  Pairs pair_arrays[2];
  std::int32_t* counts;
  std::int32_t* begin;
  std::int32_t* end;
};

}  // namespace

std::size_t token_groups_bytes(std::int64_t n, std::int64_t vocab_size) {
  return Arrays(nullptr, n, vocab_size).next;
}

TokenGroups group_by_token(const std::int32_t* tokens, std::int64_t n, std::int64_t vocab_size,
                           void* scratch, cudaStream_t queue) {
  const Arrays arrays(scratch, n, vocab_size);
  const dim3 block(kSortThreads);
  simt::launch(clear_bounds_kernel, dim3(blocks_for(vocab_size, kSortThreads)), block, 0, queue,
               arrays.begin, arrays.end, vocab_size);
  const dim3 tiles(blocks_for(n, kTilePairs));
  Source source{tokens, nullptr, n, static_cast<std::int32_t>(vocab_size)};
  Pairs to = arrays.pair_arrays[0];
  Pairs other = arrays.pair_arrays[1];
  // vocab_size itself is a value: that of the tokens outside.
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocab_size)));
  for (int shift = 0; n > 0 && shift < bits; shift += kDigitBits) {
    simt::launch(count_digits_kernel, tiles, block, 0, queue, source, shift, arrays.counts);
    simt::launch(add_up_counts_kernel, dim3(1), dim3(kScanThreads), 0, queue, arrays.counts,
                 std::int64_t{tiles.x} * kDigits);
    simt::launch(move_pairs_kernel, tiles, block, 0, queue, source, shift, arrays.counts, to);
    source.tokens = to.tokens;
    source.rows = to.rows;
    std::swap(to, other);
  }
  if (n > 0) {
    simt::launch(mark_bounds_kernel, dim3(blocks_for(n, kSortThreads)), block, 0, queue,
                 source.tokens, n, vocab_size, arrays.begin, arrays.end);
  }
  return {arrays.begin, arrays.end, source.rows};
}

}  // namespace tessera::cuda
