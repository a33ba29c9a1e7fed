#include "kernels/every_way.h"
#include "kernels/under_test.h"

namespace tessera {
namespace {

Stream& the_stream() {
  static NoStream stream;
  return stream;
}

}  // namespace

const KernelTable& kernels_under_test() { return cpu_kernels(); }

bool testing_cuda() { return false; }

StreamUnderTest::StreamUnderTest() : stream_(the_stream()) {}

}  // namespace tessera
