#pragma once

#include "tessera/core/tensor.h"

namespace tessera {

/// A Layer is this, too, if a pass of it may be over a part of the batch, such as the next token of
/// a text whose beginning is in what the layer keeps (Layer::kept_numel). Only passes of a schedule
/// that does not train may be.
class PartialPasses {
 public:
  virtual ~PartialPasses() = default;

  /// The shape of what the layer's next pass returns, where a pass over the whole batch returns
  /// `whole`. Messages between the stages of a pipeline are of this shape: sender and receiver ask
  /// for it, each its own model, and must come to the same.
  virtual Shape pass_shape(const Shape& whole) const = 0;
};

}  // namespace tessera
