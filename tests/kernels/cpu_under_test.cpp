#include "kernels/every_way.h"
#include "kernels/under_test.h"

namespace tessera {

const KernelTable& kernels_under_test() { return cpu_kernels(); }

bool testing_cuda() { return false; }

StreamUnderTest::StreamUnderTest() : stream_(std::make_unique<NoStream>()) {}

}  // namespace tessera
