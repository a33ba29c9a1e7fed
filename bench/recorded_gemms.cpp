#include "recorded_gemms.h"

#include "support.h"
#include "support/model_run.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/memory.h"

namespace tessera::bench {
namespace {}  // namespace

std::vector<GemmArgs> record_gemms(const Model& model, const BatchSource& source,
                                   std::int64_t micro_batch, DType dtype) {
  const auto device = make_cpu_device();  // memory that nobody touches costs nothing
  Memory memory(*device);
  NoStream stream;
  KernelTable kernels = planning(cpu_kernels());
  const auto data = [&](const Shape& shape, DType type) {
    return Tensor::empty(memory, shape, type, MemoryCategory::kData, "data");
  };
  const Batch batch{.inputs = data(source.input_shape(micro_batch), source.input_dtype()),
                    .targets = data(source.target_shape(micro_batch), source.target_dtype()),
                    .items = source.target_shape(micro_batch).numel()};
  std::vector<GemmArgs> gemms;
  kernels.gemm = [&](const GemmArgs& args, Stream& /*stream*/) { gemms.push_back(args); };
  test::WholeModel(model, memory, dtype, DType::kFloat32)
      .forward_backward(memory, stream, batch, {.tape = {.kernels = &kernels}});
  return gemms;
}

}  // namespace tessera::bench
