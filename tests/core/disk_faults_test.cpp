#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "disk_store_run.h"

namespace tessera::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

/// A store of one extent, and faults that happen to its requests.
class DiskFaults : public DiskStoreRun {
 protected:
  static constexpr std::size_t kBytes = 6 * kBlock + 1000;

  void SetUp() override {
    DiskStoreRun::SetUp();
    if (IsSkipped()) return;
    store = std::make_unique<DiskStore>(
        options(), std::vector<DiskExtent>{{"h.0.master", kBytes}, {"h.1.master", kBytes}});
    file = calls.file;
    store->write(0, bytes);
  }

  /// Of the block `index` of the first extent.
  static std::int64_t place_of(std::int64_t index) { return kDiskAlignment + index * kBlock; }

  /// Spoils a block on the disk itself.
  void change(std::int64_t index) {
    PlacedBytes sector(kDiskAlignment, true);
    ASSERT_EQ(pread(file, sector.span().data(), kDiskAlignment, place_of(index)), kDiskAlignment);
    sector.span()[123] ^= std::byte{4};
    ASSERT_EQ(pwrite(file, sector.span().data(), kDiskAlignment, place_of(index)), kDiskAlignment);
  }

  void expect_intact() {
    calls.requests = {};
    Bytes read(kBytes);
    store->read(0, read);
    EXPECT_EQ(read, bytes);
  }

  const Bytes bytes = random_bytes(kBytes, 1), others = random_bytes(kBytes, 2);
  std::unique_ptr<DiskStore> store;
  int file = -1;
};
INSTANTIATE_TEST_SUITE_P(Ways, DiskFaults, all_disk_ways(), ::testing::PrintToStringParamName());

TEST_P(DiskFaults, ShortResultsAreContinued) {
  std::mt19937 random(3);
  const std::size_t unit = GetParam().direct ? kDiskAlignment : 1;
  int shortened = 0;
  calls.requests.before = [&](DiskRequest& request) {
    if (request.bytes <= unit) return 0;
    const std::size_t most = request.bytes / unit;
    const std::size_t less = std::max<std::size_t>(1, most / 2 + random() % (most - most / 2));
    shortened += less < most ? 1 : 0;
    request.bytes = less * unit;
    return 0;
  };
  for (const Bytes& now : {others, bytes}) {
    Bytes read(kBytes);
    store->write(0, now);
    store->read(0, read);
    EXPECT_EQ(read, now);
  }
  store->write(0, std::span(others).subspan(100, 2 * kBlock), 100);
  EXPECT_GT(shortened, 20);
  Bytes read(kBytes);
  store->read(0, read);
  EXPECT_TRUE(
      std::equal(read.begin() + 100, read.begin() + 100 + 2 * kBlock, others.begin() + 100));
  EXPECT_TRUE(
      std::equal(read.begin() + 100 + 2 * kBlock, read.end(), bytes.begin() + 100 + 2 * kBlock));
}

TEST_P(DiskFaults, PartsOfSectorsAreMovedAgain) {
  int times = 0;
  calls.requests.before = [&](DiskRequest& request) {
    if (request.bytes == kBlock) request.bytes = kDiskAlignment;
    return 0;
  };
  calls.requests.after = [&](const DiskRequest&, std::int64_t moved) {
    return ++times % 3 == 0 && moved > 1000 ? moved - 1000 : moved;
  };
  Bytes read(kBytes);
  store->write(0, others);
  store->read(0, read);
  EXPECT_EQ(read, others);
  EXPECT_GT(times, 14);
}

TEST_P(DiskFaults, InterruptedRequestsAreMadeAgain) {
  int times = 0;
  calls.requests.before = [&](const DiskRequest&) {
    const int time = ++times % 4;
    return time == 1 ? EINTR : time == 2 ? EAGAIN : 0;
  };
  Bytes read(kBytes);
  store->write(0, others);
  store->read(0, read);
  EXPECT_EQ(read, others);
  EXPECT_GE(times, 28);
}

TEST_P(DiskFaults, AQueueThatNeverGetsOnIsAnError) {
  calls.requests.before = [&](const DiskRequest& request) {
    return request.offset == place_of(2) ? EAGAIN : 0;
  };
  Bytes read(kBytes);
  EXPECT_THAT(error_of([&] { store->read(0, read); }),
              Pair(ErrorCode::kIo, AllOf(HasSubstr("bytes 16384 to 24575"),
                                         HasSubstr("Resource temporarily unavailable"))));
  calls.requests = {.submit_error = EBUSY};
  EXPECT_THAT(error_of([&] { store->read(0, read); }),
              Pair(ErrorCode::kIo, HasSubstr("Device or resource busy")));
  expect_intact();
}

