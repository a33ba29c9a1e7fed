#include "tessera/core/host_name.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

namespace tessera {
namespace {

TEST(HostName, IsTheNameOfTheSystem) {
  utsname system{};
  ASSERT_EQ(uname(&system), 0);
  ASSERT_STRNE(system.nodename, "");
  EXPECT_EQ(host_name(), system.nodename);
}

}  // namespace
}  // namespace tessera
