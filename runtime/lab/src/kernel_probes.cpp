#include "kernel_probes.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "tessera/core/sim_device.h"
#include "tessera/kernels/exact_sum.h"
#include "tessera/kernels/optimizer.h"

namespace tessera {
namespace {

// A transformer block works on some thirty tensors of the size of one operand before it, or the
// block's backward pass, comes back to that one; an optimizer's state waits for a whole step. So
// much other memory goes through the caches between two uses of the same bytes here, too.
constexpr std::int64_t kBetweenUses = 32, kBetweenUpdates = 128;
constexpr std::int64_t kRingBytes = std::int64_t{1} << 19, kMostRingBytes = std::int64_t{1} << 26;
constexpr std::int64_t kAlignment = 64;

using Run = std::function<void(const KernelTable&, ProbeOperands&, Stream&)>;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// A kernel of passes: the lab counts its FLOPs and bytes as it does in a step.
KernelProbe recorded(Run run) {
  std::vector<KernelCall> calls;
  {
    SimDevice device;
    Memory memory(device);
    const auto stream = device.create_stream({.name = "probe"});
    ProbeOperands operands(memory, *stream);
    const KernelTable kernels =
        recording_kernels([&](KernelCall call) { calls.push_back(std::move(call)); });
    run(kernels, operands, *stream);
  }
  return {std::move(calls.back()), std::move(run)};
}

/// A kernel of an action that is no pass: counted by the bytes of its operands.
KernelProbe counted(std::string kernel, DType dtype, std::int64_t bytes, Run run) {
  return {{.kernel = std::move(kernel),
           .dims = {bytes},
           .dtype = dtype,
           .bytes = static_cast<double>(bytes)},
          std::move(run)};
}

template <class T>
std::vector<T> every(int step, std::vector<T> all) {
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); i += static_cast<std::size_t>(step)) {
    some.push_back(all[i]);
  }
  return some;
}

/// Kernels that go over (rows, C).
void add_row_kernels(std::vector<KernelProbe>& probes, DType t, std::int64_t rows, std::int64_t c) {
  const DType f = DType::kFloat32;
  for (const bool residual : {false, true}) {
    probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
      LayerNormForwardArgs args{.x = o.input({rows, c}, t),
                                .gamma = o.input({c}, t),
                                .beta = o.input({c}, t),
                                .y = o.output({rows, c}, t),
                                .mean = o.output({rows}, f),
                                .rstd = o.output({rows}, f)};
      if (residual) {
        args.residual = o.input({rows, c}, t);
        args.sum = o.output({rows, c}, t);
      }
      k.layer_norm_forward(args, s);
    }));
    probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
      LayerNormBackwardArgs args{.dy = o.input({rows, c}, t),
                                 .x = o.input({rows, c}, t),
                                 .mean = o.input({rows}, f),
                                 .rstd = o.input({rows}, f),
                                 .gamma = o.input({c}, t),
                                 .dx = o.output({rows, c}, t),
                                 .dgamma = o.output({c}, f),
                                 .dbeta = o.output({c}, f)};
      if (residual) args.d_residual = o.input({rows, c}, t);
      k.layer_norm_backward(args, s);
    }));
  }
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.bias_gradient({.dy = o.input({rows, c}, t), .db = o.output({c}, f)}, s);
  }));
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.scale_columns_forward(
        {.x = o.input({rows, c}, t), .scale = o.input({c}, t), .y = o.output({rows, c}, t)}, s);
  }));
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.scale_columns_backward({.dy = o.input({rows, c}, t),
                              .x = o.input({rows, c}, t),
                              .scale = o.input({c}, t),
                              .dx = o.output({rows, c}, t),
                              .d_scale = o.output({c}, f)},
                             s);
  }));
  const std::int64_t length = std::min<std::int64_t>(rows, 256);
  const Shape batch{rows / length, length, c}, tokens{rows / length, length};
  constexpr std::int64_t kVocabulary = 4096;
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.embedding_forward({.tokens = o.tokens(tokens),
                         .wte = o.input({kVocabulary, c}, t),
                         .wpe = o.input({length, c}, t),
                         .x = o.output(batch, t)},
                        s);
  }));
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.embedding_backward({.tokens = o.tokens(tokens),
                          .dx = o.input(batch, t),
                          .dwte = o.state({kVocabulary, c}),
                          .dwpe = o.state({length, c}),
                          .accumulate_wte = true,
                          .accumulate_wpe = true},
                         s);
  }));
}

