#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "faulty_disk.h"
#include "temporary_folder.h"
#include "tessera/core/disk_store.h"

namespace tessera::test {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Bytes at an address that is odd, or a multiple of kDiskAlignment.
class PlacedBytes {
 public:
  PlacedBytes(std::size_t count, bool aligned)
      : memory_(count + 2 * kDiskAlignment), count_(count) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = kDiskAlignment - address % kDiskAlignment + (aligned ? 0 : 1);
  }
  std::span<std::byte> span() { return {memory_.data() + begin_, count_}; }

 private:
  Bytes memory_;
  std::size_t begin_ = 0, count_;
};

/// The code and text of the error that `work` throws.
inline std::pair<ErrorCode, std::string> error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  ADD_FAILURE() << "there was no error";
  return {ErrorCode::kInternal, ""};
}

/// Whether files in the folder take O_DIRECT, asked without our code.
inline bool takes_direct(const std::string& folder) {
  PlacedBytes bytes(kDiskAlignment, true);
  const std::string path = folder + "/direct";
  const int file = open(path.c_str(), O_CREAT | O_RDWR | O_DIRECT, 0600);
  const bool takes =
      file >= 0 && pwrite(file, bytes.span().data(), kDiskAlignment, 0) == kDiskAlignment;
  if (file >= 0) close(file);
  unlink(path.c_str());
  return takes;
}

struct DiskWay {
  DiskBackend backend = DiskBackend::kThreads;
  bool direct = false;
  friend void PrintTo(const DiskWay& way, std::ostream* out) {
    *out << (way.backend == DiskBackend::kIoUring ? "io_uring" : "threads")
         << (way.direct ? "_direct" : "_buffered");
  }
};

/// Stores of small blocks with three requests in flight, in a folder that is removed.
class DiskStoreRun : public ::testing::TestWithParam<DiskWay> {
 protected:
  static constexpr std::int64_t kBlock = 2 * kDiskAlignment;

  void SetUp() override {
    if (GetParam().backend == DiskBackend::kIoUring) {
      try {
        disk_calls().make_queue(DiskBackend::kIoUring, 1);
      } catch (const Error& error) {
        GTEST_SKIP() << "this kernel forbids it: " << error.what();
      }
    }
    if (GetParam().direct && !takes_direct(folder.path())) {
      GTEST_SKIP() << folder.path() << " takes no O_DIRECT";
    }
  }

  DiskStoreOptions options() {
    return {.folder = folder.path(),
            .rank = 3,
            .block_bytes = kBlock,
            .queue_depth = 3,
            .backend = GetParam().backend,
            .direct = GetParam().direct,
            .calls = &calls};
  }

  TemporaryFolder folder;
  FaultyCalls calls;
};

inline auto all_disk_ways() {
  return ::testing::Values(
      DiskWay{DiskBackend::kIoUring, true}, DiskWay{DiskBackend::kIoUring, false},
      DiskWay{DiskBackend::kThreads, true}, DiskWay{DiskBackend::kThreads, false});
}

}  // namespace tessera::test
