#pragma once

#include <vector>

#include "tessera/core/device.h"
#include "tessera/core/tensor.h"

namespace tessera {

/// dst = [dst +] sources[0] + sources[1] + ..., in host memory, by a task of `stream`; dst may be
/// one of the sources. fp32, bf16 and fp16 are added in fp32 and rounded once; fp64 and int64 do
/// not accumulate.
void sum_in_order(const std::vector<TensorView>& sources, const TensorView& dst, bool accumulate,
                  Stream& stream);

}  // namespace tessera