TEST_P(DiskFaults, AReadThatFailsNamesExtentFileAndReason) {
  calls.requests.before = [&](const DiskRequest& request) {
    return request.offset == place_of(3) ? EIO : 0;
  };
  Bytes read(kBytes);
  EXPECT_THAT(
      error_of([&] { store->read(0, read); }),
      Pair(ErrorCode::kIo,
           AllOf(StartsWith("cannot read 'h.0.master' (bytes 24576 to 32767 of 50152) in the disk "
                            "tier's file of rank 3 in '" +
                            folder.path() + "': Input/output error; "),
                 HasSubstr("resume from the last checkpoint"))));
  expect_intact();
}

TEST_P(DiskFaults, WhatAFailedWriteTouchedCannotBeReadUntilItIsWritten) {
  store->write(1, bytes);
  calls.requests.before = [&](const DiskRequest& request) {
    return request.offset == place_of(3) ? EIO : 0;
  };
  EXPECT_THAT(error_of([&] { store->write(0, others); }),
              Pair(ErrorCode::kIo, AllOf(StartsWith("cannot write 'h.0.master'"),
                                         HasSubstr("Input/output error"))));
  calls.requests = {};
  Bytes read(kBytes);
  for (const std::int64_t block : {0, 3, 6}) {  // written, refused, not begun
    EXPECT_THAT(error_of([&] { store->read(0, std::span(read).first(1), block * kBlock); }),
                Pair(ErrorCode::kIo, HasSubstr("writing it has failed")));
  }
  store->read(1, read);
  EXPECT_EQ(read, bytes);
  store->write(0, bytes);
  expect_intact();
}

TEST_P(DiskFaults, AFullDiskSaysWhatToDo) {
  for (const int reason : {ENOSPC, EDQUOT}) {
    calls.requests.before = [&](const DiskRequest& request) {
      return request.write && request.offset == place_of(5) ? reason : 0;
    };
    EXPECT_THAT(error_of([&] { store->write(0, others); }),
                Pair(ErrorCode::kIo, HasSubstr("make room there, or choose")));
  }
  calls.requests = {.after = [](const DiskRequest&, std::int64_t) { return 0; }};
  EXPECT_THAT(error_of([&] { store->write(0, others); }),
              Pair(ErrorCode::kIo, HasSubstr("No space left on device")));
}

TEST_P(DiskFaults, BytesThatWereChangedAreNeverRead) {
  change(4);
  Bytes read(kBytes);
  EXPECT_THAT(
      error_of([&] { store->read(0, read); }),
      Pair(ErrorCode::kIo,
           AllOf(StartsWith("'h.0.master' (bytes 32768 to 40959 of 50152) in the disk tier's "
                            "file of rank 3"),
                 HasSubstr("is not what was last written: its hash differs"))));
  EXPECT_THAT(error_of([&] { store->read(0, std::span(read).first(5), 4 * kBlock + 5000); }),
              Pair(ErrorCode::kIo, HasSubstr("its hash differs")));
  EXPECT_THAT(error_of([&] { store->write(0, std::span(others).first(5), 4 * kBlock + 5000); }),
              Pair(ErrorCode::kIo, HasSubstr("its hash differs")));
  store->write(0, bytes);
  expect_intact();
}

TEST_P(DiskFaults, AWriteThatTheDiskLosesIsNoticed) {
  // Each block is whole and was once right: only it is not the last one written.
  calls.requests.before = [&](DiskRequest& request) {
    if (request.write && request.offset == place_of(1)) request.offset = place_of(7);
    return 0;
  };
  store->write(0, others);
  calls.requests = {};
  Bytes read(kBytes);
  EXPECT_THAT(
      error_of([&] { store->read(0, read); }),
      Pair(ErrorCode::kIo, AllOf(HasSubstr("bytes 8192 to 16383"), HasSubstr("its hash differs"))));
}

TEST_P(DiskFaults, AFileThatIsCutIsAnError) {
  ASSERT_EQ(ftruncate(file, place_of(2)), 0);
  Bytes read(kBytes);
  EXPECT_THAT(error_of([&] { store->read(0, read); }),
              Pair(ErrorCode::kIo, HasSubstr("the file has been cut short")));
}

TEST_P(DiskFaults, AFolderThatVanishesIsAnError) {
  DiskStoreOptions gone = options();
  gone.folder = folder.path("gone");
  EXPECT_THAT(
      error_of([&] { DiskStore(gone, {}); }),
      Pair(ErrorCode::kNotFound, HasSubstr("No such file or directory; make it on the disk")));
  calls.open_error = [&](const std::string&, int) { return ENOENT; };  // since it was checked
  EXPECT_THAT(error_of([&] { DiskStore(options(), {}); }),
              Pair(ErrorCode::kIo, HasSubstr("No such file or directory")));
  expect_intact();
}

}  // namespace
}  // namespace tessera::test
