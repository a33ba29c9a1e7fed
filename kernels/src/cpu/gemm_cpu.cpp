#include "cpu/gemm_cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstring>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "cpu/cpu_kernels.h"
#include "cpu/float_types.h"
#include "cpu/gemm_fp8_cpu.h"
#include "cpu/gemm_tiles.h"
#include "cpu/parallel.h"
#include "gemm_arguments.h"
#include "tessera/core/error.h"

// GEMM by oneDNN: fp32 by its sgemm, which is faster than its matmul primitive for row-major
// operands and needs no set-up; bf16 by the matmul primitive where the processor is faster with
// bf16 than with fp32, else, and fp16 always, by widening (gemm_widened_cpu.cpp). Residuals and
// GELU are the kernels of their own, called one after another.

namespace tessera::cpu {
namespace {

/// Two matmul primitives with equal keys are the same.
using Key = std::array<std::int64_t, 7>;

Key key_of(const Product& p) {
  const std::int64_t flags = (p.a.transposed ? 1 : 0) | (p.b.transposed ? 2 : 0) |
                             (p.accumulate ? 4 : 0) | (p.bias != nullptr ? 8 : 0) |
                             (p.c_dtype == DType::kFloat32 ? 16 : 0);
  return {p.m, p.n, p.k, p.a.stride, p.b.stride, p.c_stride, flags};
}

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a, a word at a time
    for (std::int64_t word : key) {
      hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x100000001b3U;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

dnnl::engine& cpu_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::desc describe(std::int64_t rows, std::int64_t columns, const Matrix& matrix) {
  using Dims = dnnl::memory::dims;
  const Dims strides = matrix.transposed ? Dims{1, matrix.stride} : Dims{matrix.stride, 1};
  return {{rows, columns}, dnnl::memory::data_type::bf16, strides};
}

/// A matmul primitive for bf16 operands with memory objects that point wherever the call says.
class Matmul {
 public:
  explicit Matmul(const Product& p) {
    const auto bf16 = dnnl::memory::data_type::bf16;
    const auto c_type =
        p.c_dtype == DType::kFloat32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
    const auto a = describe(p.m, p.k, p.a);
    const auto b = describe(p.k, p.n, p.b);
    const dnnl::memory::desc c({p.m, p.n}, c_type, dnnl::memory::dims{p.c_stride, 1});
    const dnnl::memory::desc bias =
        p.bias == nullptr ? dnnl::memory::desc()
                          : dnnl::memory::desc({1, p.n}, bf16, dnnl::memory::dims{p.n, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR < 3
    const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(a, b, bias, c), attributes,
                                                 cpu_engine());
#else
    const dnnl::matmul::primitive_desc primitive(cpu_engine(), a, b, bias, c, attributes);
#endif
    matmul_ = dnnl::matmul(primitive);
    scratch_bytes_ = primitive.scratchpad_desc().get_size();
    add(DNNL_ARG_SRC, a);
    add(DNNL_ARG_WEIGHTS, b);
    add(DNNL_ARG_DST, c);
    if (p.bias != nullptr) add(DNNL_ARG_BIAS, bias);
    add(DNNL_ARG_SCRATCHPAD, primitive.scratchpad_desc());
  }

  std::size_t scratch_bytes() const { return scratch_bytes_; }

  void run(const Product& p, void* scratch, dnnl::stream& stream) {
    point(DNNL_ARG_SRC, p.a.data);
    point(DNNL_ARG_WEIGHTS, p.b.data);
    point(DNNL_ARG_DST, p.c);
    if (p.bias != nullptr) point(DNNL_ARG_BIAS, p.bias);
    point(DNNL_ARG_SCRATCHPAD, scratch);
    matmul_.execute(stream, arguments_);
  }

 private:
  void add(int argument, const dnnl::memory::desc& desc) {
    arguments_.emplace(argument, dnnl::memory(desc, cpu_engine(), nullptr));
  }
  void point(int argument, const void* data) {
    arguments_.at(argument).set_data_handle(const_cast<void*>(data));
  }

  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::size_t scratch_bytes_ = 0;
};

/// One thread's primitives and their scratch. Per thread because a Matmul's memory objects are
/// written by each call; the generated code behind them is shared by oneDNN's own cache.
class MatmulCache {
 public:
  void run(const Product& p) {
    const Key key = key_of(p);
    auto found = matmuls_.find(key);
    if (found == matmuls_.end()) {
      // A training run has a few dozen shapes; a limit keeps a sweep of sizes from piling up.
      if (matmuls_.size() >= kMaxMatmuls) matmuls_.clear();
      found = matmuls_.emplace(key, Matmul(p)).first;
    }
    Matmul& matmul = found->second;
    const std::size_t wanted = matmul.scratch_bytes() + kAlignment;
    if (scratch_.size() < wanted) scratch_ = std::vector<std::byte>(wanted);
    void* aligned = scratch_.data();
    std::size_t space = scratch_.size();
    std::align(kAlignment, matmul.scratch_bytes(), aligned, space);
    matmul.run(p, aligned, stream_);
  }

 private:
  static constexpr std::size_t kMaxMatmuls = 1024;
  static constexpr std::size_t kAlignment = 4096;

  dnnl::stream stream_{cpu_engine()};
  std::unordered_map<Key, Matmul, KeyHash> matmuls_;
  std::vector<std::byte> scratch_;
};

// [Note: bf16 products] Instructions for bf16 are faster than those for fp32 with AMX and on AMD's
// processors, but not on Intel's since Sapphire Rapids: there bf16 is meant for AMX, which a
// virtual machine may lack, and vectors of bf16 are multiplied at 0.64 of the rate of fp32 (88 and
// 137 GFLOP/s on a core of an Emerald Rapids, in loops within registers). The rule asks what the
// processor is and measures nothing, so that a machine gives the same bits each time.

bool has_onednn_isa(dnnl::cpu_isa wanted) {
  // The values of cpu_isa are sets of features: a superset has all bits of its subset.
  const auto all = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & all) == all;
}

/// Intel's processors since Sapphire Rapids: those with AVX512-FP16.
bool is_sapphire_rapids_or_later() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kExtendedFeatures = 7, kAvx512Fp16 = 1U << 23U;
  return __builtin_cpu_is("intel") != 0 &&
         __get_cpuid_count(kExtendedFeatures, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & kAvx512Fp16) != 0;
#else
  return false;
#endif
}

bool bf16_is_faster_than_fp32() {
  static const bool faster =
      onednn_multiplies_bf16() &&
      (has_onednn_isa(dnnl::cpu_isa::avx512_core_amx) || !is_sapphire_rapids_or_later());
  return faster;
}

[[noreturn]] void fail_in_onednn(const Product& p, dnnl_status_t status) {
  if (status == dnnl_out_of_memory) {
    fail(ErrorCode::kOutOfMemory, "no memory for oneDNN to multiply ", p.m, " x ", p.k, " by ", p.k,
         " x ", p.n, "; use fewer ranks, or raise the limit of this process (ulimit -v)");
  }
  fail(ErrorCode::kInternal, "oneDNN failed to multiply ", p.m, " x ", p.k, " by ", p.k, " x ", p.n,
       ", status ", static_cast<int>(status));
}

/// The address `elements` further on.
template <typename Pointer>
Pointer advance(Pointer data, std::int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte,
                                  std::byte>;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

/// The part of `p` that computes rows [row, row + m) and columns [column, column + n) of C.
Product part_of(const Product& p, std::int64_t row, std::int64_t m, std::int64_t column,
                std::int64_t n) {
  Product part = p;
  part.m = m;
  part.n = n;
  part.a.data = advance(p.a.data, p.a.transposed ? row : row * p.a.stride, p.dtype);
  part.b.data = advance(p.b.data, p.b.transposed ? column * p.b.stride : column, p.dtype);
  part.c = advance(p.c, row * p.c_stride + column, p.c_dtype);
  if (p.bias != nullptr) part.bias = advance(p.bias, column, p.dtype);
  return part;
}

/// One call of oneDNN, for a tile.
void run_sgemm(const Product& p) {
  const auto status = dnnl::sgemm(p.a.transposed ? 'T' : 'N', p.b.transposed ? 'T' : 'N', p.m, p.n,
                                  p.k, 1.0F, static_cast<const float*>(p.a.data), p.a.stride,
                                  static_cast<const float*>(p.b.data), p.b.stride,
                                  p.accumulate ? 1.0F : 0.0F, static_cast<float*>(p.c), p.c_stride);
  if (status != dnnl::status::success) fail_in_onednn(p, static_cast<dnnl_status_t>(status));
}

/// One call of oneDNN for a tile, in bf16.
void run_matmul(const Product& p) {
  static thread_local MatmulCache cache;
  try {
    cache.run(p);
  } catch (const dnnl::error& error) {
    fail_in_onednn(p, error.status);
  }
}

/// Calls run(part) for each tile of C, each on one thread (see gemm_tiles.h).
void run_tiles(const Product& p, void (*run)(const Product&)) {
  const TileGrid grid = tile_grid(p);
  parallel_for(grid.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Tile t = grid.tile(i);
      run(part_of(p, t.row, t.rows, t.column, t.columns));
    }
  });
}

void multiply_fp32(Product p) {
  if (p.bias != nullptr) {
    start_product(p);
    p.bias = nullptr;
    p.accumulate = true;
  }
  run_tiles(p, run_sgemm);
}

}  // namespace

