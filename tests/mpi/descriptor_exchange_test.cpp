#include "world/descriptor_exchange.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>

#include "tessera/core/error.h"
#include "world/shared_arena.h"

// Who gets the memory of a process, and what memory is taken of another.
namespace tessera::descriptor_exchange_test {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kPatience{60000};
const std::function<std::string()> kAllIsWell = [] { return ""; };

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

DescriptorExchange::Neighbour neighbour(const DescriptorExchange& exchange, pid_t pid) {
  return {.process = 1, .pid = pid, .name = exchange.name()};
}

/// What a process gets that connects to `exchange` and waits: 0 bytes if nothing.
ssize_t heard_by_stranger(const DescriptorExchange& exchange) {
  const Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, exchange.name().data(), exchange.name().size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + exchange.name().size());
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return -1;
  char byte = 0;
  return recv(socket.fd(), &byte, 1, 0);
}

TEST(DescriptorExchangeTest, NeighboursGetEachOthersFilesAndStrangersNothing) {
  const DescriptorExchange one;
  const DescriptorExchange other;
  const pid_t stranger = fork();
  if (stranger == 0) _exit(heard_by_stranger(one) == 0 ? 0 : 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it comes first
  const SharedMapping memory(1U << 20U);
  std::memcpy(memory.base(), "mine", 5);
  const Socket nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<Socket> taken;
  std::thread side([&] {
    taken = other.exchange(nothing.fd(), {neighbour(one, getpid())}, kPatience, kAllIsWell);
  });
  one.exchange(memory.file(), {neighbour(other, getpid())}, kPatience, kAllIsWell);
  side.join();
  const SharedMapping seen(std::move(taken.at(0)), memory.bytes());
  EXPECT_STREQ(reinterpret_cast<const char*>(seen.base()), "mine");
  int status = -1;
  waitpid(stranger, &status, 0);
  EXPECT_EQ(status, 0) << "a stranger got a file";
}

TEST(DescriptorExchangeTest, AProcessThatIsNotWhoItSaysIsRefused) {
  const DescriptorExchange one;
  const DescriptorExchange other;
  EXPECT_THAT(
      error_of([&] { one.exchange(0, {neighbour(other, getppid())}, kPatience, kAllIsWell); }),
      HasSubstr(concat("process 1 says that its pid is ", getppid(), ", but at its socket is pid ",
                       getpid())));
}

TEST(DescriptorExchangeTest, AProcessThatDoesNotComeIsNamed) {
  const DescriptorExchange one;
  const DescriptorExchange other;
  const std::vector neighbours{neighbour(other, getpid())};
  EXPECT_THAT(
      error_of([&] { one.exchange(0, neighbours, std::chrono::milliseconds(100), kAllIsWell); }),
      HasSubstr("process 1 of this machine did not come to share memory"));
  EXPECT_EQ(error_of([&] {
              one.exchange(0, neighbours, kPatience, [] { return "process 1 has ended"; });
            }),
            "process 1 has ended");
}

TEST(SharedMappingTest, MemoryThatIsNotThereForGoodIsRefused) {
  constexpr std::size_t kBytes = 1U << 20U;
  const auto problem_of = [](int seals, std::size_t bytes) {
    Socket file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(file.fd(), static_cast<off_t>(bytes)), 0);
    fcntl(file.fd(), F_ADD_SEALS, seals);
    return error_of([&] { SharedMapping(std::move(file), kBytes); });
  };
  EXPECT_EQ(problem_of(F_SEAL_SHRINK, kBytes), "");
  EXPECT_THAT(problem_of(0, kBytes), HasSubstr("that may shrink"));
  EXPECT_THAT(problem_of(F_SEAL_SHRINK, kBytes / 2), HasSubstr("a file of 524288 bytes"));
  EXPECT_THAT(error_of([] { SharedMapping(Socket(open("/dev/zero", O_RDWR)), kBytes); }),
              HasSubstr("announced 1048576 bytes of shared memory"));
}

}  // namespace
}  // namespace tessera::descriptor_exchange_test