void add_elementwise_kernels(std::vector<KernelProbe>& probes, DType t, std::int64_t n) {
  const DType f = DType::kFloat32;
  const auto add = [&](auto call) { probes.push_back(recorded(std::move(call))); };
  const auto unary = [&](auto member, auto make) {
    add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
      (k.*member)(make(o.input({n}, t), o.output({n}, t)), s);
    });
  };
  const auto binary = [&](auto member, auto make) {
    add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
      (k.*member)(make(o.input({n}, t), o.input({n}, t), o.output({n}, t)), s);
    });
  };
  using View = TensorView;
  unary(&KernelTable::gelu_forward, [](View x, View y) { return GeluForwardArgs{x, y}; });
  unary(&KernelTable::silu_forward, [](View x, View y) { return SiluForwardArgs{x, y}; });
  unary(&KernelTable::relu_forward, [](View x, View y) { return ReluForwardArgs{x, y}; });
  unary(&KernelTable::soft_cap, [](View x, View y) { return SoftCapArgs{x, y, 30.0F}; });
  binary(&KernelTable::gelu_backward, [](View x, View dy, View dx) {
    return GeluBackwardArgs{x, dy, dx};
  });
  binary(&KernelTable::silu_backward, [](View x, View dy, View dx) {
    return SiluBackwardArgs{x, dy, dx};
  });
  binary(&KernelTable::relu_backward, [](View y, View dy, View dx) {
    return ReluBackwardArgs{y, dy, dx};
  });
  binary(&KernelTable::multiply, [](View a, View b, View y) { return MultiplyArgs{a, b, y}; });
  constexpr std::int64_t kRow = 256;
  const std::int64_t rows = std::max<std::int64_t>(1, n / kRow);
  const Shape matrix{rows, kRow}, sequence{1, rows, kRow}, mean{1, kRow};
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.softmax_forward({.x = o.input(matrix, t), .y = o.output(matrix, t)}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.softmax_backward(
        {.y = o.input(matrix, t), .dy = o.input(matrix, t), .dx = o.output(matrix, t)}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.mean_rows_forward({.x = o.input(sequence, t), .y = o.output(mean, t)}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.mean_rows_backward({.dy = o.input(mean, t), .dx = o.output(sequence, t)}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.swiglu_forward({.x = o.input({1, n}, t), .y = o.output({1, n / 2}, t)}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.swiglu_backward(
        {.x = o.input({1, n}, t), .dy = o.input({1, n / 2}, t), .dx = o.output({1, n}, t)}, s);
  });
  // With as many heads of keys as of queries it would be a copy and a rotation of two thirds.
  constexpr std::int64_t kHeads = 2, kPacked = 4, kWidth = 64;
  static const std::vector<float> frequencies(kWidth / 2, 0.5F);
  const std::int64_t length = std::max<std::int64_t>(1, n / (kPacked * kWidth));
  const Shape packed{1, length, kPacked, kWidth}, qkv{1, length, 3, kHeads, kWidth};
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.heads_forward(
        {.packed = o.input(packed, t), .qkv = o.output(qkv, t), .frequencies = frequencies}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.heads_backward(
        {.d_qkv = o.input(qkv, t), .d_packed = o.output(packed, t), .frequencies = frequencies}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.dropout({.x = o.input({n}, t),
               .y = o.output({n}, t),
               .probability = 0.1F,
               .key = o.scalars({kRandomKeyWords}, DType::kInt64)},
              s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.add({.src = o.input({n}, t), .dst = t == f ? o.state({n}) : o.output({n}, t)}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.fill({.dst = o.output({n}, t), .value = 1.0F}, s);
  });
  add([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.cast({.src = o.input({n}, t), .dst = o.output({n}, f)}, s);
  });
}

void add_attention(std::vector<KernelProbe>& probes, DType t, int threads, std::int64_t batch,
                   std::int64_t length, std::int64_t heads, std::int64_t d) {
  // A GPU's kernels take theirs from the stream.
  const auto scratch =
      threads > 0 ? attention_workspace_bytes(batch, length, heads, d, t, threads) : 0;
  const auto workspace = [=](ProbeOperands& o) {
    return scratch > 0 ? o.output({scratch}, DType::kUInt8) : TensorView{};
  };
  const Shape qkv{batch, length, 3, heads, d}, out{batch, length, heads, d},
      rows{batch, heads, length};
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.attention_forward({.qkv = o.input(qkv, t),
                         .out = o.output(out, t),
                         .lse = o.output(rows, DType::kFloat32),
                         .workspace = workspace(o)},
                        s);
  }));
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    k.attention_backward({.d_out = o.input(out, t),
                          .qkv = o.input(qkv, t),
                          .out = o.input(out, t),
                          .lse = o.input(rows, DType::kFloat32),
                          .d_qkv = o.output(qkv, t),
                          .workspace = workspace(o)},
                         s);
  }));
}

