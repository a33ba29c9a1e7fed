#include "cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm_widened_cpu.cpp"
#include <hwy/foreach_target.h>

#include "cpu/simd.h"

#include <algorithm>
#include <vector>

#include "cpu/gemm_cpu.h"
#include "cpu/parallel.h"

// GEMM of fp16, and of bf16 where fp32 instructions are the fastest: blocks of A and B are widened
// to fp32 and multiplied by the fp32 path, into C itself where it is fp32, else into an fp32 block
// that is rounded once at the end. Blocks are so large that the conversions cost a few percent of
// the arithmetic, and so small that the scratch of a thread is 12 MiB whatever the operands' sizes.

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace {

/// `from` points to elements of `dtype`, to the first of a row; so does `to` of round_row.
void widen_row(const void* from, DType dtype, float* to, std::int64_t n) {
  with_float_type(dtype, [&]<typename T>(T) HWY_ATTR {
    const T* const row = static_cast<const T*>(from);
    for_each_vector(n, [&](std::int64_t i, std::int64_t count)
                           HWY_ATTR { store_n(load_n(row + i, count), to + i, count); });
  });
}

void round_row(const float* from, void* to, DType dtype, std::int64_t n) {
  with_float_type(dtype, [&]<typename T>(T) HWY_ATTR {
    T* const row = static_cast<T*>(to);
    for_each_vector(n, [&](std::int64_t i, std::int64_t count)
                           HWY_ATTR { store_n(load_n(from + i, count), row + i, count); });
  });
}

}  // namespace
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(widen_row);
HWY_EXPORT(round_row);

constexpr std::int64_t kBlock = 1024;
constexpr std::int64_t kRowGrain = 64;

/// The address of an element.
std::byte* element(const void* first, std::int64_t index, DType dtype) {
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(first));
  return bytes + index * static_cast<std::int64_t>(size_of(dtype));
}

/// The block of an operand that was widened last.
class WidenedBlock {
 public:
  void start(std::int64_t elements) {
    const auto size = static_cast<std::size_t>(elements);
    if (block_.size() < size) block_.resize(size);
    from_ = nullptr;
  }

  /// op(X)'s block of (rows, columns) at (row, column), as fp32 rows in the layout of X. Is widened
  /// anew only if it begins elsewhere than the last one: then it is the same, within a product.
  Matrix of(const Matrix& x, DType dtype, std::int64_t row, std::int64_t column, std::int64_t rows,
            std::int64_t columns) {
    if (x.transposed) {
      std::swap(row, column);
      std::swap(rows, columns);
    }
    float* const to = block_.data();
    const std::byte* const from = element(x.data, row * x.stride + column, dtype);
    if (from != from_) {
      parallel_for(rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          HWY_DYNAMIC_DISPATCH(widen_row)
          (element(from, i * x.stride, dtype), dtype, to + i * columns, columns);
        }
      });
    }
    from_ = from;
    return {to, columns, x.transposed};
  }

 private:
  std::vector<float> block_;
  const std::byte* from_ = nullptr;
};

/// Scratch for one block of each operand and of C.
struct Blocks {
  WidenedBlock a, b;
  std::vector<float> c;
};

/// The block (p.m, p.n) of C at (row, column), neither larger than kBlock. C and the bias of `p`
/// begin at the block already; its operands are whole.
void multiply_block(const Product& p, std::int64_t row, std::int64_t column, Blocks& blocks) {
  const bool direct = p.c_dtype == DType::kFloat32;
  const auto row_of_c = [&](std::int64_t i) { return element(p.c, i * p.c_stride, p.c_dtype); };
  Product block;
  block.m = p.m;
  block.n = p.n;
  block.accumulate = p.accumulate;
  block.dtype = p.dtype;
  block.c = direct ? p.c : blocks.c.data();
  block.c_stride = direct ? p.c_stride : p.n;
  block.bias = p.bias;
  if (!direct && p.accumulate) {
    parallel_for(p.m, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        HWY_DYNAMIC_DISPATCH(widen_row)
        (row_of_c(i), p.c_dtype, blocks.c.data() + i * p.n, p.n);
      }
    });
  }
  if (p.bias != nullptr || p.k == 0) {
    start_product(block);
    block.bias = nullptr;
    block.accumulate = true;
  }
  block.dtype = DType::kFloat32;
  for (std::int64_t k = 0; k < p.k; k += kBlock) {
    block.k = std::min(kBlock, p.k - k);
    block.a = blocks.a.of(p.a, p.dtype, row, k, p.m, block.k);
    block.b = blocks.b.of(p.b, p.dtype, k, column, block.k, p.n);
    multiply(block);
    block.accumulate = true;
  }
  if (direct) return;
  parallel_for(p.m, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      HWY_DYNAMIC_DISPATCH(round_row)(blocks.c.data() + i * p.n, row_of_c(i), p.c_dtype, p.n);
    }
  });
}

}  // namespace

void multiply_widened(const Product& p) {
  const auto size = [](std::int64_t rows, std::int64_t columns) {
    return std::min(rows, kBlock) * std::min(columns, kBlock);
  };
  static thread_local Blocks blocks;
  blocks.a.start(size(p.m, p.k));
  blocks.b.start(size(p.k, p.n));
  const auto c_size = static_cast<std::size_t>(size(p.m, p.n));
  if (p.c_dtype != DType::kFloat32 && blocks.c.size() < c_size) blocks.c.resize(c_size);

  for (std::int64_t column = 0; column < p.n; column += kBlock) {
    for (std::int64_t row = 0; row < p.m; row += kBlock) {
      Product block = p;
      block.m = std::min(kBlock, p.m - row);
      block.n = std::min(kBlock, p.n - column);
      block.c = element(p.c, row * p.c_stride + column, p.c_dtype);
      if (p.bias != nullptr) block.bias = element(p.bias, column, p.dtype);
      multiply_block(block, row, column, blocks);
    }
  }
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
