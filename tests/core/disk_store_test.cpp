#include "tessera/core/disk_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include "disk_store_run.h"

namespace tessera::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

class DiskStoreTest : public DiskStoreRun {};
INSTANTIATE_TEST_SUITE_P(Ways, DiskStoreTest, all_disk_ways(), ::testing::PrintToStringParamName());

bool is_empty(const std::string& folder) { return std::filesystem::is_empty(folder); }

TEST_P(DiskStoreTest, GivesBackWhatWasWrittenLast) {
  std::vector<DiskExtent> extents;
  for (const std::int64_t bytes : {0, 1, 4095, 4096, 4097, 8192, 8193, 100003, 65536}) {
    extents.push_back({concat("extent ", bytes), bytes});
  }
  DiskStore store(options(), extents);
  EXPECT_EQ(store.backend(), GetParam().backend);
  EXPECT_EQ(store.direct(), GetParam().direct);
  std::int64_t sum = 0;
  for (unsigned round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const auto count = static_cast<std::size_t>(extents[i].bytes);
      PlacedBytes bytes(count, round % 2 == 0);
      std::ranges::copy(random_bytes(count, 100 * round + static_cast<unsigned>(i)),
                        bytes.span().begin());
      store.write(i, bytes.span());
      sum += extents[i].bytes;
    }
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const auto count = static_cast<std::size_t>(extents[i].bytes);
      PlacedBytes bytes(count, round / 2 == 0);
      store.read(i, bytes.span());
      EXPECT_TRUE(std::ranges::equal(bytes.span(),
                                     random_bytes(count, 100 * round + static_cast<unsigned>(i))))
          << extents[i].name << ", round " << round;
    }
  }
  EXPECT_EQ(store.bytes_written(), sum);
  EXPECT_EQ(store.bytes_read(), sum);
}

TEST_P(DiskStoreTest, TakesAnyInterval) {
  constexpr std::size_t kBytes = 5 * kBlock + 1234;
  DiskStore store(options(), {{"before", 10}, {"h.0.master", kBytes}, {"after", 10}});
  Bytes expected = random_bytes(kBytes, 1);
  store.write(1, expected);
  std::mt19937 random(2);
  for (unsigned round = 0; round < 60; ++round) {
    const std::size_t begin = random() % kBytes;
    const std::size_t count = random() % (kBytes - begin + 1);
    const Bytes part = random_bytes(count, 10 + round);
    std::ranges::copy(part, expected.begin() + static_cast<std::ptrdiff_t>(begin));
    store.write(1, part, static_cast<std::int64_t>(begin));
    const std::size_t from = random() % kBytes;
    Bytes read(random() % (kBytes - from + 1));
    store.read(1, read, static_cast<std::int64_t>(from));
    ASSERT_TRUE(
        std::equal(read.begin(), read.end(), expected.begin() + static_cast<std::ptrdiff_t>(from)))
        << "round " << round;
  }
}

