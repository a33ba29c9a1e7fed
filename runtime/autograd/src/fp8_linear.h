#pragma once

#include "op_support.h"

namespace tessera::ops {

/// Whether linear layers with this matrix take products in fp8 here: in training only.
inline bool takes_fp8(const Tape& tape, const Parameter& weight) {
  return weight.fp8.any() && tape.options().training;
}

/// linear() of operands that have been checked, with the products of weight.fp8 in fp8.
Value fp8_linear(Tape& tape, const Value& x, Parameter& weight, Parameter* bias,
                 const Value* residual);

}  // namespace tessera::ops
