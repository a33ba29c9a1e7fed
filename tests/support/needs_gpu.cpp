#include <gtest/gtest.h>

#include "tessera/core/cuda_device.h"

// For programs that test a real GPU: without one, all of their tests fail at once, with the reason.
namespace tessera {
namespace {

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    const CudaStatus status = cuda_status();
    ASSERT_TRUE(status.usable()) << status.problem;
  }
};

const ::testing::Environment* const registered = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace tessera