bool onednn_multiplies_bf16() { return has_onednn_isa(dnnl::cpu_isa::avx512_core_bf16); }

// [Note: inner sizes of 63 with AMX] oneDNN 2.6 rounds an odd inner size up to pairs of bf16. At 63
// the rounded size is a whole block of 64, the tiles keep the shape of the remainder 31, and the
// product ends in SIGILL or in wrong sums, depending on the other sizes. All other inner sizes up
// to 330, and those around each multiple of 32 up to 1100, gave exact sums (36 shapes for each).
void multiply_bf16(const Product& p) {
  constexpr std::int64_t kWrongWithAmx = 63;
  if (p.k == kWrongWithAmx && has_onednn_isa(dnnl::cpu_isa::avx512_core_amx)) {
    return multiply_widened(p);
  }
  run_tiles(p, run_matmul);
}

void start_product(const Product& p) {
  const auto on_rows = [&](const auto& start_row) {
    parallel_for(p.m, std::max<std::int64_t>(1, 65536 / p.n),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     start_row(static_cast<float*>(p.c) + i * p.c_stride);
                   }
                 });
  };
  if (p.bias == nullptr) {
    if (!p.accumulate) on_rows([&](float* row) { std::fill(row, row + p.n, 0.0F); });
    return;
  }
  // One loop for each dtype, which compilers turn into vector instructions.
  with_float_type(p.dtype, [&]<typename T>(T) {
    const T* const bias = static_cast<const T*>(p.bias);
    on_rows([&](float* row) {
      if (p.accumulate) {
#pragma omp simd
        for (std::int64_t j = 0; j < p.n; ++j) row[j] += static_cast<float>(bias[j]);
      } else {
#pragma omp simd
        for (std::int64_t j = 0; j < p.n; ++j) row[j] = 0.0F + static_cast<float>(bias[j]);
      }
    });
  });
}

