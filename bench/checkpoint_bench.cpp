// Writing, reading and copying a checkpoint of one rank, against the disk's and memory's limits.
//
//   checkpoint_bench [--folder DIR] [--layers N] [--width C] [--rounds R]
//
// In turns, in a folder of the disk that is measured:
//   copy    the state to host memory, for which the steps wait; beside memcpy of as many bytes
//   write   the file, hashes and fsync included; beside pwrite of as many bytes in one file, fsync
//           included: the disk's sequential limit as this machine has it at that moment
//   read    load_state of the same file from the page cache, hashes compared; beside pread of it
// ratio = seconds of the limit / seconds: 1.00 is the limit itself. Medians, and in brackets the
// first and the last quartile.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

#include "support.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/memory.h"
#include "tessera/model/gpt.h"

namespace tessera::bench {
namespace {

struct Options {
  std::string folder = "checkpoint_bench.tmp";
  int layers = 12;
  int width = 768;
  int rounds = 7;
};

/// Times of a piece of work and of its limit.
struct Pair {
  std::vector<double> ours, limit;
  void print(const char* name, double bytes) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(limit[i] / ours[i]);
    std::printf("%-6s %8.3f s %7.2f GB/s   limit %7.2f GB/s   ratio %.2f (%.2f to %.2f)\n", name,
                median(ours), bytes / median(ours) / 1e9, bytes / median(limit) / 1e9,
                median(ratios), quantile(ratios, 0.25), quantile(ratios, 0.75));
  }
};

void check(bool good, const char* what) {
  if (!good) fail(ErrorCode::kIo, what, ": ", std::strerror(errno));
}

void write_plainly(const std::string& path, const std::vector<std::byte>& bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  check(file >= 0, "open");
  check(posix_fallocate(file, 0, static_cast<off_t>(bytes.size())) == 0, "fallocate");
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t count = std::min(bytes.size() - at, static_cast<std::size_t>(kChunkBytes));
    check(pwrite(file, bytes.data() + at, count, static_cast<off_t>(at)) ==
              static_cast<ssize_t>(count),
          "pwrite");
    at += count;
  }
  check(fsync(file) == 0, "fsync");
  close(file);
}

void read_plainly(const std::string& path, std::vector<std::byte>& bytes) {
  const int file = open(path.c_str(), O_RDONLY);
  check(file >= 0, "open");
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = pread(file, bytes.data() + at,
                                std::min(bytes.size() - at, static_cast<std::size_t>(kChunkBytes)),
                                static_cast<off_t>(at));
    check(count > 0, "pread");
    at += static_cast<std::size_t>(count);
  }
  close(file);
}

void run(const Options& options) {
  const Model model = make_gpt({.vocab_size = 50257,
                                .context_length = 1024,
                                .layers = options.layers,
                                .heads = options.width / 64,
                                .width = options.width});
  const ModelLayout layout = make_layout(model, {}, 1);
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({});
  Memory memory(*device);
  TrainingState state(layout, {}, 0, memory);
  state.initialize(0, *stream);
  Manifest manifest;
  manifest.step = 1;
  manifest.parameters = saved_parameters(layout, state.options(), false);
  Snapshot snapshot(manifest.parameters, state, *device);
  const auto bytes = static_cast<double>(snapshot.file_bytes());
  std::vector<std::byte> plain(static_cast<std::size_t>(snapshot.file_bytes()), std::byte{1});
  std::vector<std::byte> other = plain;
  std::printf("%lld parameters, %.2f GB of state, %s\n",
              static_cast<long long>(parameter_count(model)), bytes / 1e9, options.folder.c_str());
  const std::string folder = begin_checkpoint(disk(), options.folder, 1);
  Pair copy, write, read;
  for (int round = 0; round < options.rounds; ++round) {
    copy.limit.push_back(
        seconds_of([&] { std::memcpy(other.data(), plain.data(), plain.size()); }));
    copy.ours.push_back(seconds_of([&] { snapshot.take(*stream); }));
    const std::string path = folder + "/plain";
    write.limit.push_back(seconds_of([&] { write_plainly(path, plain); }));
    read.limit.push_back(seconds_of([&] { read_plainly(path, other); }));
    std::filesystem::remove(path);
    write.ours.push_back(seconds_of([&] { manifest.files = {snapshot.write(disk(), folder)}; }));
    read.ours.push_back(seconds_of([&] { load_state(manifest, folder, state, *stream); }));
    std::filesystem::remove(folder + "/" + manifest.files[0].name);
  }
  copy.print("copy", bytes);
  write.print("write", bytes);
  read.print("read", bytes);
  std::filesystem::remove_all(options.folder);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program("checkpoint_bench",
                  "Writing, reading and copying a checkpoint of one rank, against the limits.");
  program.add_option("--folder", options.folder, "made for the run, and removed");
  program.add_option("--layers", options.layers, "of the GPT")->check(positive());
  program.add_option("--width", options.width, "of the GPT, a multiple of 64")->check(positive());
  program.add_option("--rounds", options.rounds, "turns")->check(positive());
  return program.run(argc, argv, [&] { run(options); });
}