void add_cross_entropy(std::vector<KernelProbe>& probes, DType t, std::int64_t rows,
                       std::int64_t vocabulary) {
  probes.push_back(recorded([=](const KernelTable& k, ProbeOperands& o, Stream& s) {
    // The values of the logits do not change the work.
    k.cross_entropy({.logits = o.output({rows, vocabulary}, t),
                     .targets = o.tokens({rows}),
                     .losses = o.output({rows}, DType::kFloat32),
                     .vocab_size = vocabulary},
                    s);
  }));
}

void add_updates(std::vector<KernelProbe>& probes, DType t, std::int64_t n) {
  const DType f = DType::kFloat32;
  const bool rounds = t != f;
  for (const Optimizer& row : optimizers()) {
    if (is_factored(row)) continue;
    const std::vector<double> values = hyperparameter_values(row);
    const auto states = optimizer_states(row, values);
    const auto shape_of = [n](const OptimizerState& state) {
      return Shape{(n + state.block - 1) / state.block};
    };
    // The bytes read and written, as operand_bytes counts them.
    std::int64_t bytes = n * (4 + 4 * 2 + (rounds ? 2 : 0));
    for (const OptimizerState& state : states) {
      bytes += 2 * shape_of(state).numel() * static_cast<std::int64_t>(size_of(state.dtype));
    }
    probes.push_back(counted(std::string(row.name), t, bytes,
                             [=, &row](const KernelTable& k, ProbeOperands& o, Stream& s) {
                               std::vector<TensorView> views;
                               for (const OptimizerState& state : states) {
                                 views.push_back(o.state(shape_of(state), state.dtype));
                               }
                               const OptimizerSegment all{.begin = 0, .end = n};
                               OptimizerStepArgs args{.optimizer = &row,
                                                      .master = o.state({n}),
                                                      .gradient = o.input({n}, f),
                                                      .states = views,
                                                      .segments = {&all, 1},
                                                      .scalars = o.scalars({kOptimizerScalars}, f),
                                                      .gradient_scale = o.scalars({1}, f)};
                               if (rounds) args.parameter = o.output({n}, t);
                               k.optimizer_step(args, s);
                             }));
  }
  probes.push_back(
      counted("norm-partial", t, 4 * n, [=](const KernelTable& k, ProbeOperands& o, Stream& s) {
        k.exact_squares({.x = o.input({n}, f), .words = o.scalars({kExactSumWords}, DType::kInt64)},
                        s);
      }));
}

}  // namespace

ProbeOperands::ProbeOperands(Memory& memory, Stream& stream) : memory_(memory), stream_(stream) {}

TensorView ProbeOperands::take(Ring& ring, Shape shape, DType dtype, float deviation) {
  const std::int64_t bytes = aligned(shape.numel() * static_cast<std::int64_t>(size_of(dtype)));
  const std::int64_t between = (&ring == &states_ ? kBetweenUpdates : kBetweenUses) * bytes;
  ring.window = std::max({ring.window, 2 * bytes, std::min(between, kMostRingBytes)});
  if (ring.bytes.view().bytes() < ring.window) {
    // A kernel of this probe may still be given a view of the shorter ring.
    outgrown_.push_back(std::move(ring.bytes));
    const Shape whole{ring.window / 4};
    ring.bytes =
        Tensor::empty(memory_, whole, DType::kFloat32, MemoryCategory::kWorkspace, "probe");
    const KernelTable& kernels = kernels_for(memory_.device());
    if (deviation > 0.0F) {
      kernels.fill_normal({.dst = ring.bytes, .stddev = deviation}, stream_);
    } else {
      kernels.fill({.dst = ring.bytes}, stream_);
    }
    if (deviation > 0.0F && dtype != DType::kFloat32) {
      // The first half of the fp32 numbers are rounded to as many again of 16 bits.
      const Tensor numbers = std::move(ring.bytes);
      ring.bytes = Tensor::empty(memory_, Shape{2 * whole.numel()}, dtype,
                                 MemoryCategory::kWorkspace, "probe");
      for (const std::int64_t half : {std::int64_t{0}, whole.numel()}) {
        kernels.cast({.src = numbers, .dst = ring.bytes.view().narrow(0, half, whole.numel())},
                     stream_);
      }
    }
    ring.next = 0;
  }
  if (ring.next + bytes > ring.window) ring.next = 0;
  auto* const address = static_cast<std::byte*>(ring.bytes.view().data) + ring.next;
  ring.next += bytes;
  return {address, dtype, shape};
}

