// A run that spans processes and of which the last rank fails as --mode says. Every other rank
// writes how it ended to a file in --path, for world_failure_test.cpp.

#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>
#include <vector>

#include "mpi/processes.h"
#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// A message that is longer than its receiver expects, or of another dtype and as long.
constexpr std::int64_t kExpectedNumel = 4;
TensorView message_of(const std::string& mode, std::vector<float>& memory) {
  memory.resize(8);
  if (mode == "dtype") return {memory.data(), DType::kInt32, Shape{kExpectedNumel}};
  return {memory.data(), DType::kFloat32, Shape{kExpectedNumel + 1}};
}
bool sends(const std::string& mode) { return mode == "size" || mode == "dtype"; }

/// Returns when the others have been told.
void fail_as(const std::string& mode, const std::string& folder, ProcessGroup& group,
             Stream& stream) {
  if (sends(mode)) {
    std::vector<float> memory;
    group.send(message_of(mode, memory), 0, stream);
    try {
      stream.synchronize();
    } catch (const Error&) {  // the others write what they were told
    }
  }
  if (mode == "abort") group.abort("rank 5 failed: the disk is full");
  if (mode == "kill") raise(SIGKILL);
  if (mode == "exit") _exit(0);
  if (mode != "stall") return;
  const Clock::time_point deadline = Clock::now() + std::chrono::minutes(2);
  for (int rank = 0; rank < group.size() - 1; ++rank) {
    while (!std::filesystem::exists(concat(folder, "/", rank)) && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

std::string outcome_of(const std::string& mode, ProcessGroup& group, Stream& stream) {
  std::vector<float> memory(kExpectedNumel);
  try {
    if (sends(mode) && group.rank() == 0) {
      const TensorView expected(memory.data(), DType::kFloat32, Shape{kExpectedNumel});
      group.recv(expected, group.size() - 1, stream);
    }
    while (true) {
      group.barrier(stream);
      stream.synchronize();
    }
  } catch (const Error& error) {
    return concat(to_string(error.code()), "\n", error.what(), "\n");
  }
}

void run_rank(ProcessGroup& group, const test::ProcessArguments& arguments) {
  const auto device = make_cpu_device();
  // As an executor's lanes do: a checked group leaves it to them.
  const auto stream =
      device->create_stream({.on_error = [&](std::string_view what) { group.abort(what); }});
  group.barrier(*stream);
  stream->synchronize();
  const Clock::time_point begin = Clock::now();
  if (group.rank() == group.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return fail_as(arguments.mode, arguments.path, group, *stream);
  }
  const std::string outcome = outcome_of(arguments.mode, group, *stream);
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  std::ofstream(arguments.path + "/" + std::to_string(group.rank())) << waited.count() << "\n"
                                                                     << outcome;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const auto arguments = tessera::test::parse_process_arguments(argc, argv);
  const tessera::test::Meeting meeting(arguments);
  try {
    const auto world = meeting.make();
    std::vector<std::thread> threads;
    for (const auto& group : world->groups()) {
      threads.emplace_back([&] { tessera::run_rank(*group, arguments); });
    }
    for (std::thread& thread : threads) thread.join();
  } catch (const std::exception& error) {
    std::cerr << "cannot meet: " << error.what() << "\n";
  }
  for (const pid_t child : meeting.children()) waitpid(child, nullptr, 0);
  return 0;
}
