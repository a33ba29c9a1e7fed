#pragma once

#include "tessera/kernels/fp8.h"
#include "tessera/kernels/fp8_history.h"

// Checks of the arguments of fp8's kernels, on every device.
namespace tessera {

/// Throws unless `amax` is one int32.
void check_amax(const char* kernel, const TensorView& amax);
void check_arguments(const AmaxArgs& args);
void check_arguments(const MaxWordsArgs& args);
void check_arguments(const Fp8EncodeArgs& args);
void check_arguments(const Fp8DecodeArgs& args);
void check_arguments(const Fp8TransposeArgs& args);
void check_arguments(const RollFp8HistoryArgs& args);

}  // namespace tessera