void multiply(const Product& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.dtype == DType::kBFloat16) {
    return p.k > 0 && bf16_is_faster_than_fp32() ? multiply_bf16(p) : multiply_widened(p);
  }
  if (p.dtype == DType::kFloat16) return multiply_widened(p);
  if (p.k == 0) return start_product(p);
  multiply_fp32(p);
}

void gemm(const GemmArgs& args, Stream& stream) {
  const GemmSizes sizes = check_gemm(args);
  if (is_fp8(args)) return gemm_fp8(args, sizes, stream);
  const TensorView& product = args.gelu_input ? args.gelu_input : args.c;
  multiply({.m = sizes.m,
            .n = sizes.n,
            .k = sizes.k,
            .a = {args.a.data, sizes.a_stride, args.transpose_a},
            .b = {args.b.data, sizes.b_stride, args.transpose_b},
            .c = product.data,
            .c_stride = sizes.c_stride,
            .bias = args.bias.data,
            .accumulate = args.accumulate,
            .dtype = args.a.dtype,
            .c_dtype = args.c.dtype});
  if (args.residual) add({.src = args.residual, .dst = args.c}, stream);
  if (args.gelu) gelu_forward({.x = product, .y = args.c}, stream);
  if (args.gelu_backward_input) {
    gelu_backward({.x = args.gelu_backward_input, .dy = args.c, .dx = args.c}, stream);
  }
}

}  // namespace tessera::cpu
