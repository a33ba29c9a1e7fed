#include "direct_product.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>

#include "support.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera::bench {
namespace {

using Description = dnnl::memory::desc;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::kFloat32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

Description plain(std::int64_t rows, std::int64_t columns, std::int64_t stride, bool transposed,
                  DType dtype) {
  const auto strides = transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {{rows, columns}, type_of(dtype), strides};
}

class Sgemm : public Way {
 public:
  explicit Sgemm(const ProductShape& shape) : s_(shape) {}
  void run(const Operands& o) override {
    const auto status = dnnl::sgemm(
        s_.transpose_a ? 'T' : 'N', s_.transpose_b ? 'T' : 'N', s_.m, s_.n, s_.k, 1.0F,
        static_cast<const float*>(o.a), s_.a_stride, static_cast<const float*>(o.b), s_.b_stride,
        s_.accumulate ? 1.0F : 0.0F, static_cast<float*>(o.c), s_.c_stride);
    require(status == dnnl::status::success, ErrorCode::kInternal, "oneDNN's sgemm failed");
  }

 private:
  ProductShape s_;
};

enum class Pack { kNothing, kB, kBoth };

/// The matmul primitive.
class Matmul : public Way {
 public:
  /// Throws dnnl::error.
  Matmul(const ProductShape& s, Pack pack, Memory& memory)
      : pack_(pack),
        memory_(memory),
        plain_a_(plain(s.m, s.k, s.a_stride, s.transpose_a, s.dtype)),
        plain_b_(plain(s.k, s.n, s.b_stride, s.transpose_b, s.dtype)) {
    const auto any = [&](std::int64_t rows, std::int64_t columns) {
      return Description({rows, columns}, type_of(s.dtype), dnnl::memory::format_tag::any);
    };
    const Description a = pack == Pack::kBoth ? any(s.m, s.k) : plain_a_;
    const Description b = pack == Pack::kNothing ? plain_b_ : any(s.k, s.n);
    const Description c = plain(s.m, s.n, s.c_stride, false, s.c_dtype);
    dnnl::primitive_attr attributes;
    // The library's own scratchpad belongs to the thread that has made the primitive.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR < 3
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(a, b, c), attributes,
                                              cpu_engine());
#else
    const dnnl::matmul::primitive_desc chosen(cpu_engine(), a, b, c, attributes);
#endif
    matmul_ = dnnl::matmul(chosen);
    a_ = dnnl::memory(chosen.src_desc(), cpu_engine(), nullptr);
    b_ = dnnl::memory(chosen.weights_desc(), cpu_engine(), nullptr);
    c_ = dnnl::memory(c, cpu_engine(), nullptr);
    scratch_ = dnnl::memory(chosen.scratchpad_desc(), cpu_engine());
  }

  void prepare(const Operands& o) override {
    if (pack_ == Pack::kBoth) pack(o.a, plain_a_, a_.get_desc());
    if (pack_ != Pack::kNothing) pack(o.b, plain_b_, b_.get_desc());
  }

  void run(const Operands& o) override {
    a_.set_data_handle(pack_ == Pack::kBoth ? packed_.at(o.a).view().data : const_cast<void*>(o.a));
    b_.set_data_handle(pack_ != Pack::kNothing ? packed_.at(o.b).view().data
                                               : const_cast<void*>(o.b));
    c_.set_data_handle(o.c);
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_},
                              {DNNL_ARG_WEIGHTS, b_},
                              {DNNL_ARG_DST, c_},
                              {DNNL_ARG_SCRATCHPAD, scratch_}});
  }

 private:
  void pack(const void* data, const Description& from, const Description& to) {
    const auto bytes = static_cast<std::int64_t>(to.get_size());
    Tensor& packed = packed_[data];
    if (!packed) {
      packed = Tensor::empty(memory_, Shape{bytes}, DType::kUInt8, MemoryCategory::kWorkspace,
                             "packed operand");
    }
    dnnl::memory source(from, cpu_engine(), const_cast<void*>(data));
    dnnl::memory target(to, cpu_engine(), packed.view().data);
    dnnl::reorder(source, target).execute(stream_, source, target);
  }

  const Pack pack_;
  Memory& memory_;
  const Description plain_a_, plain_b_;
  dnnl::stream stream_{cpu_engine()};
  dnnl::matmul matmul_;
  dnnl::memory a_, b_, c_, scratch_;
  std::unordered_map<const void*, Tensor> packed_;
};

