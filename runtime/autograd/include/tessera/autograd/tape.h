#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/autograd/parameter.h"
#include "tessera/core/tensor.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/kernel_table.h"

namespace tessera {

/// Which activations are dropped after forward and recomputed in backward.
enum class Recompute : std::uint8_t {
  kNone,       ///< keep everything that backward reads
  kSelective,  ///< drop outputs that are cheap to recompute from their inputs: attention and GELU
  kFull,       ///< keep only a layer's input; run its forward again
};

/// "none", "selective", "full".
std::string_view to_string(Recompute recompute);
/// The reverse. Throws Error{kConfig} naming the choices.
Recompute parse_recompute(std::string_view name);

/// One micro-batch as the layers see it.
struct Batch {
  Tensor inputs = {};      ///< of the first layer, e.g. tokens (B, L) int32
  Tensor targets = {};     ///< of the last, e.g. tokens (B, L) int32
  std::int64_t items = 0;  ///< losses that count, e.g. targets that are not ignored
  std::int64_t index = 0;  ///< global number of the micro-batch
};

/// Floating-point operations and bytes of memory traffic of a kernel.
struct Cost {
  double flops = 0.0;
  double bytes = 0.0;
  Cost& operator+=(const Cost& o) {
    flops += o.flops;
    bytes += o.bytes;
    return *this;
  }
};

/// A tensor that is dropped after forward and computed again when backward asks for it. All that
/// saved it share the recomputed tensor; it is freed when the last of them is gone.
class Rematerialization;

/// A tensor with its place on a tape. Copies share the tensor. Operations that keep one for
/// backward keep a Saved of it, and the id alone to hand its gradient on: a Value in a closure
/// would pin memory.
struct Value {
  Tensor tensor;
  int id = -1;  ///< -1: no gradient flows to it
  std::shared_ptr<Rematerialization> remake = nullptr;
  Tensor magnitude = {};  ///< see TapeOptions::leaves_magnitudes

  const Shape& shape() const { return tensor.shape(); }
  DType dtype() const { return tensor.dtype(); }
};

/// A tensor that an operation keeps for backward, or the means to recompute it.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Value& value) : Saved(value.tensor, value.remake) {}
  /// An operation's own output: the tensor is kept only if `remake` is null.
  Saved(const Tensor& tensor, std::shared_ptr<Rematerialization> remake);
  /// The tensor; recomputed (once, for all that saved it) if it was dropped.
  Tensor get() const;
  /// This tensor, which needs nothing any more to be got.
  Saved computed() const { return Saved(get(), nullptr); }

 private:
  Tensor tensor_;
  std::shared_ptr<Rematerialization> remake_;
};

/// A kernel that writes a gradient may leave these beside it, so that no pass has to find them;
/// empty where it has not.
struct GradientExtras {
  Tensor magnitude{};    ///< (1); int32: the word of AmaxArgs, see TapeOptions::leaves_magnitudes
  Tensor column_sums{};  ///< (C); fp32: of the gradient as a matrix (rows, C)
};

struct TapeOptions {
  bool record = true;      ///< false: forward only, nothing kept, no gradients
  bool selective = false;  ///< Recompute::kSelective
  bool training = true;    ///< false: dropout is off. A forward that will be recomputed is training
  bool predicts = false;   ///< there are no targets; see [Note: losses end the tape]
  /// d objective / d loss of one item, 1 / items of the whole step: (1) fp32 in device memory.
  /// None: 1.
  TensorView loss_scale = {};
  /// (kRandomKeyWords) int64, in device memory: the key of the layer's random numbers. Needed by
  /// layers that draw some.
  TensorView random_key = {};
  /// (1) int64, in device memory: the global number of the micro-batch's first sample, whose random
  /// numbers are not those of other samples. None: 0.
  TensorView first_sample = {};
  /// True for the last layer if its backward is another action than its forward: no gradient of a
  /// parameter is in place in forward, so a fused loss computes its gradients in backward. Its
  /// losses are the same.
  bool loss_backward_apart = false;
  /// The name of a layer that does not declare that it reads the batch (Layer::reads_batch):
  /// batch() throws. Empty: the batch may be read.
  std::string_view without_batch = {};
  /// Samples of the micro-batch. 0: as many as the first dimension of the batch's inputs.
  std::int64_t samples = 0;
  /// (kHitWords) int64, in device memory, without recording: where a loss counts its hits (see
  /// CrossEntropyArgs). None: it counts none.
  TensorView hits = {};
  /// Elements that the layer keeps from pass to pass; see Layer::kept_numel.
  TensorView kept = {};
  int threads = 1;  ///< of the stream; the scratch of kernels may grow with it
  /// Whose kernels run: of the tape's device or, on the sim device, of the one that it stands for.
  DeviceKind device = DeviceKind::kCpu;
  CudaKernelOptions cuda_kernels{};  ///< of the stream; the scratch of kernels depends on them
  /// The layer rounds tensors to fp8 by scales of their largest magnitude. Kernels that write bf16
  /// tensors which a linear layer may read leave the word of AmaxArgs in Value::magnitude, or
  /// beside a gradient, so that no pass has to find it.
  bool leaves_magnitudes = false;
  /// Other kernels than those of the tape's device; see planning().
  const KernelTable* kernels = nullptr;
};

