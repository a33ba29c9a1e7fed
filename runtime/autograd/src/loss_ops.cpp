#include <algorithm>
#include <utility>
#include <vector>

#include "op_support.h"

namespace tessera::ops {
namespace {

constexpr double kSoftmaxFlops = 8.0;

// Each chunk of rows reads the weight twice and reads and writes its gradient: with few rows that
// costs more than the products. At V = 50257, C = 768 on two busy cores 64 rows ran at 0.65 (fp32)
// and 0.45 (bf16) of the speed of 320. A GPU has many more multiprocessors to fill with rows, and
// memory for more of them: 16384 tokens are 4 chunks there, whose gradients of the weight move
// 1.2 GB, where 320 rows each would move 16.
constexpr std::int64_t kCpuChunkElements = std::int64_t{16} << 20;   // 64 MiB of fp32 logits
constexpr std::int64_t kGpuChunkElements = std::int64_t{256} << 20;  // 512 MiB of bf16 logits
// More would be days of products, and minutes of a plan.
constexpr std::int64_t kMaxChunks = std::int64_t{1} << 17;

void check_targets(const char* op, const TensorView& targets, std::int64_t rows) {
  require(targets.dtype == DType::kInt32 && targets.numel() == rows, ErrorCode::kInvalidArgument,
          op, ": targets must be ", rows, " int32 (one per row), got ", targets.shape, " ",
          to_string(targets.dtype));
}

/// Losses of `rows` rows as a value whose gradient goes on as `gradients` to the inputs. See
/// [Note: losses end the tape].
Value loss_output(Tape& tape, Tensor losses, std::vector<std::pair<int, Tensor>> gradients) {
  return tape.split_output(
      std::move(losses),
      [gradients = std::move(gradients)](Tape& t, const Tensor& /*loss_scale everywhere*/) mutable {
        for (auto& [id, gradient] : gradients) {
          t.add_gradient(id, std::move(gradient));
        }
      });
}

/// A loss that is not recorded has its logits as they were, and may count hits.
TensorView hits_of(const Tape& tape) {
  return tape.recording() ? TensorView() : tape.options().hits;
}

/// `x` to be overwritten by the gradient of a loss while recording: itself, or a copy if anything
/// else holds it.
Tensor becoming_gradient(Tape& tape, const Value& x, const char* what) {
  Tensor gradient = x.tensor;
  const bool in_place = x.tensor.use_count() == 2;  // `x` and `gradient`
  if (!tape.recording() || in_place) return gradient;
  gradient = tape.activation(x.shape(), x.dtype(), what);
  tape.kernels().cast({.src = x.tensor, .dst = gradient}, tape.stream());
  return gradient;
}

/// Options of a loss fused with the matmul that makes its logits.
struct LossOptions {
  std::int32_t ignore_index = -1;
  float soft_cap = 0.0F;  ///< of the logits; 0: none
  Parameter* bias = nullptr;
  Parameter* low_rank = nullptr;  ///< (V, R), of a product that logits have besides
};

/// The other factor of that product, (rows, R), and its gradient, of which there may be none.
struct LowRankRows {
  TensorView hidden{}, gradient{};
};

/// The three products of one chunk share one piece of scratch for the logits.
class ChunkedLoss {
 public:
  ChunkedLoss(Tape& tape, const TensorView& x, Parameter& weight, const LossOptions& options,
              const LowRankRows& low_rank, std::int64_t chunk_rows)
      : tape_(tape),
        x_(x),
        weight_(weight),
        options_(options),
        low_rank_(low_rank),
        vocab_size_(weight.value.shape[0]) {
    // Rows of logits start at multiples of 64 bytes, on a GPU of 128 elements, so that every
    // leading dimension of the products is aligned. Of the products one has V columns, one V rows
    // and one a depth of V: on a GPU an odd V costs the fast algorithms, so the zeros behind the
    // weight, if it has any, and behind its gradient take part. Their logits count nothing and have
    // gradient 0.
    const bool gpu = tape.options().device == DeviceKind::kCuda;
    const bool is_padded = gpu && weight.padded_rows > 0 && options.bias == nullptr;
    columns_ = is_padded ? weight.padded_rows : vocab_size_;
    const std::int64_t row_align = gpu ? 128 : 64 / static_cast<std::int64_t>(size_of(x.dtype));
    stride_ = (columns_ + row_align - 1) / row_align * row_align;
    scratch_ = tape.workspace(chunk_rows * stride_ * static_cast<std::int64_t>(size_of(x.dtype)),
                              "logits of a chunk");
    if (options.bias == nullptr || !options.bias->gradient) return;
    ones_ = tape.activation(Shape{chunk_rows, 1}, x.dtype, "ones");
    tape.kernels().fill({.dst = ones_, .value = 1.0F}, tape.stream());
  }