TEST_P(DiskStoreTest, RefusesBytesThatAreNotThere) {
  DiskStore store(options(), {{"h.0.master", 3 * kBlock}});
  Bytes bytes(kBlock);
  const auto refused = [&](const char* text) {
    return Pair(ErrorCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(error_of([&] { store.read(0, bytes, kBlock); }),
              refused("'h.0.master' (bytes 8192 to 16383 of 24576) in the disk tier's file of rank "
                      "3 in '"));
  EXPECT_THAT(error_of([&] { store.write(0, std::span(bytes).first(10)); }),
              refused("has never been written whole"));
  EXPECT_THAT(error_of([&] { store.write(0, bytes, 2 * kBlock + 1); }),
              refused("8192 from byte 16385 on are not all its own"));
  EXPECT_THAT(error_of([&] { store.read(0, bytes, -1); }), refused("from byte -1 on"));
  EXPECT_THAT(error_of([&] { store.read(1, bytes); }), refused("none of index 1"));
}

TEST_P(DiskStoreTest, KeepsSeveralRequestsInFlight) {
  DiskStore store(options(), {{"h.0.master", 10 * kBlock}});
  calls.requests.most_in_flight = 0;
  Bytes bytes(10 * kBlock);
  store.write(0, bytes);
  EXPECT_EQ(calls.requests.most_in_flight, 3);
  calls.requests.most_in_flight = 0;
  store.read(0, bytes);
  EXPECT_EQ(calls.requests.most_in_flight, 3);
}

TEST_P(DiskStoreTest, TakesCallsOfSeveralThreads) {
  calls.plain_queues = true;
  constexpr std::size_t kThreads = 3;  // and channels for two
  constexpr std::size_t kBytes = 4 * kBlock + 77;
  DiskStore store(options(), {{"a", kBytes}, {"b", kBytes}, {"c", kBytes}});
  std::vector<std::thread> threads;
  std::array<int, kThreads> good{};
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (unsigned round = 0; round < 10; ++round) {
        const Bytes bytes = random_bytes(kBytes, 100 * round + static_cast<unsigned>(i));
        Bytes read(kBytes);
        store.write(i, bytes);
        store.read(i, read);
        good[i] += read == bytes ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(good, ::testing::Each(10));
}

TEST_P(DiskStoreTest, TakesItsRoomAndBeginsWithAHeader) {
  const std::vector<DiskExtent> extents{{"a", 5000}, {"b", 1 << 20}};
  DiskStore store(options(), extents);
  EXPECT_EQ(store.file_bytes(), 4096 + 8192 + (1 << 20));
  EXPECT_EQ(disk_store_bytes(extents), store.file_bytes());
  struct stat status {};
  ASSERT_EQ(fstat(calls.file, &status), 0);
  EXPECT_EQ(status.st_size, store.file_bytes());
  EXPECT_GE(status.st_blocks * 512, store.file_bytes());
  const auto header = [&] {
    PlacedBytes bytes(kDiskAlignment, true);
    EXPECT_EQ(pread(calls.file, bytes.span().data(), kDiskAlignment, 0), kDiskAlignment);
    return std::string(reinterpret_cast<const char*>(bytes.span().data()));
  };
  const auto text = [&](const char* step) {
    return concat("tessera disk tier, format 2\nrank 3\nstep ", step, "\nextents 2\nbytes ",
                  store.file_bytes(), "\ncontents ");
  };
  EXPECT_EQ(header(), text("none") + "none\n");
  store.write(0, random_bytes(5000, 1));
  store.mark(17);
  const std::string marked = header();
  EXPECT_THAT(marked, StartsWith(text("17")));
  store.mark(17);
  EXPECT_EQ(header(), marked);
  store.write(0, random_bytes(5000, 2));
  store.mark(18);
  EXPECT_THAT(header(), StartsWith(text("18")));
  EXPECT_NE(header().substr(text("18").size()), marked.substr(text("17").size()));
}

TEST_P(DiskStoreTest, IsListedNowhereAndOutlivesItsFolder) {
  for (const int refusal : {0, EOPNOTSUPP, EISDIR}) {  // the latter two have no O_TMPFILE
    calls.open_error = [&](const std::string&, int flags) {
      return (flags & O_TMPFILE) == O_TMPFILE ? refusal : 0;
    };
    TemporaryFolder own;
    DiskStoreOptions there = options();
    there.folder = own.path();
    DiskStore store(there, {{"h.0.master", 3 * kBlock}});
    EXPECT_TRUE(is_empty(own.path()));
    std::filesystem::remove_all(own.path());
    const Bytes bytes = random_bytes(3 * kBlock, 5);
    Bytes read(bytes.size());
    store.write(0, bytes);
    store.read(0, read);
    EXPECT_EQ(read, bytes);
  }
}

/// A child that has a store of `bytes` bytes, tells so through `ready`, and waits to be killed.
[[noreturn]] void hold_store(const DiskStoreOptions& options, std::int64_t bytes, int ready) {
  try {
    DiskStore store(options, {{"h.0.master", bytes}});
    store.write(0, random_bytes(static_cast<std::size_t>(bytes), 1));
    alarm(30);  // if nobody kills it
    if (::write(ready, "x", 1) == 1) pause();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  _exit(1);
}

TEST_P(DiskStoreTest, AKilledProcessLeavesNothing) {
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) hold_store(options(), 8 << 20, ready[1]);
  close(ready[1]);
  char told = 0;
  EXPECT_EQ(::read(ready[0], &told, 1), 1);  // the end of the pipe, if the child fails
  const std::string files = concat("/proc/", child, "/fd");
  const std::string own = std::filesystem::canonical(folder.path()).string();
  bool holds = false;
  for (const auto& file : std::filesystem::directory_iterator(files)) {
    std::error_code ignored;
    const std::string name = std::filesystem::read_symlink(file.path(), ignored).string();
    holds = holds || (name.starts_with(own) && name.ends_with("(deleted)"));
  }
  EXPECT_TRUE(holds);  // else nothing is tested
  EXPECT_TRUE(is_empty(folder.path()));
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(is_empty(folder.path()));
  close(ready[0]);
}

TEST(DiskStore, FallsBackToThreadsWhereIoUringIsForbidden) {
  TemporaryFolder folder;
  FaultyCalls calls;
  calls.forbids_io_uring = true;
  DiskStoreOptions options{.folder = folder.path(), .calls = &calls};
  DiskStore store(options, {{"h.0.master", 100}});
  EXPECT_EQ(store.backend(), DiskBackend::kThreads);
  EXPECT_THAT(store.description(), StartsWith("threads (io_uring: Operation not permitted), "));
  const Bytes bytes = random_bytes(100, 1);
  Bytes read(100);
  store.write(0, bytes);
  store.read(0, read);
  EXPECT_EQ(read, bytes);
  options.backend = DiskBackend::kIoUring;
  EXPECT_THAT(error_of([&] { DiskStore(options, {}); }),
              Pair(ErrorCode::kUnavailable, HasSubstr("Operation not permitted")));
}

/// In a child: has the kernel refuse io_uring with `error`, as containers do, and uses a store.
[[noreturn]] void use_store_without_io_uring(const std::string& folder, int error) {
  std::array<sock_filter, 4> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  bool good = false;
  try {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(2);
    }
    FaultyCalls calls;
    DiskStore store({.folder = folder, .calls = &calls}, {{"h.0.master", 5000}});
    const Bytes bytes = random_bytes(5000, 1);
    Bytes read(5000);
    store.write(0, bytes);
    store.read(0, read);
    good =
        read == bytes && store.backend() == DiskBackend::kThreads &&
        store.description().starts_with(concat("threads (io_uring: ", std::strerror(error), "), "));
  } catch (const std::exception& thrown) {
    std::fprintf(stderr, "%s\n", thrown.what());
  }
  _exit(good ? 0 : 1);
}

TEST(DiskStore, RunsWhereTheKernelRefusesIoUring) {
  TemporaryFolder folder;
  for (const int error : {EPERM, ENOSYS, ENOMEM}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) use_store_without_io_uring(folder.path(), error);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "system calls cannot be filtered here";
    EXPECT_EQ(WEXITSTATUS(status), 0) << std::strerror(error);
  }
}

TEST(DiskStore, IsBufferedWhereTheFileTakesNoDirectRequests) {
  TemporaryFolder folder;
  const auto is_direct = [&](auto refuse) {
    FaultyCalls calls;
    refuse(calls);
    DiskStore store({.folder = folder.path(), .calls = &calls}, {{"h.0.master", 5000}});
    const Bytes bytes = random_bytes(5000, 1);
    Bytes read(5000);
    store.write(0, bytes);
    store.read(0, read);
    EXPECT_EQ(read, bytes);
    EXPECT_THAT(store.description(), HasSubstr(store.direct() ? ", O_DIRECT" : ", buffered"));
    return store.direct();
  };
  EXPECT_FALSE(is_direct([](FaultyCalls& c) { c.direct_error = EINVAL; }));
  EXPECT_FALSE(is_direct([](FaultyCalls& c) { c.alignment = DirectAlignment{.known = true}; }));
  EXPECT_FALSE(is_direct([](FaultyCalls& c) {
    c.alignment = DirectAlignment{.known = true, .memory = 512, .offset = 65536};
  }));
  // Only the first request tells.
  EXPECT_FALSE(is_direct([](FaultyCalls& c) {
    c.alignment = DirectAlignment{};
    c.requests.before = [&c](const DiskRequest&) {
      return (fcntl(c.file, F_GETFL) & O_DIRECT) != 0 ? EINVAL : 0;
    };
  }));
}

TEST(DiskStore, ARequestMeetsTheAlignmentThatTheDeviceAsks) {
  TemporaryFolder folder;
  if (!takes_direct(folder.path())) GTEST_SKIP() << folder.path() << " takes no O_DIRECT";
  FaultyCalls calls;
  calls.alignment = DirectAlignment{.known = true, .memory = 512, .offset = 512};
  DiskStore store({.folder = folder.path(), .block_bytes = 8192, .calls = &calls},
                  {{"h.0.master", 30000}});
  ASSERT_TRUE(store.direct());
  int requests = 0;
  calls.requests.before = [&](const DiskRequest& request) {
    ++requests;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(request.data) % 512, 0u);
    EXPECT_EQ(request.offset % 4096, 0);
    EXPECT_EQ(request.bytes % 4096, 0u);
    return 0;
  };
  PlacedBytes bytes(30000, false);
  store.write(0, bytes.span());
  store.read(0, bytes.span());
  store.write(0, bytes.span().first(100), 9000);
  EXPECT_EQ(requests, 10);
}