/// Records what one layer does to one micro-batch, and replays it backward.
///
/// A tape lives for one forward and at most one backward of one layer. All its allocations are
/// freed as backward passes them. Used from one thread, the one that runs the kernels. The host
/// never reads tensors here, so that a tape on the sim device allocates and frees exactly what one
/// on a real device does.
///
/// [Note: backward in two parts] Backward is backward(), or backward_input() and later
/// backward_weights(), with the same bits. The first part gives the gradient of the layer's input
/// and reads parameters; the second writes the gradients of parameters, in the order of backward(),
/// and reads no parameter. In between the tape keeps what these gradients are made of: of a GEMM
/// the saved input, recomputed by then if it was dropped, and the gradient of its output; of an
/// embedding the gradient of its output; of a prompt its rows of that. Sums of columns that fall
/// out of the kernel of the input's gradient (gains of norms and heads, factors of columns) are
/// taken in the first part, where they cost no pass over memory of their own, kept in fp32, and
/// written or added in the second. Only linear_cross_entropy has no second part: the
/// gradient of its logits, from which both of its products are made, is in memory for a chunk of
/// rows at a time, and a second part would compute the logits once more.
class Tape {
 public:
  Tape(Memory& memory, Stream& stream, const Batch& batch, TapeOptions options);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // For callers: the executor.

  /// Makes the layer's input known; a gradient flows to it if `needs_gradient`.
  Value input(Tensor tensor, bool needs_gradient);
  /// Runs the recorded operations backward from d objective / d `output` (same shape, moved in,
  /// with what kernels have left beside it; the Value itself may have let go of its tensor). Each
  /// operation dies, with what it saved, as soon as it has run. Returns d objective / d input, or
  /// an empty tensor if the input needs none.
  Tensor backward(const Value& output, Tensor output_gradient, GradientExtras extras = {});
  /// The first part of backward(): see [Note: backward in two parts]. Operations that are not
  /// recorded by split_output() run as a whole.
  Tensor backward_input(const Value& output, Tensor output_gradient, GradientExtras extras = {});
  /// Moves out what kernels have left beside the gradient that these return.
  GradientExtras take_input_extras() { return std::exchange(input_extras_, {}); }
  /// The layer before reads the column sums of d objective / d input; see want_column_sums().
  void want_input_column_sums();
  /// The second part. What a gradient was made of is freed once it is written.
  void backward_weights();
  /// Whether all operations that were recorded know both parts.
  bool can_split() const { return can_split_; }

  // For operations (ops.cpp, and operations of one's own: an example with the rules that hold for
  // them is tests/install/consumer/README.md, "An operation of your own").

  /// Throws Error{kInvalidArgument} if the layer does not declare that it reads the batch.
  const Batch& batch() const;
  /// Samples of the micro-batch.
  std::int64_t samples() const;
  const TapeOptions& options() const { return options_; }
  bool recording() const { return options_.record; }
  Memory& memory() { return memory_; }
  /// The stream whose task this is. On the CPU operations compute at once and submit nothing to it.
  Stream& stream() { return stream_; }
  const KernelTable& kernels() const { return kernels_; }