  /// losses (rows) of rows [begin, begin + rows). With `gradients`: adds to the weight's and, if
  /// wanted, writes these rows of dx (which may be x).
  void run(std::int64_t begin, std::int64_t rows, const TensorView& targets,
           const TensorView& losses, const TensorView& dx, bool gradients) {
    const TensorView padded(scratch_.view().data, x_.dtype, Shape{rows, stride_});
    const TensorView logits = padded.narrow(1, 0, columns_);
    const TensorView x = x_.narrow(0, begin, rows);
    const TensorView weight = with_zeros(weight_.value);
    const TensorView bias = options_.bias == nullptr ? TensorView() : options_.bias->value;
    multiply({.a = x, .b = weight, .c = logits, .bias = bias, .transpose_b = true});
    if (options_.low_rank != nullptr) {
      multiply({.a = low_rank_.hidden.narrow(0, begin, rows),
                .b = options_.low_rank->value,
                .c = logits.narrow(1, 0, vocab_size_),
                .bias = {},
                .transpose_b = true,
                .accumulate = true});
    }
    tape_.kernels().cross_entropy({.logits = padded,
                                   .targets = targets.narrow(0, begin, rows),
                                   .losses = losses.narrow(0, begin, rows),
                                   .vocab_size = vocab_size_,
                                   .ignore_index = options_.ignore_index,
                                   .gradient = gradients,
                                   .scale = tape_.options().loss_scale,
                                   .soft_cap = options_.soft_cap,
                                   .hits = hits_of(tape_)},
                                  tape_.stream());
    tape_.charge(elementwise_cost(logits, kSoftmaxFlops, gradients ? 2 : 1));
    if (!gradients) return;
    if (options_.bias != nullptr && options_.bias->gradient) {
      const GradientTarget db = gradient_target(*options_.bias);
      multiply({.a = ones_.view().narrow(0, 0, rows),
                .b = logits,
                .c = db.view.reshape(Shape{1, vocab_size_}),
                .bias = {},
                .transpose_a = true,
                .accumulate = db.accumulate});
    }
    if (weight_.gradient) {
      const GradientTarget dw = gradient_target(weight_);
      multiply({.a = logits,
                .b = x,
                .c = with_zeros(dw.view),
                .bias = {},
                .transpose_a = true,
                .accumulate = dw.accumulate});
    }
    if (options_.low_rank != nullptr) {
      add_low_rank_gradients(logits.narrow(1, 0, vocab_size_), begin, rows);
    }
    if (dx) multiply({.a = logits, .b = weight, .c = dx.narrow(0, begin, rows), .bias = {}});
  }