/// C cut into tiles of whole rows or columns, each the product of one thread: with AMX often faster
/// than one primitive for all of C.
class TiledMatmul : public Way {
 public:
  TiledMatmul(const ProductShape& s, bool rows, std::int64_t tile, Memory& memory) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);  // a primitive is made for as many threads as there are
    const std::int64_t size = rows ? s.m : s.n;
    for (std::int64_t begin = 0; begin < size; begin += tile) {
      ProductShape part = s;
      (rows ? part.m : part.n) = std::min(tile, size - begin);
      const std::int64_t bytes = begin * static_cast<std::int64_t>(size_of(s.dtype));
      const std::int64_t c_bytes = begin * static_cast<std::int64_t>(size_of(s.c_dtype));
      tiles_.push_back({.matmul = std::make_unique<Matmul>(part, Pack::kNothing, memory),
                        .a = !rows ? 0 : bytes * (s.transpose_a ? 1 : s.a_stride),
                        .b = rows ? 0 : bytes * (s.transpose_b ? s.b_stride : 1),
                        .c = c_bytes * (rows ? s.c_stride : 1)});
    }
    omp_set_num_threads(threads);
  }

  void run(const Operands& o) override {
    const auto count = static_cast<std::int64_t>(tiles_.size());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      Tile& t = tiles_[static_cast<std::size_t>(i)];
      t.matmul->run({.a = static_cast<const std::byte*>(o.a) + t.a,
                     .b = static_cast<const std::byte*>(o.b) + t.b,
                     .c = static_cast<std::byte*>(o.c) + t.c});
    }
  }

 private:
  struct Tile {
    std::unique_ptr<Matmul> matmul;
    std::int64_t a, b, c;  ///< bytes from the operands' beginnings
  };
  std::vector<Tile> tiles_;
};

/// About 384 rows or columns, so that every thread has as many tiles; 0 if C is too small to cut.
std::int64_t tile_size(std::int64_t size) {
  constexpr std::int64_t kTile = 384, kSmallest = 192, kGranule = 32;
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t threads = omp_get_max_threads();
  const std::int64_t tiles = threads * ceil_div(size, threads * kTile);
  const std::int64_t tile = ceil_div(ceil_div(size, tiles), kGranule) * kGranule;
  return tile < kSmallest || tile >= size ? 0 : tile;
}

double element(const void* data, std::int64_t index, DType dtype) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  return static_cast<float>(static_cast<const bfloat16*>(data)[index]);
}

/// Runs once and holds a few elements of C against sums in double precision. What is wrong, or "".
std::string wrong_in(const ProductShape& s, const Operands& o, Way& way, const std::string& name) {
  constexpr std::int64_t kElements = 32;
  for (std::int64_t i = 0; i < s.m; ++i) {  // so that C += A B is A B
    std::memset(static_cast<std::byte*>(o.c) +
                    i * s.c_stride * static_cast<std::int64_t>(size_of(s.c_dtype)),
                0, static_cast<std::size_t>(s.n) * size_of(s.c_dtype));
  }
  way.run(o);
  for (std::int64_t e = 0; e < kElements; ++e) {
    const std::int64_t i = random_word({3, 1}, e) % s.m;
    const std::int64_t j = random_word({3, 2}, e) % s.n;
    double sum = 0.0, magnitude = 0.0;
    for (std::int64_t k = 0; k < s.k; ++k) {
      const double term =
          element(o.a, s.transpose_a ? k * s.a_stride + i : i * s.a_stride + k, s.dtype) *
          element(o.b, s.transpose_b ? j * s.b_stride + k : k * s.b_stride + j, s.dtype);
      sum += term;
      magnitude += std::abs(term);
    }
    const double rounding = s.c_dtype == DType::kFloat32 ? 0.0 : std::abs(sum) / 256;
    const double actual = element(o.c, i * s.c_stride + j, s.c_dtype);
    if (std::abs(actual - sum) <= 1e-5 * magnitude + rounding) continue;
    return concat("oneDNN's ", name, ": element (", i, ", ", j, ") of a product of ", s.m, " x ",
                  s.n, " x ", s.k, " is ", actual, " instead of ", sum);
  }
  return "";
}

}  // namespace