  /// Uninitialised activation memory.
  Tensor activation(Shape shape, DType dtype, std::string_view what);
  /// Scratch that the operation lets go of before it returns.
  Tensor workspace(std::int64_t bytes, std::string_view what);

  using Backward = std::function<void(Tape&, Tensor gradient)>;
  using Remake = std::function<Tensor(Tape&)>;
  using WriteGradients = std::function<void(Tape&)>;

  /// Registers an operation's output. `backward` gets d/d output and must hand gradients on with
  /// `add_gradient` and into Parameter::gradient; it is not called if no gradient arrives. Without
  /// recording it is dropped. `remake` is for outputs that selective recomputation drops.
  Value output(Tensor tensor, Backward backward,
               std::shared_ptr<Rematerialization> remake = nullptr);
  /// output() of an operation whose `backward` touches Parameter::gradient in write_gradients()
  /// alone, if at all.
  Value split_output(Tensor tensor, Backward backward,
                     std::shared_ptr<Rematerialization> remake = nullptr);
  /// Within a `backward`: runs `write`, which writes or adds to gradients of parameters; in
  /// backward_input() it waits for backward_weights(). It holds all that it reads, but for the
  /// batch: values of parameters are not there by then, and what is Saved has to be computed
  /// (Saved::computed).
  void write_gradients(WriteGradients write);
  /// Whether write_gradients() waits.
  bool is_split() const { return is_split_; }
  /// The way to compute an output again; null (keep it instead) unless recomputation is selective.
  std::shared_ptr<Rematerialization> rematerialization(Remake remake);
  /// Adds to d / d value `id`; does nothing for -1. Takes the tensor over; a tensor that others
  /// share is never written to.
  void add_gradient(int id, Tensor gradient, GradientExtras extras = {});
  /// Within a `backward`: of the gradient that it got, if that is all that was added.
  const GradientExtras& gradient_extras() const { return extras_; }
  /// The backward of this value adds up the columns of its gradient, which it finds in
  /// GradientExtras where a kernel that makes the gradient can add them up on its way.
  void want_column_sums(const Value& value);
  bool wants_column_sums(int id) const;
  /// Where a kernel is to leave the largest magnitude of a tensor of this type; empty: nowhere.
  Tensor magnitude_word(DType dtype);
  /// Moves out what add_gradient has collected for `id` (empty if nothing), for a kernel that adds
  /// to it on its way; the sum goes back by add_gradient. Write to it only if its use_count() is 1.
  Tensor take_gradient(int id);

  /// The number of the next random mask of this layer and micro-batch, see DropoutArgs::call: the
  /// n-th in a layer's forward is the same again when the layer is recomputed. Throws
  /// Error{kInvalidArgument} without a TapeOptions::random_key.
  std::uint64_t next_random_call();

  /// A loss says how many classes its targets may be of, before they are read.
  void expect_classes(std::int64_t classes) { classes_ = classes; }
  std::int64_t classes() const { return classes_; }  ///< 0: no loss has said it

  /// Operations declare what they cost.
  void charge(const Cost& cost) { cost_ += cost; }
  const Cost& cost() const { return cost_; }

 private:
  struct Node;

  void check_id(int id, const char* use) const;
  Tensor replay(const Value& output, Tensor output_gradient, GradientExtras extras);

  Memory& memory_;
  Stream& stream_;
  const KernelTable& kernels_;
  Batch batch_;
  TapeOptions options_;
  /// The gradient that has been collected for a value.
  struct Gradient {
    Tensor sum;
    GradientExtras extras;
  };

  std::vector<Node> nodes_;          // by value id
  std::vector<Gradient> gradients_;  // by value id
  GradientExtras extras_;            // of the running `backward`
  GradientExtras input_extras_;
  int input_id_ = -1;
  bool replayed_ = false;
  bool can_split_ = true;
  bool is_split_ = false;
  std::deque<WriteGradients> waiting_;  ///< for backward_weights()
  std::uint64_t random_calls_ = 0;
  std::int64_t classes_ = 0;
  Cost cost_;
};

}  // namespace tessera
