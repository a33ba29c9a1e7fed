#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autograd/tape.h"
#include "tessera/core/named_text.h"

namespace tessera {

/// The smallest thing that a unit wraps: a differentiable function with parameters of its own.
///
/// A layer sees its parameters unsharded and knows nothing of ranks, shards or prefetching.
/// `forward` must be a pure function of its arguments: it runs on several ranks at once and may run
/// twice for one micro-batch (recomputation).
class Layer {
 public:
  Layer(std::string name, std::string type) : name_(std::move(name)), type_(std::move(type)) {}
  virtual ~Layer() = default;

  const std::string& name() const { return name_; }  ///< unique in the model, e.g. "h.3"
  const std::string& type() const { return type_; }  ///< e.g. "TransformerBlock", for wrap policies
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// Names of other layers' parameters that this layer uses too (weight tying).
  const std::vector<std::string>& tied_parameters() const { return tied_parameters_; }
  /// False if backward only writes gradients and never reads parameters (an embedding).
  virtual bool backward_reads_parameters() const { return true; }
  /// Whether backward may be two passes, see [Note: backward in two parts] in tape.h; of the last
  /// layer, whether it may be another pass than forward. All operations of forward must know both
  /// parts: those of ops.h do, and one's own where they say so by Tape::split_output(). The
  /// backward of other layers is one pass whatever the plan says.
  bool splits_backward() const { return splits_backward_; }
  /// Whether it reads Tape::batch(), in forward or in backward. The first layer and the last may
  /// without saying so: a model's input is the batch, and so are the targets of its losses.
  bool reads_batch() const { return reads_batch_; }
  /// The classes of the last layer's losses, each of which an evaluation counts apart (hit_words);
  /// 0: it counts all of them together.
  virtual std::int64_t counted_classes() const { return 0; }
  /// Elements that each rank keeps for this layer from pass to pass of a schedule that does not
  /// train, such as keys and values of a text that is continued: TapeOptions::kept, in the run's
  /// precision. Their content is the layer's affair; at first it is undefined.
  virtual std::int64_t kept_numel() const { return 0; }
  /// The shape of what the layer's next pass returns, where one over the whole batch returns
  /// `whole`. A pass of a schedule that does not train may be over a part of the batch, such as the
  /// next token of a text whose beginning is in what the layer keeps. Messages between the stages
  /// of a pipeline have this shape: sender and receiver ask for it, each its own model, and must
  /// come to the same.
  virtual Shape pass_shape(const Shape& whole) const { return whole; }

  /// `parameters`: this layer's own in order of declaration, then the tied ones. The first layer's
  /// input is the batch's, in the run's precision if its numbers are floating-point; no gradient
  /// flows to it. The last layer returns its losses, fp32: as many as BatchSource::fill counts, or
  /// one for each class, row of targets or sample, else the run ends with an error.
  /// Gradients are in place for backward, and for the last layer's recording forward, too, whose
  /// fused loss writes them (see ops.h); no other layer may use that loss. Where backward is two
  /// passes they are in place for the second, and where the last layer's is another pass than
  /// forward, for backward alone.
  virtual Value forward(Tape& tape, const Value& input, std::span<Parameter> parameters) const = 0;

 protected:
  std::vector<ParameterSpec> parameters_;
  std::vector<std::string> tied_parameters_;
  bool splits_backward_ = false;
  bool reads_batch_ = false;

 private:
  std::string name_;
  std::string type_;
};

/// A chain of layers: each one's output is the next one's input.
struct Model {
  std::string name;
  std::vector<std::unique_ptr<Layer>> layers;
  /// FLOPs of forward and backward per item, without recomputation; for MFU. 0: unknown.
  double flops_per_item = 0.0;
  /// A checkpoint keeps this, which is enough to make the model again.
  std::vector<NamedText> configuration{};
};

/// Number of parameter elements, tied ones counted once.
std::int64_t parameter_count(const Model& model);
/// Number of parameter elements that are trained, tied ones counted once.
std::int64_t trained_count(const Model& model);

/// Throws Error if names repeat, a tied name is unknown, no layer is there or over 2^43 parameters.
void check(const Model& model);

/// Where micro-batches come from. Thread-safe: every rank reads for itself.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual Shape input_shape(std::int64_t micro_batch) const = 0;  ///< for `micro_batch` samples
  virtual DType input_dtype() const = 0;
  virtual Shape target_shape(std::int64_t micro_batch) const = 0;
  virtual DType target_dtype() const = 0;
  /// Fills samples [first, first + micro_batch) of the run's endless sequence, a pure function of
  /// `first`; views are in host memory. Returns the number of losses that count. An exception that
  /// it throws ends the run with an Error that has its text and names the rank and the step.
  ///
  /// Targets of int32 are classes, one for each loss; -1 or -100 is a target that does not count.
  /// The others must be as many as is returned, and none of them negative, or the run ends with an
  /// error that names the batch. Targets of another dtype mean what the model's last layer takes
  /// them for, and are not looked at.
  virtual std::int64_t fill(std::int64_t first, std::int64_t micro_batch, TensorView inputs,
                            TensorView targets) const = 0;
  /// An identity of this data, for processes that must all train on the same: it may not
  /// depend on where the data lie. Nothing: the samples themselves are compared, a few of them.
  virtual std::vector<NamedText> identity() const { return {}; }
};

}  // namespace tessera