void ProbeOperands::begin_probe() {
  outgrown_.clear();
  for (Ring* ring : {&fp32_, &bf16_, &fp16_, &outputs_, &states_, &tokens_, &scalars_}) {
    ring->window = kRingBytes;
    ring->next = 0;
  }
}

TensorView ProbeOperands::input(Shape shape, DType dtype) {
  Ring& ring = dtype == DType::kBFloat16 ? bf16_ : dtype == DType::kFloat16 ? fp16_ : fp32_;
  return take(ring, shape, dtype, 1.0F);
}
TensorView ProbeOperands::tokens(Shape shape) { return take(tokens_, shape, DType::kInt32, 0.0F); }
TensorView ProbeOperands::output(Shape shape, DType dtype) {
  return take(outputs_, shape, dtype, 0.0F);
}
TensorView ProbeOperands::state(Shape shape, DType dtype) {
  return take(states_, shape, dtype, 0.0F);
}
TensorView ProbeOperands::scalars(Shape shape, DType dtype) {
  return take(scalars_, shape, dtype, 0.0F);
}

std::vector<KernelProbe> step_kernel_probes(DType dtype, int threads, int coarseness) {
  std::vector<KernelProbe> probes;
  for (const std::int64_t columns : every<std::int64_t>(coarseness, {128, 768, 4096})) {
    for (const std::int64_t rows : every<std::int64_t>(coarseness, {64, 512, 4096})) {
      if (rows * columns > std::int64_t{8} << 20) continue;
      add_row_kernels(probes, dtype, rows, columns);
    }
  }
  for (const std::int64_t n :
       every<std::int64_t>(coarseness, {1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23})) {
    add_elementwise_kernels(probes, dtype, n);
    add_updates(probes, dtype, n);
  }
  for (const std::int64_t length : every<std::int64_t>(coarseness, {64, 256, 1024})) {
    for (const std::int64_t head : every<std::int64_t>(coarseness, {32, 64, 128})) {
      for (const std::int64_t heads : every<std::int64_t>(coarseness, {4, 16})) {
        add_attention(probes, dtype, threads, 1, length, heads, head);
      }
    }
  }
  for (const std::int64_t vocabulary : every<std::int64_t>(coarseness, {128, 2048, 50304})) {
    for (const std::int64_t rows : every<std::int64_t>(coarseness, {32, 256})) {
      add_cross_entropy(probes, dtype, rows, vocabulary);
    }
  }
  return probes;
}

std::vector<KernelProbe> gemm_probes(DType dtype, int coarseness) {
  constexpr double kMostFlops = 8e9;
  const auto sizes = every<std::int64_t>(coarseness, {64, 192, 512, 1536, 4096});
  std::vector<KernelProbe> probes;
  for (const std::int64_t m : sizes) {
    for (const std::int64_t n : sizes) {
      for (const std::int64_t k : sizes) {
        if (2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) >
            kMostFlops) {
          continue;
        }
        using Form = std::tuple<bool, bool, bool>;
        for (const auto& [ta, tb, bias] : {Form{false, true, true}, Form{false, true, false},
                                           Form{false, false, false}, Form{true, false, false}}) {
          probes.push_back(recorded([=](const KernelTable& kernels, ProbeOperands& o, Stream& s) {
            GemmArgs args{.a = o.input(ta ? Shape{k, m} : Shape{m, k}, dtype),
                          .b = o.input(tb ? Shape{n, k} : Shape{k, n}, dtype),
                          .c = o.output({m, n}, ta ? DType::kFloat32 : dtype)};
            args.transpose_a = ta;
            args.transpose_b = tb;
            if (bias) args.bias = o.input({n}, dtype);
            kernels.gemm(args, s);
          }));
        }
      }
    }
  }
  return probes;
}

}  // namespace tessera
