#include <memory>

#include "kernels/under_test.h"
#include "tessera/core/cuda_device.h"

namespace tessera {
namespace {

CudaDevice& device() {
  static const std::unique_ptr<CudaDevice> device = make_cuda_device();
  return *device;
}

Stream& the_stream() {
  static const std::unique_ptr<Stream> stream = device().create_stream({.name = "test"});
  return *stream;
}

/// The kernel, run to its end: what a test does next is to look at host memory.
template <auto kKernel, typename Args>
void waited_for(const Args& args, Stream& stream) {
  (device().kernels().*kKernel)(args, stream);
  stream.synchronize();
}

constexpr KernelTable kWaiting{
    .gemm = waited_for<&KernelTable::gemm>,
    .bias_gradient = waited_for<&KernelTable::bias_gradient>,
    .layer_norm_forward = waited_for<&KernelTable::layer_norm_forward>,
    .layer_norm_backward = waited_for<&KernelTable::layer_norm_backward>,
    .gelu_forward = waited_for<&KernelTable::gelu_forward>,
    .gelu_backward = waited_for<&KernelTable::gelu_backward>,
    .attention_forward = waited_for<&KernelTable::attention_forward>,
    .attention_backward = waited_for<&KernelTable::attention_backward>,
    .embedding_forward = waited_for<&KernelTable::embedding_forward>,
    .embedding_backward = waited_for<&KernelTable::embedding_backward>,
    .dropout = waited_for<&KernelTable::dropout>,
    .cross_entropy = waited_for<&KernelTable::cross_entropy>,
    .adamw = waited_for<&KernelTable::adamw>,
    .block_squares = waited_for<&KernelTable::block_squares>,
    .norm_nodes = waited_for<&KernelTable::norm_nodes>,
    .sum = waited_for<&KernelTable::sum>,
    .loss_scale = waited_for<&KernelTable::loss_scale>,
    .step_results = waited_for<&KernelTable::step_results>,
    .ordered_sum = waited_for<&KernelTable::ordered_sum>,
    .cast = waited_for<&KernelTable::cast>,
    .add = waited_for<&KernelTable::add>,
    .fill = waited_for<&KernelTable::fill>,
    .fill_normal = waited_for<&KernelTable::fill_normal>,
};

}  // namespace

const KernelTable& kernels_under_test() { return kWaiting; }

bool testing_cuda() { return true; }

StreamUnderTest::StreamUnderTest() : stream_(the_stream()) {}

}  // namespace tessera