Tensor random_operand(Memory& memory, const Shape& shape, DType dtype, float stddev,
                      std::uint64_t seed) {
  NoStream stream;
  const auto tensor = [&](DType type) {
    return Tensor::empty(memory, shape, type, MemoryCategory::kActivations, "operand");
  };
  const Tensor numbers = tensor(DType::kFloat32);
  cpu_kernels().fill_normal({.dst = numbers.view().flat(), .stddev = stddev, .key = {seed, 1}},
                            stream);
  if (dtype == DType::kFloat32) return numbers;
  const Tensor result = tensor(dtype);
  cpu_kernels().cast({.src = numbers.view().flat(), .dst = result.view().flat()}, stream);
  return result;
}

DirectProduct::DirectProduct(const ProductShape& shape, std::span<const Operands> samples,
                             Memory& memory)
    : shape_(shape) {
  double plain_best = std::numeric_limits<double>::infinity();
  double packed_best = plain_best;
  const auto offer = [&](const char* name, bool packed, const auto& make) {
    try {
      std::unique_ptr<Way> way = make();
      for (const Operands& o : samples) way->prepare(o);
      const std::string wrong = wrong_in(shape, samples.front(), *way, name);
      if (!wrong.empty()) {
        require(packed, ErrorCode::kInternal, wrong);
        left_out_.push_back(wrong);
        return;
      }
      const double seconds = try_out(*way, samples);
      const bool best_plain = !packed && seconds < plain_best;
      const bool best_packed = seconds < packed_best;
      if (best_plain) plain_ = ways_.size(), plain_best = seconds;
      if (best_packed) packed_ = ways_.size(), packed_best = seconds;
      if (!best_plain && !best_packed) way.reset();  // frees what it has packed
      ways_.push_back({name, std::move(way)});
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;  // a way that this processor has not
    }
  };
  const auto matmul = [&](Pack pack) {
    return [&shape, &memory, pack] { return std::make_unique<Matmul>(shape, pack, memory); };
  };
  if (shape.dtype == DType::kFloat32) {
    offer("sgemm", false, [&] { return std::make_unique<Sgemm>(shape); });
  }
  offer("matmul", false, matmul(Pack::kNothing));
  for (const bool rows : {true, false}) {
    const std::int64_t tile = tile_size(rows ? shape.m : shape.n);
    if (tile == 0) continue;
    offer(rows ? "matmul in rows" : "matmul in columns", false,
          [&] { return std::make_unique<TiledMatmul>(shape, rows, tile, memory); });
  }
  require(!ways_.empty(), ErrorCode::kUnavailable, "oneDNN multiplies no ", to_string(shape.dtype),
          " matrices on this processor; use --precision fp32");
  offer("matmul, B packed", true, matmul(Pack::kB));
  offer("matmul, A and B packed", true, matmul(Pack::kBoth));
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    if (i != plain_ && i != packed_) ways_[i].way.reset();
  }
}

double DirectProduct::try_out(Way& way, std::span<const Operands> samples) {
  constexpr std::size_t kRuns = 3;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t run = 0; run < kRuns; ++run) {
    const Operands& operands = samples[(run + 1) % samples.size()];
    best = std::min(best, seconds_of([&] { way.run(operands); }));
  }
  return best;
}

}  // namespace tessera::bench
