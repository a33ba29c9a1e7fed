#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/embedding_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "documents_argument.h"
#include "elementwise_arguments.h"
#include "tessera/core/error.h"

// Rows of two tables, the first times a scale, added, or of one; backward adds gradients into the
// rows.
//
// The backward of wte first sorts the B * L occurrences by token (stable, so that each token's stay
// in order of (b, l)). A row of dwte is then summed in fp32 and written once: dx is read once, and
// only the rows that occur are touched. The additions of one element happen in the same order
// whichever thread does them.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// out = scale * a + b
template <typename T>
void add_rows_typed(const T* a, float scale, const T* b, T* out, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(hn::MulAdd(load_n(a + i, count), splat(scale), load_n(b + i, count)), out + i, count);
  });
}

/// out = scale * a
template <typename T>
void scale_row_typed(const T* a, float scale, T* out, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, std::int64_t count) HWY_ATTR {
    store_n(hn::Mul(load_n(a + i, count), splat(scale)), out + i, count);
  });
}

/// x rows [begin, end) of (B L, C).
template <typename T>
void embedding_forward_typed(const EmbeddingForwardArgs& args, std::int64_t begin,
                             std::int64_t end) {
  const std::int64_t length = args.tokens.shape[1];
  const std::int64_t channels = args.x.shape[2];
  const std::int32_t* const tokens = args.tokens.as<std::int32_t>();
  const std::int32_t* const starts = args.starts ? args.starts.as<std::int32_t>() : nullptr;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* const word = args.wte.as<T>() + tokens[row] * channels;
    T* const x = args.x.as<T>() + row * channels;
    if (args.wpe) {
      const std::int64_t position = row % length - (starts == nullptr ? 0 : starts[row]);
      add_rows_typed(word, args.scale, args.wpe.as<T>() + position * channels, x, channels);
    } else if (args.scale != 1.0F) {
      scale_row_typed(word, args.scale, x, channels);
    } else {
      std::copy_n(word, channels, x);
    }
  }
}

void embedding_forward_range(const EmbeddingForwardArgs& args, std::int64_t begin,
                             std::int64_t end) {
  with_float_type(args.x.dtype,
                  [&]<typename T>(T) HWY_ATTR { embedding_forward_typed<T>(args, begin, end); });
}

/// out [+]= scale * dx[row 0] + scale * dx[row 1] + ..., columns [begin, end) of `channels`.
template <typename T, typename Out>
void sum_rows_typed(const T* dx, float scale, const std::int64_t* rows, std::int64_t row_count,
                    std::int64_t channels, Out* out, std::int64_t begin, std::int64_t end,
                    bool accumulate) {
  for_each_vector(end - begin, [&](std::int64_t k, std::int64_t count) HWY_ATTR {
    const std::int64_t column = begin + k;
    auto sum = accumulate ? load_n(out + column, count) : splat(0.0F);
    for (std::int64_t r = 0; r < row_count; ++r) {
      sum = hn::MulAdd(load_n(dx + rows[r] * channels + column, count), splat(scale), sum);
    }
    store_n(sum, out + column, count);
  });
}

