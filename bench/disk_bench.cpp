// The disk tier's file against the disk's sequential rate.
//
//   disk_bench --folder DIR [--bytes N] [--extents N] [--block N] [--depth N] [--rounds R]
//              [--backend auto|io_uring|threads] [--buffered] [--json]
//
// In turns, in a folder of the disk that is measured, over files whose room is taken and that were
// written once before:
//   write   DiskStore::write of all extents, hashes included
//   read    DiskStore::read of them, hashes compared
// each beside pwrite or pread of as many bytes in requests of --plain-block bytes, one after the
// other, with O_DIRECT where the disk tier has it: the disk's sequential limit as it is at that
// moment. ratio = seconds of the limit / seconds: 1.00 is the limit itself; several requests in
// flight may be faster. Medians, and in brackets the first and the last quartile.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "support.h"
#include "tessera/core/disk_store.h"
#include "tessera/core/format_bytes.h"

namespace tessera::bench {
namespace {

struct Options {
  std::string folder = ".";
  std::size_t bytes = std::size_t{512} << 20;
  int extents = 8;
  std::size_t block = 0;
  std::size_t plain_block = std::size_t{64} << 20;
  int depth = 0;
  int rounds = 7;
  std::string backend = "auto";
  bool buffered = false;
  bool json = false;
};

DiskStoreOptions store_options(const Options& options) {
  DiskStoreOptions result{.folder = options.folder};
  if (options.block > 0) result.block_bytes = static_cast<std::int64_t>(options.block);
  if (options.depth > 0) result.queue_depth = options.depth;
  result.direct = !options.buffered;
  if (options.backend == "io_uring") result.backend = DiskBackend::kIoUring;
  if (options.backend == "threads") result.backend = DiskBackend::kThreads;
  return result;
}

/// Memory at a multiple of kDiskAlignment: (count).
class Memory {
 public:
  explicit Memory(std::size_t count)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kDiskAlignment, count)), &std::free) {
    require(bytes_ != nullptr, ErrorCode::kOutOfMemory, "no memory for ", count, " bytes");
    for (std::size_t i = 0; i < count; ++i) bytes_.get()[i] = static_cast<std::byte>(i * 7 >> 3);
  }
  std::byte* at(std::size_t place) { return bytes_.get() + place; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
};

void check(bool good, const char* what) {
  if (!good) fail(ErrorCode::kIo, what, ": ", std::strerror(errno));
}

/// A file without a name, in requests one after the other.
class PlainFile {
 public:
  PlainFile(const Options& options, bool direct) : options_(options) {
    std::string path = options.folder + "/disk_bench.XXXXXX";
    file_ = mkostemp(path.data(), direct ? O_DIRECT : 0);
    check(file_ >= 0, "open");
    std::filesystem::remove(path);
    check(posix_fallocate(file_, 0, static_cast<off_t>(options.bytes)) == 0, "fallocate");
  }
  ~PlainFile() { close(file_); }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  void write(Memory& memory) {
    move("pwrite", [&](std::size_t at, std::size_t count) {
      return pwrite(file_, memory.at(at), count, static_cast<off_t>(at));
    });
  }
  void read(Memory& memory) {
    move("pread", [&](std::size_t at, std::size_t count) {
      return pread(file_, memory.at(at), count, static_cast<off_t>(at));
    });
  }

 private:
  template <typename Call>
  void move(const char* name, const Call& call) {
    for (std::size_t at = 0; at < options_.bytes;) {
      const ssize_t moved = call(at, std::min(options_.plain_block, options_.bytes - at));
      check(moved > 0, name);
      at += static_cast<std::size_t>(moved);
    }
    posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  }

  const Options& options_;
  int file_ = -1;
};

/// Times of the disk tier and of its limit.
struct Times {
  std::vector<double> ours, limit;

  std::vector<double> ratios() const {
    std::vector<double> result;
    for (std::size_t i = 0; i < ours.size(); ++i) result.push_back(limit[i] / ours[i]);
    return result;
  }
  void print(const char* name, double bytes) const {
    std::printf("%-6s %8.3f s %7.2f GB/s   limit %7.2f GB/s   ratio %.2f (%.2f to %.2f)\n", name,
                median(ours), bytes / median(ours) / 1e9, bytes / median(limit) / 1e9,
                median(ratios()), quantile(ratios(), 0.25), quantile(ratios(), 0.75));
  }
};

void run_bench(const Options& options) {
  const auto extents = static_cast<std::size_t>(options.extents);
  const std::size_t each = options.bytes / extents;
  require(each > 0 && each % kDiskAlignment == 0 && options.bytes % extents == 0,
          ErrorCode::kConfig, "--bytes ", options.bytes, " must give each of --extents ", extents,
          " a multiple of ", kDiskAlignment, " bytes");
  std::vector<DiskExtent> list;
  for (std::size_t i = 0; i < extents; ++i) {
    list.push_back({concat("h.", i, ".master"), static_cast<std::int64_t>(each)});
  }
  const DiskStoreOptions chosen = store_options(options);
  DiskStore store(chosen, list);
  PlainFile plain(options, store.direct());
  Memory memory(options.bytes);
  const auto write = [&] {
    for (std::size_t i = 0; i < extents; ++i) store.write(i, {memory.at(i * each), each});
  };
  const auto read = [&] {
    for (std::size_t i = 0; i < extents; ++i) store.read(i, {memory.at(i * each), each});
  };
  std::printf("%s in %d extents, blocks of %s, %d in flight, %s, %s\n",
              format_bytes(static_cast<std::int64_t>(options.bytes)).c_str(), options.extents,
              format_bytes(chosen.block_bytes).c_str(), chosen.queue_depth,
              store.description().c_str(), options.folder.c_str());
  write();  // the first time the file system notes which of the room has been written
  plain.write(memory);
  Times writes, reads;
  for (int round = 0; round < options.rounds; ++round) {
    writes.limit.push_back(seconds_of([&] { plain.write(memory); }));
    writes.ours.push_back(seconds_of(write));
    reads.limit.push_back(seconds_of([&] { plain.read(memory); }));
    reads.ours.push_back(seconds_of(read));
  }
  const auto bytes = static_cast<double>(options.bytes);
  writes.print("write", bytes);
  reads.print("read", bytes);
  if (!options.json) return;
  const nlohmann::json result{{"bytes", options.bytes},       {"store", store.description()},
                              {"write_seconds", writes.ours}, {"write_limit_seconds", writes.limit},
                              {"read_seconds", reads.ours},   {"read_limit_seconds", reads.limit}};
  std::printf("%s\n", result.dump().c_str());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program("disk_bench",
                  "Writing and reading the disk tier's file against the disk's sequential rate.");
  program.option("--folder", &options.folder, "on the disk that is measured");
  program.option("--bytes", &options.bytes, "of the file, and of memory", with_suffix());
  program.option("--extents", &options.extents, "of equal size", positive());
  program.option("--block", &options.block, "of a request; 0: the disk tier's default",
                 with_suffix());
  program.option("--plain-block", &options.plain_block, "of a request of the limit", with_suffix());
  program.option("--depth", &options.depth, "requests in flight; 0: the disk tier's default");
  program.option("--rounds", &options.rounds, "turns", positive());
  program.option("--backend", &options.backend, "auto, io_uring or threads",
                 one_of({"auto", "io_uring", "threads"}));
  program.option("--buffered", &options.buffered, "without O_DIRECT, the limit too");
  program.option("--json", &options.json, "a last line for programs");
  return program.run(argc, argv, [&] { run_bench(options); });
}