 private:
  void add_low_rank_gradients(const TensorView& logits, std::int64_t begin, std::int64_t rows) {
    if (options_.low_rank->gradient) {
      const GradientTarget db = gradient_target(*options_.low_rank);
      multiply({.a = logits,
                .b = low_rank_.hidden.narrow(0, begin, rows),
                .c = db.view,
                .bias = {},
                .transpose_a = true,
                .accumulate = db.accumulate});
    }
    if (!low_rank_.gradient) return;
    multiply({.a = logits,
              .b = options_.low_rank->value,
              .c = low_rank_.gradient.narrow(0, begin, rows),
              .bias = {}});
  }
  /// The weight or its gradient as (columns_, inputs).
  TensorView with_zeros(const TensorView& weight) const {
    return TensorView(weight.data, weight.dtype, Shape{columns_, weight.shape[1]});
  }
  void multiply(const GemmArgs& args) {
    tape_.kernels().gemm(args, tape_.stream());
    const std::int64_t depth = args.a.shape[args.transpose_a ? 0 : 1];
    tape_.charge(gemm_cost(args.c.shape[0], args.c.shape[1], depth, args.a.dtype, args.c.dtype));
  }

  Tape& tape_;
  TensorView x_;
  Parameter& weight_;
  LossOptions options_;
  LowRankRows low_rank_;
  std::int64_t vocab_size_;
  std::int64_t columns_;  ///< of the products: the vocabulary and the zeros behind it
  std::int64_t stride_;   ///< of a row of logits
  Tensor scratch_;
  Tensor ones_;  ///< a column of a chunk, which sums gradients of a bias
};

/// `dx` may be empty, or x.
void run_chunks(Tape& tape, const Tensor& x, Parameter& weight, const TensorView& targets,
                const LossOptions& options, const LowRankRows& low_rank, const Tensor& losses,
                const Tensor& dx, bool gradients) {
  const std::int64_t rows = leading_rows(x.shape()), vocab_size = weight.value.shape[0];
  const std::int64_t chunk_rows = cross_entropy_chunk_rows(rows, vocab_size, tape.options().device);
  require(rows / chunk_rows < kMaxChunks, ErrorCode::kConfig,
          "linear_cross_entropy: a micro-batch of ", rows, " tokens is more than ", kMaxChunks,
          " pieces of ", chunk_rows,
          " rows of logits; take a smaller micro-batch, sequence length or vocabulary");
  const TensorView flat_targets = targets.flat();
  const TensorView dx2 = dx ? as_matrix(dx) : TensorView();
  ChunkedLoss loss(tape, as_matrix(x), weight, options, low_rank, std::min(rows, chunk_rows));
  for (std::int64_t begin = 0; begin < rows; begin += chunk_rows) {
    loss.run(begin, std::min(chunk_rows, rows - begin), flat_targets, losses, dx2, gradients);
  }
}

/// `losses` of which backward computes the gradients, with the logits once more: see
/// TapeOptions::loss_backward_apart.
Value apart(Tape& tape, Tensor losses, Value x, Parameter& weight, const TensorView& targets,
            const LossOptions& options, const Value& hidden) {
  auto backward = [x_id = x.id, saved = Saved(x), &weight, targets, options, hidden_id = hidden.id,
                   hidden_saved = Saved(hidden)](Tape& t,
                                                 const Tensor& /*loss_scale everywhere*/) mutable {
    check_gradient("linear_cross_entropy", "weight", weight);
    if (options.bias != nullptr) check_gradient("linear_cross_entropy", "bias", *options.bias);
    Tensor x_tensor = saved.get();
    saved = {};
    const Tensor again =
        t.activation(Shape{leading_rows(x_tensor.shape())}, DType::kFloat32, "losses, once more");
    Tensor dx;
    if (x_id >= 0) dx = reuse_or_allocate(t, x_tensor, "head input gradient");
    Tensor hidden_tensor, d_hidden;
    LowRankRows low_rank;
    if (options.low_rank != nullptr) {
      check_gradient("linear_cross_entropy", "b", *options.low_rank);
      hidden_tensor = hidden_saved.get();
      d_hidden = t.activation(hidden_tensor.shape(), hidden_tensor.dtype(), "low-rank gradient");
      low_rank = {as_matrix(hidden_tensor), as_matrix(d_hidden)};
    }
    hidden_saved = {};
    run_chunks(t, x_tensor, weight, targets, options, low_rank, again, dx, true);
    x_tensor = {};  // now dx has its memory to itself
    t.add_gradient(x_id, std::move(dx));
    if (d_hidden) t.add_gradient(hidden_id, std::move(d_hidden));
  };
  return tape.split_output(std::move(losses), std::move(backward));
}

/// Logits that nobody else holds, capped in place unless the cap is 0.
Value capped(Tape& tape, Value logits, float soft_cap) {
  if (soft_cap == 0.0F) return logits;
  tape.kernels().soft_cap({.x = logits.tensor, .y = logits.tensor, .cap = soft_cap}, tape.stream());
  tape.charge(elementwise_cost(logits.tensor, 8, 2));
  return logits;
}

}  // namespace

Value cross_entropy(Tape& tape, Value logits, const TensorView& targets,
                    std::int32_t ignore_index) {
  constexpr const char* kOp = "cross_entropy";
  require(logits.shape().rank() >= 1, ErrorCode::kInvalidArgument, kOp, ": logits are a scalar");
  check_compute_dtype(kOp, "logits", logits.tensor, logits.dtype());
  if (tape.options().predicts) return logits;
  tape.expect_classes(last_dim(logits.shape()));
  const std::int64_t rows = leading_rows(logits.shape());
  check_targets(kOp, targets, rows);
  Tensor losses = tape.activation(Shape{rows}, DType::kFloat32, "losses");
  Tensor gradient = becoming_gradient(tape, logits, "gradient of the logits");
  tape.kernels().cross_entropy({.logits = as_matrix(gradient),
                                .targets = targets.flat(),
                                .losses = losses,
                                .vocab_size = last_dim(logits.shape()),
                                .ignore_index = ignore_index,
                                .gradient = tape.recording(),
                                .scale = tape.options().loss_scale,
                                .hits = hits_of(tape)},
                               tape.stream());
  tape.charge(elementwise_cost(gradient, kSoftmaxFlops, tape.recording() ? 2 : 1));
  return loss_output(tape, std::move(losses), {{logits.id, std::move(gradient)}});
}

Value squared_error(Tape& tape, Value x, const TensorView& targets) {
  constexpr const char* kOp = "squared_error";
  require(x.shape().rank() >= 1, ErrorCode::kInvalidArgument, kOp, ": x is a scalar");
  check_compute_dtype(kOp, "x", x.tensor, x.dtype());
  if (tape.options().predicts) return x;
  require(targets.dtype == DType::kFloat32 && targets.numel() == x.tensor.numel(),
          ErrorCode::kInvalidArgument, kOp, ": targets must be ", x.tensor.numel(),
          " fp32 (one per element of x ", x.shape(), "), got ", targets.shape, " ",
          to_string(targets.dtype));
  const Shape rows{leading_rows(x.shape())};
  Tensor losses = tape.activation(rows, DType::kFloat32, "losses");
  Tensor gradient = becoming_gradient(tape, x, "gradient of the predictions");
  const TensorView matrix = as_matrix(gradient);
  tape.kernels().squared_error({.x = matrix,
                                .targets = targets.reshape(matrix.shape),
                                .losses = losses,
                                .gradient = tape.recording(),
                                .scale = tape.options().loss_scale},
                               tape.stream());
  tape.charge(elementwise_cost(gradient, 4, tape.recording() ? 2 : 1));
  tape.charge(elementwise_cost(targets, 0, 1));
  return loss_output(tape, std::move(losses), {{x.id, std::move(gradient)}});
}

std::int64_t cross_entropy_chunk_rows(std::int64_t rows, std::int64_t vocab_size,
                                      DeviceKind device) {
  constexpr std::int64_t kGranule = 64;
  const std::int64_t elements = device == DeviceKind::kCuda ? kGpuChunkElements : kCpuChunkElements;
  const std::int64_t fitting = elements / std::max<std::int64_t>(vocab_size, 1);
  const std::int64_t most = std::max(fitting / kGranule * kGranule, kGranule);
  const std::int64_t chunks = std::max<std::int64_t>(1, (rows + most - 1) / most);
  const std::int64_t equal = (rows + chunks - 1) / chunks;
  return std::max((equal + kGranule - 1) / kGranule * kGranule, kGranule);
}

Value linear_cross_entropy(Tape& tape, Value x, Parameter& weight, const TensorView& targets,
                           std::int32_t ignore_index, float soft_cap, Parameter* bias,
                           const LowRankLogits* low_rank) {
  constexpr const char* kOp = "linear_cross_entropy";
  const TensorView& w = weight.value;
  require(x.shape().rank() >= 1 && w.shape.rank() == 2 && w.shape[1] == last_dim(x.shape()),
          ErrorCode::kInvalidArgument, kOp, ": x ", x.shape(), " does not fit the weight ", w.shape,
          ", which must be (vocabulary, inputs)");
  check_compute_dtype(kOp, "x", x.tensor, x.dtype());
  check_compute_dtype(kOp, "weight", w, x.dtype());
  check_gradient(kOp, "weight", weight);
  if (bias != nullptr) {
    check_operand(kOp, "bias", bias->value, Shape{w.shape[0]}, x.dtype());
    check_gradient(kOp, "bias", *bias);
    require(soft_cap == 0.0F, ErrorCode::kInvalidArgument, kOp,
            ": logits with a bias have no soft cap");
  }
  if (low_rank != nullptr) {
    const Shape& b = low_rank->b.value.shape;
    require(b.rank() == 2 && b[0] == w.shape[0] && b[1] == last_dim(low_rank->hidden.shape()) &&
                leading_rows(low_rank->hidden.shape()) == leading_rows(x.shape()),
            ErrorCode::kInvalidArgument, kOp, ": hidden ", low_rank->hidden.shape(), " and b ", b,
            " do not fit x ", x.shape(), " and the weight ", w.shape);
    check_compute_dtype(kOp, "hidden", low_rank->hidden.tensor, x.dtype());
    check_gradient(kOp, "b", low_rank->b);
  }
  if (tape.options().predicts) {
    Value logits = linear(tape, x, weight, bias);
    if (low_rank != nullptr) {
      logits = linear(tape, low_rank->hidden, low_rank->b, nullptr, &logits);
    }
    return capped(tape, std::move(logits), soft_cap);
  }
  tape.expect_classes(w.shape[0]);
  const std::int64_t rows = leading_rows(x.shape());
  check_targets(kOp, targets, rows);
  const LossOptions options{.ignore_index = ignore_index,
                            .soft_cap = soft_cap,
                            .bias = bias,
                            .low_rank = low_rank != nullptr ? &low_rank->b : nullptr};
  const Value hidden = low_rank != nullptr ? low_rank->hidden : Value{};
  LowRankRows rows_of_hidden;
  if (low_rank != nullptr) rows_of_hidden.hidden = as_matrix(hidden.tensor);

  Tensor losses = tape.activation(Shape{rows}, DType::kFloat32, "losses");
  if (tape.recording() && tape.options().loss_backward_apart) {
    run_chunks(tape, x.tensor, weight, targets, options, rows_of_hidden, losses, {}, false);
    return apart(tape, std::move(losses), std::move(x), weight, targets, options, hidden);
  }
  Tensor dx;
  if (tape.recording() && x.id >= 0) dx = reuse_or_allocate(tape, x.tensor, "head input gradient");
  Tensor d_hidden;
  if (tape.recording() && hidden.id >= 0) {
    d_hidden = tape.activation(hidden.shape(), hidden.dtype(), "low-rank gradient");
    rows_of_hidden.gradient = as_matrix(d_hidden);
  }
  run_chunks(tape, x.tensor, weight, targets, options, rows_of_hidden, losses, dx,
             tape.recording());
  return loss_output(tape, std::move(losses),
                     {{x.id, std::move(dx)}, {hidden.id, std::move(d_hidden)}});
}

}  // namespace tessera::ops
