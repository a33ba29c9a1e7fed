// Writing and reading a checkpoint of one rank against the disk's limits, and what a save costs
// steps.
//
//   checkpoint_bench [--folder DIR] [--layers N] [--width C] [--rounds R]
//                    [--threads T] [--length L] [--json]
//
// In turns, in a folder of the disk that is measured:
//   write   the file, hashes and fsync included; beside pwrite of as many bytes in one file, fsync
//           included: the disk's sequential limit as this machine has it at that moment
//   read    load_state of the same file from the page cache, hashes compared; beside pread of it
// ratio = seconds of the limit / seconds: 1.00 is the limit itself. Medians, and in brackets the
// first and the last quartile. Then training steps of the same model, of --length tokens on
// --threads threads, in turns:
//   plain   nothing is saved
//   copies  the step that copies the state beside its work
//   writes  the steps after it, until the checkpoint is durable, written by a thread beside them
// as multiples of the plain step before; and
//   save    Session::save between two steps: copy, files, manifest, all made durable
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/checkpoint/state_file.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/memory.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/session.h"

namespace tessera::bench {
namespace {

struct Options {
  std::string folder = "checkpoint_bench.tmp";
  int layers = 12;
  int width = 768;
  int rounds = 7;
  int threads = 1;
  std::int64_t length = 256;
  bool json = false;
};

Model make_model(const Options& options) {
  return make_gpt({.vocab_size = 50257,
                   .context_length = 1024,
                   .layers = options.layers,
                   .heads = options.width / 64,
                   .width = options.width});
}

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

void run_files(const Options& options) {
  const Model model = make_model(options);
  const ModelLayout layout = make_layout(model, {}, 1);
  const auto device = make_cpu_device();
  const auto stream = device->create_stream({});
  Memory memory(*device);
  TrainingState state(layout, {}, 0, memory);
  state.initialize(0, *stream);
  Manifest manifest;
  manifest.step = 1;
  manifest.parameters = saved_parameters(layout, state.options(), false);
  const std::int64_t file_bytes =
      describe_file(manifest.parameters, layout, state.options(), 0).bytes;
  const auto bytes = static_cast<double>(file_bytes);
  std::vector<std::byte> plain(static_cast<std::size_t>(file_bytes), std::byte{1});
  std::vector<std::byte> other = plain;
  std::printf("%lld parameters, %.2f GB of state, %s\n",
              static_cast<long long>(parameter_count(model)), bytes / 1e9, options.folder.c_str());
  const std::string folder = begin_checkpoint(disk(), options.folder, 1);
  Pair write, read;
  for (int round = 0; round < options.rounds; ++round) {
    const std::string path = folder + "/plain";
    write.limit.push_back(seconds_of([&] { write_plainly(path, plain); }));
    read.limit.push_back(seconds_of([&] { read_plainly(path, other); }));
    std::filesystem::remove(path);
    write.ours.push_back(seconds_of([&] {
      manifest.files = {write_state(
          manifest.parameters, layout, state.options(), 0,
          [&](const std::string& name) { return state.at(name).view; }, disk(), folder)};
    }));
    read.ours.push_back(seconds_of([&] { load_state(manifest, folder, state, *stream); }));
    std::filesystem::remove(folder + "/" + manifest.files[0].name);
  }
  write.print("write", bytes);
  read.print("read", bytes);
  std::filesystem::remove_all(options.folder);
}

void run_steps(const Options& options) {
  const Model model = make_model(options);
  const RandomTokens data(options.length, 50257);
  TrainerOptions training{.ranks = 1, .steps = 1000000, .micro_batch = 1};
  training.threads_per_rank = options.threads;
  training.time_actions = false;
  training.checkpoints.folder = options.folder;
  Session session(model, data, training);
  const auto step = [&] { return seconds_of([&] { session.step(); }); };
  step();
  std::vector<double> plain, copies, writes, saves;
  for (int round = 0; round < options.rounds; ++round) {
    plain.push_back(step());
    session.begin_save(options.folder);
    copies.push_back(step() / plain.back());
    while (!session.poll_save()) writes.push_back(step() / plain.back());
    std::filesystem::remove_all(options.folder);
    saves.push_back(seconds_of([&] { session.save(options.folder); }));
    std::filesystem::remove_all(options.folder);
  }
  const auto print = [](const char* name, const std::vector<double>& ratios) {
    std::printf("%-6s %.3f of a plain step (%.3f to %.3f), %zu steps\n", name, median(ratios),
                quantile(ratios, 0.25), quantile(ratios, 0.75), ratios.size());
  };
  std::printf("plain  %.3f s a step of %lld tokens on %d threads\n", median(plain),
              static_cast<long long>(options.length), options.threads);
  print("copies", copies);
  print("writes", writes);
  std::printf("save   %.3f s (%.3f to %.3f)\n", median(saves), quantile(saves, 0.25),
              quantile(saves, 0.75));
  if (!options.json) return;
  const nlohmann::json result{
      {"plain_seconds", plain}, {"copies", copies}, {"writes", writes}, {"save_seconds", saves}};
  std::printf("%s\n", result.dump().c_str());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  Program program(
      "checkpoint_bench",
      "Writing and reading a checkpoint of one rank, and steps beside it, against the limits.");
  program.option("--folder", &options.folder, "made for the run, and removed");
  program.option("--layers", &options.layers, "of the GPT", positive());
  program.option("--width", &options.width, "of the GPT, a multiple of 64", positive());
  program.option("--rounds", &options.rounds, "turns", positive());
  program.option("--threads", &options.threads, "of the steps", positive());
  program.option("--length", &options.length, "tokens of a step", positive());
  program.option("--json", &options.json, "a last line for programs, of the steps and saves");
  return program.run(argc, argv, [&] {
    run_files(options);
    run_steps(options);
  });
}
