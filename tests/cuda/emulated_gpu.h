#pragma once

#include <gtest/gtest.h>

#include "fake_cuda.h"

namespace tessera::test {

/// An emulated machine of its own for each test.
class EmulatedGpu : public testing::Test {
 protected:
  explicit EmulatedGpu(const fake_cuda::Settings& settings = {}) { fake_cuda::configure(settings); }
  ~EmulatedGpu() override { fake_cuda::configure({}); }
};

}  // namespace tessera::test
