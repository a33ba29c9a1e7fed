#include "tessera/autograd/tape.h"

#include <algorithm>
#include <utility>

#include "tessera/core/error.h"

namespace tessera {

class Rematerialization {
 public:
  Rematerialization(Tape& tape, Tape::Remake remake) : tape_(tape), remake_(std::move(remake)) {}

  const Tensor& get() {
    if (!tensor_) {
      tensor_ = remake_(tape_);
      remake_ = nullptr;  // and with it what it was made from
    }
    return tensor_;
  }

 private:
  Tape& tape_;
  Tape::Remake remake_;
  Tensor tensor_;
};

Saved::Saved(const Tensor& tensor, std::shared_ptr<Rematerialization> remake)
    : tensor_(remake == nullptr ? tensor : Tensor()), remake_(std::move(remake)) {}

Tensor Saved::get() const { return remake_ == nullptr ? tensor_ : remake_->get(); }

/// A value: what its gradient must look like, and how the gradient goes on to what it came from.
struct Tape::Node {
  Shape shape;
  DType dtype = DType::kFloat32;
  Backward backward;
  bool wants_column_sums = false;
};

Tape::Tape(Memory& memory, Stream& stream, const Batch& batch, TapeOptions options)
    : memory_(memory),
      stream_(stream),
      kernels_(options.kernels != nullptr ? *options.kernels : kernels_for(memory.device())),
      batch_(batch),
      options_(options) {}

Tape::~Tape() = default;

const Batch& Tape::batch() const {
  require(options_.without_batch.empty(), ErrorCode::kInvalidArgument, "layer '",
          options_.without_batch,
          "' reads the batch and does not declare it: set reads_batch_ in "
          "its constructor");
  return batch_;
}

std::int64_t Tape::samples() const {
  if (options_.samples > 0) return options_.samples;
  const Shape& inputs = batch_.inputs.shape();
  return inputs.rank() > 0 ? inputs[0] : 1;
}

Value Tape::input(Tensor tensor, bool needs_gradient) {
  require(nodes_.empty(), ErrorCode::kInvalidArgument,
          "Tape::input comes before every operation, and once");
  Value value{.tensor = std::move(tensor)};
  if (needs_gradient && options_.record) {
    value = output(std::move(value.tensor), nullptr);
    input_id_ = value.id;
  }
  return value;
}

Value Tape::output(Tensor tensor, Backward backward, std::shared_ptr<Rematerialization> remake) {
  if (backward) can_split_ = false;
  return split_output(std::move(tensor), std::move(backward), std::move(remake));
}

Value Tape::split_output(Tensor tensor, Backward backward,
                         std::shared_ptr<Rematerialization> remake) {
  Value value{.tensor = std::move(tensor)};
  if (!options_.record) return value;
  require(!replayed_, ErrorCode::kInvalidArgument, "a tape records nothing after its backward");
  value.id = static_cast<int>(nodes_.size());
  value.remake = std::move(remake);
  nodes_.push_back(
      {.shape = value.shape(), .dtype = value.dtype(), .backward = std::move(backward)});
  gradients_.emplace_back();
  return value;
}

std::shared_ptr<Rematerialization> Tape::rematerialization(Remake remake) {
  if (!options_.record || !options_.selective) return nullptr;
  return std::make_shared<Rematerialization>(*this, std::move(remake));
}

Tensor Tape::backward(const Value& output, Tensor output_gradient, GradientExtras extras) {
  return replay(output, std::move(output_gradient), std::move(extras));
}

Tensor Tape::backward_input(const Value& output, Tensor output_gradient, GradientExtras extras) {
  if (!replayed_) is_split_ = true;
  return replay(output, std::move(output_gradient), std::move(extras));
}

void Tape::want_input_column_sums() {
  if (input_id_ < 0) return;
  check_id(input_id_, "want_input_column_sums");
  nodes_[static_cast<std::size_t>(input_id_)].wants_column_sums = true;
}

void Tape::backward_weights() {
  require(is_split_ && replayed_, ErrorCode::kInvalidArgument,
          "backward_weights comes once, after backward_input");
  is_split_ = false;
  while (!waiting_.empty()) {
    const WriteGradients write = std::move(waiting_.front());
    waiting_.pop_front();
    write(*this);
  }
}

void Tape::write_gradients(WriteGradients write) {
  if (!is_split_) return write(*this);
  waiting_.push_back(std::move(write));
}

Tensor Tape::replay(const Value& output, Tensor output_gradient, GradientExtras extras) {
  require(options_.record, ErrorCode::kInvalidArgument,
          "backward needs a tape that records (TapeOptions::record)");
  require(!replayed_, ErrorCode::kInvalidArgument, "a tape goes backward once");
  require(output.id >= 0, ErrorCode::kInvalidArgument,
          "backward from a value that no operation of this tape has made");
  replayed_ = true;
  add_gradient(output.id, std::move(output_gradient), std::move(extras));
  Tensor input_gradient;
  for (int id = static_cast<int>(nodes_.size()) - 1; id >= 0; --id) {
    const Node node = std::move(nodes_.back());
    nodes_.pop_back();
    Gradient gradient = std::move(gradients_.back());
    gradients_.pop_back();
    if (id == input_id_) {
      input_gradient = std::move(gradient.sum);
      input_extras_ = std::move(gradient.extras);
    }
    if (!gradient.sum || !node.backward) continue;
    extras_ = std::move(gradient.extras);
    node.backward(*this, std::move(gradient.sum));
    extras_ = {};
  }
  return input_gradient;
}

void Tape::check_id(int id, const char* use) const {
  require(static_cast<std::size_t>(id) < nodes_.size(), ErrorCode::kInvalidArgument, use,
          ": the tape has no value ", id, " that still waits for its backward");
}

void Tape::add_gradient(int id, Tensor gradient, GradientExtras extras) {
  if (id < 0) return;
  check_id(id, "add_gradient");
  const Node& node = nodes_[static_cast<std::size_t>(id)];
  require(gradient.shape() == node.shape && gradient.dtype() == node.dtype,
          ErrorCode::kInvalidArgument, "a gradient of shape ", gradient.shape(), " and ",
          to_string(gradient.dtype()), " was given to a value of shape ", node.shape, " and ",
          to_string(node.dtype));
  auto& [sum, extras_of_sum] = gradients_[static_cast<std::size_t>(id)];
  if (!sum) {
    sum = std::move(gradient);
    extras_of_sum = std::move(extras);
    return;
  }
  extras_of_sum = {};
  // A sum is the same in both orders, so either of the two may be the one written to.
  if (sum.use_count() != 1 && gradient.use_count() == 1) std::swap(sum, gradient);
  if (sum.use_count() == 1) {
    kernels_.add({.src = gradient, .dst = sum}, stream_);
  } else {
    Tensor both = activation(node.shape, node.dtype, "sum of gradients");
    const TensorView sources[] = {sum.view().flat(), gradient.view().flat()};
    kernels_.ordered_sum({.sources = sources, .dst = both.view().flat()}, stream_);
    sum = std::move(both);
  }
  const auto elements = static_cast<double>(gradient.numel());
  charge({.flops = elements, .bytes = 3.0 * static_cast<double>(gradient.bytes())});
}

Tensor Tape::take_gradient(int id) {
  if (id < 0) return {};
  check_id(id, "take_gradient");
  return std::exchange(gradients_[static_cast<std::size_t>(id)], {}).sum;
}

void Tape::want_column_sums(const Value& value) {
  if (value.id < 0) return;
  check_id(value.id, "want_column_sums");
  nodes_[static_cast<std::size_t>(value.id)].wants_column_sums = true;
}

bool Tape::wants_column_sums(int id) const {
  if (id < 0) return false;
  check_id(id, "wants_column_sums");
  return nodes_[static_cast<std::size_t>(id)].wants_column_sums;
}

Tensor Tape::magnitude_word(DType dtype) {
  if (!options_.leaves_magnitudes || dtype != DType::kBFloat16) return {};
  return activation(Shape{1}, DType::kInt32, "largest magnitude");
}

Tensor Tape::activation(Shape shape, DType dtype, std::string_view what) {
  return Tensor::empty(memory_, shape, dtype, MemoryCategory::kActivations, what);
}

Tensor Tape::workspace(std::int64_t bytes, std::string_view what) {
  return Tensor::empty(memory_, Shape{bytes}, DType::kUInt8, MemoryCategory::kWorkspace, what);
}

std::uint64_t Tape::next_random_call() {
  require(static_cast<bool>(options_.random_key), ErrorCode::kInvalidArgument,
          "the layer draws random numbers: give its tape a TapeOptions::random_key");
  return random_calls_++;
}

}  // namespace tessera
