#include "world/host_identity.h"

#include <gtest/gtest.h>

#include "temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST(HostIdentity, IsTheSameForTheProcessesOfAMachine) {
  if (!fs::exists("/proc/sys/kernel/random/boot_id")) GTEST_SKIP() << "this system has no boot id";
  EXPECT_EQ(host_identity(0, false), host_identity(1, false));
  EXPECT_NE(host_identity(0, true), host_identity(1, true));
}

TEST(HostIdentity, IsNobodyElsesWhereTheSystemTellsTooLittle) {
  const test::TemporaryFolder no_boot_id;  // the namespace has one number on every machine
  fs::create_directories(no_boot_id.path("self/ns"));
  fs::create_symlink("pid:[4026531836]", no_boot_id.path("self/ns/pid"));
  const test::TemporaryFolder no_namespace;
  no_namespace.write("sys/kernel/random/boot_id", "a5eda292-c816-4820-9332-e6c826586507\n");
  const test::TemporaryFolder nothing;
  for (const auto* proc : {&no_boot_id, &no_namespace, &nothing}) {
    EXPECT_NE(host_identity(0, false, proc->path()), host_identity(1, false, proc->path()));
  }
}

}  // namespace
}  // namespace tessera
