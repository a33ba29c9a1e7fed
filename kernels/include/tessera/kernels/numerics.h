#pragma once

namespace tessera {

/// Counts the changes of bits: a run of the same settings, on the same machine, gives the bits of
/// any program with the same version. Checkpoints and run logs record it; one without it is of 1.
///
///   2  a CPU's matrix products are summed alike on any number of threads; masks of
///      dropout go by sample, not by micro-batch
///   3  the same of packed batches
///   4  LoRA's products of one input are one product, and backward adds to the gradient of that
///      input in place
///   5  on a GPU, in bf16 and fp16, a norm's backward pass sums the gradient of a bias in front of
///      it
///   6  gradients of biases and of norms' parameters are sums before they are added to those of
///      earlier micro-batches; a GPU sums all columns in one order, whichever kernel does it
inline constexpr int kNumericsVersion = 6;

}  // namespace tessera