TEST(DiskStore, SaysWhyItCannotBeMade) {
  TemporaryFolder folder;
  FaultyCalls calls;
  const DiskStoreOptions options{.folder = folder.path(), .rank = 2, .calls = &calls};
  const auto refusal = [&] {
    return error_of([&] { DiskStore(options, {{"h.0.master", 5000}}); });
  };
  calls.allocate_error = ENOSPC;
  EXPECT_THAT(
      refusal(),
      Pair(ErrorCode::kIo,
           AllOf(StartsWith("cannot take 12.0 KiB (12288 bytes) for the disk tier's file of "
                            "rank 2 in '" +
                            folder.path() + "': No space left on device; "),
                 HasSubstr(" are free there; make room, "))));
  calls.allocate_error = EFBIG;
  EXPECT_THAT(refusal(), Pair(ErrorCode::kIo, HasSubstr("(ulimit -f)")));
  calls.open_error = [](const std::string&, int) { return EACCES; };
  EXPECT_THAT(refusal(), Pair(ErrorCode::kIo, HasSubstr("Permission denied; choose a folder")));
  calls.open_error = nullptr;
  calls.free_bytes = 12287;
  EXPECT_THAT(refusal(), Pair(ErrorCode::kOutOfMemory, HasSubstr("(12287 bytes) free")));
  EXPECT_TRUE(is_empty(folder.path()));
}

TEST(DiskStore, TheLimitOnAFilesSizeIsAnErrorAndNoSignal) {
  TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  FaultyCalls calls;
  EXPECT_THAT(error_of([&] {
                DiskStore({.folder = folder.path(), .calls = &calls}, {{"h.0.master", 1 << 20}});
              }),
              Pair(ErrorCode::kIo, HasSubstr("File too large")));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(DiskStore, RefusesOptionsThatCannotBe) {
  TemporaryFolder folder;
  for (const std::int64_t block : {0, 1000, 4097}) {
    EXPECT_THAT(error_of([&] { DiskStore({.folder = folder.path(), .block_bytes = block}, {}); }),
                Pair(ErrorCode::kInvalidArgument, HasSubstr("multiple of 4096")));
  }
  EXPECT_THAT(error_of([&] { DiskStore({.folder = folder.path(), .queue_depth = 0}, {}); }),
              Pair(ErrorCode::kInvalidArgument, HasSubstr("0 requests in flight")));
  EXPECT_THAT(error_of([&] {
                disk_store_bytes({{"h.0.master", -1}});
              }),
              Pair(ErrorCode::kInvalidArgument, HasSubstr("'h.0.master' has -1 bytes")));
}

}  // namespace
}  // namespace tessera::test
