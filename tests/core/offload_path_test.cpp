#include "tessera/core/offload_path.h"

#include <gmock/gmock.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "disk_store_run.h"

namespace tessera::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

TEST(OffloadPath, TellsTheMountAndItsRoomAndMakesNothing) {
  TemporaryFolder folder;
  FaultyCalls calls;
  calls.free_bytes = 1000;
  const OffloadPath path = check_offload_path(folder.path(), 1000, calls);
  EXPECT_EQ(path.free_bytes, 1000);
  EXPECT_THAT(std::filesystem::canonical(folder.path()).string(), StartsWith(path.mount));
  EXPECT_NE(path.file_system, "");
  EXPECT_NE(path.source, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(OffloadPath, RefusesADiskThatIsTooSmall) {
  TemporaryFolder folder;
  FaultyCalls calls;
  calls.free_bytes = 3 << 20;
  EXPECT_THAT(error_of([&] { check_offload_path(folder.path(), (3 << 20) + 1, calls); }),
              Pair(ErrorCode::kOutOfMemory,
                   AllOf(StartsWith("the disk tier needs 3.00 MiB (3145729 bytes) in '" +
                                    folder.path() + "', and "),
                         HasSubstr(" has 3.00 MiB (3145728 bytes) free; make room, "))));
}

TEST(OffloadPath, RefusesFilesInMemory) {
  TemporaryFolder folder;
  FaultyCalls calls;
  for (const unsigned type : {unsigned{TMPFS_MAGIC}, RAMFS_MAGIC, HUGETLBFS_MAGIC}) {
    calls.type = type;
    EXPECT_THAT(error_of([&] { check_offload_path(folder.path(), 1, calls); }),
                Pair(ErrorCode::kConfig, HasSubstr("' is in memory (")));
  }
  struct statfs status {};
  if (statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  EXPECT_THAT(error_of([] { check_offload_path("/dev/shm", 1); }),
              Pair(ErrorCode::kConfig,
                   StartsWith("'/dev/shm' is in memory (tmpfs at '/dev/shm'), so what is offloaded "
                              "there saves none; choose a folder on a disk")));
}

TEST(OffloadPath, RefusesWhatIsNoFolderToWriteIn) {
  TemporaryFolder folder;
  FaultyCalls calls;
  const std::string file = folder.write("file", "x");
  EXPECT_THAT(
      error_of([&] { check_offload_path(folder.path("missing"), 1, calls); }),
      Pair(ErrorCode::kNotFound, HasSubstr("missing': No such file or directory; make it")));
  EXPECT_THAT(error_of([&] { check_offload_path(file, 1, calls); }),
              Pair(ErrorCode::kConfig, HasSubstr("' is not a folder")));
  EXPECT_THAT(error_of([&] { check_offload_path(file + "/below", 1, calls); }).second,
              HasSubstr("Not a directory"));
}

TEST(OffloadPath, RefusesAFolderOfOthers) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;  // root may write everywhere
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) _exit(2);
    FaultyCalls calls;
    try {
      check_offload_path("/", 1, calls);
    } catch (const Error& error) {
      const bool good =
          error.code() == ErrorCode::kConfig &&
          std::string(error.what())
              .starts_with("cannot make files in '/': Permission denied; choose a folder");
      _exit(good ? 0 : 1);
    }
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "root cannot become another user here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tessera::test