/// `out` is one row of a table.
void sum_rows(const TensorView& dx, float scale, const std::int64_t* rows, std::int64_t row_count,
              std::int64_t channels, const TensorView& table, std::int64_t table_row,
              std::int64_t begin, std::int64_t end, bool accumulate) {
  with_float_type(table.dtype, [&]<typename Out>(Out) HWY_ATTR {
    Out* const out = table.as<Out>() + table_row * channels;
    with_float_type(dx.dtype, [&]<typename T>(T) HWY_ATTR {
      sum_rows_typed(dx.as<T>(), scale, rows, row_count, channels, out, begin, end, accumulate);
    });
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(embedding_forward_range);
HWY_EXPORT(sum_rows);

/// Columns of a row that one thread sums: a token that occurs often is shared by several threads.
constexpr std::int64_t kColumnTile = 128;

void check_tokens(const char* kernel, const TensorView& tokens, std::int64_t vocab_size) {
  const std::int32_t* const token = tokens.as<std::int32_t>();
  for (std::int64_t i = 0; i < tokens.numel(); ++i) {
    require(token[i] >= 0 && token[i] < vocab_size, ErrorCode::kInvalidArgument, kernel, ": token ",
            token[i], " at ", i, " is outside of the vocabulary of ", vocab_size);
  }
}

/// The occurrences of each token, or position: rows[start[v] .. start[v + 1]) in ascending order.
struct Occurrences {
  std::vector<std::int64_t> start;  // (V + 1)
  std::vector<std::int64_t> rows;   // (B L)
};

/// Sorts the rows 0 to n - 1, of which row i has value_of(i), below vocab_size.
template <typename ValueOf>
Occurrences sort_rows(std::int64_t n, std::int64_t vocab_size, const ValueOf& value_of) {
  const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(value_of(i)); };
  Occurrences sorted{std::vector<std::int64_t>(static_cast<std::size_t>(vocab_size) + 1, 0),
                     std::vector<std::int64_t>(static_cast<std::size_t>(n))};
  for (std::int64_t i = 0; i < n; ++i) ++sorted.start[at(i) + 1];
  for (std::size_t v = 1; v < sorted.start.size(); ++v) sorted.start[v] += sorted.start[v - 1];
  std::vector<std::int64_t> next(sorted.start.begin(), sorted.start.end() - 1);
  for (std::int64_t i = 0; i < n; ++i) sorted.rows[static_cast<std::size_t>(next[at(i)]++)] = i;
  return sorted;
}

void zero_row(const TensorView& table, std::int64_t row) {
  const auto row_bytes = table.shape[1] * static_cast<std::int64_t>(size_of(table.dtype));
  std::memset(table.data + row * row_bytes, 0, static_cast<std::size_t>(row_bytes));
}

void backward_wte(const EmbeddingBackwardArgs& args) {
  const std::int64_t vocab_size = args.dwte.shape[0];
  const std::int64_t channels = args.dwte.shape[1];
  const std::int64_t n = args.tokens.numel();
  const std::int32_t* const tokens = args.tokens.as<std::int32_t>();
  const Occurrences sorted = sort_rows(n, vocab_size, [&](std::int64_t i) { return tokens[i]; });
  const std::int64_t* const start = sorted.start.data();
  const std::int64_t* const rows = sorted.rows.data();
  if (!args.accumulate_wte) {
    parallel_for(vocab_size, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t v = begin; v < end; ++v) {
        if (start[v] == start[v + 1]) zero_row(args.dwte, v);
      }
    });
  }
  // Work is counted in occurrences, tile by tile; a token belongs to whom its first one falls to.
  const std::int64_t tiles = (channels + kColumnTile - 1) / kColumnTile;
  parallel_for(tiles * n, 128, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t work = begin; work < end; ++work) {
      const std::int64_t column = work / n * kColumnTile;
      const std::int64_t position = work % n;
      const std::int64_t token = tokens[rows[position]];
      if (start[token] != position) continue;
      HWY_DYNAMIC_DISPATCH(sum_rows)
      (args.dx, args.scale, rows + position, start[token + 1] - position, channels, args.dwte,
       token, column, std::min(channels, column + kColumnTile), args.accumulate_wte);
    }
  });
}

/// The pass for documents, which have their positions anywhere.
void backward_wpe_of_documents(const EmbeddingBackwardArgs& args) {
  const std::int64_t length = args.tokens.shape[1];
  const std::int64_t channels = args.dwpe.shape[1];
  const std::int32_t* const starts = args.starts.as<std::int32_t>();
  const Occurrences sorted = sort_rows(args.tokens.numel(), args.dwpe.shape[0],
                                       [&](std::int64_t i) { return i % length - starts[i]; });
  parallel_for(args.dwpe.shape[0], 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      const auto at = static_cast<std::size_t>(l);
      HWY_DYNAMIC_DISPATCH(sum_rows)
      (args.dx, 1.0F, sorted.rows.data() + sorted.start[at],
       sorted.start[at + 1] - sorted.start[at], channels, args.dwpe, l, 0, channels,
       args.accumulate_wpe);
    }
  });
}

void backward_wpe(const EmbeddingBackwardArgs& args) {
  if (args.starts) return backward_wpe_of_documents(args);
  const std::int64_t batch = args.tokens.shape[0];
  const std::int64_t length = args.tokens.shape[1];
  const std::int64_t channels = args.dwpe.shape[1];
  parallel_for(args.dwpe.shape[0], 16, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(batch));
    for (std::int64_t l = begin; l < end; ++l) {
      if (l >= length) {
        if (!args.accumulate_wpe) zero_row(args.dwpe, l);
        continue;
      }
      for (std::int64_t b = 0; b < batch; ++b) rows[static_cast<std::size_t>(b)] = b * length + l;
      HWY_DYNAMIC_DISPATCH(sum_rows)
      (args.dx, 1.0F, rows.data(), batch, channels, args.dwpe, l, 0, channels, args.accumulate_wpe);
    }
  });
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, Stream&) {
  check_arguments(args);
  check_tokens("embedding_forward", args.tokens, args.wte.shape[0]);
  check_start_values("embedding_forward", args.starts);
  parallel_for(args.tokens.numel(), 16, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(embedding_forward_range)(args, begin, end);
  });
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream&) {
  check_arguments(args);
  check_start_values("embedding_backward", args.starts);
  if (args.dwte) {
    check_tokens("embedding_backward", args.tokens, args.dwte.shape[0]);
    backward_wte(args);
  }
  if (args.dwpe) backward_wpe(args);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
