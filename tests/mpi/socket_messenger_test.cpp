#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <string>
#include <thread>

#include "mpi/raw_process.h"
#include "tessera/collectives/world.h"
#include "tessera/core/error.h"

// What a process makes of the messages of another, which the test plays.
namespace tessera {
namespace {

using test::connection_to;
using test::hear;
using test::hear_line;
using test::say;

enum class Kind : std::uint32_t { kData = 0x74657301, kAbort, kLeave };

/// As it goes over the line.
struct Header {
  Kind kind = Kind::kData;
  std::uint32_t tag = 0;
  std::uint64_t bytes = 0;
};

void send_message(const Socket& socket, Kind kind, const std::string& text) {
  const Header header{.kind = kind, .tag = 0xffffffffU, .bytes = text.size()};
  std::string message(sizeof(header), '\0');
  std::memcpy(message.data(), &header, sizeof(header));
  say(socket, message + text);
}

std::string next_message(const Socket& socket) {
  Header header;
  const std::string bytes = hear(socket, sizeof(header));
  if (bytes.size() < sizeof(header)) return "";
  std::memcpy(&header, bytes.data(), sizeof(header));
  return hear(socket, header.bytes);
}

/// Process 1 of two, on another machine: says at every exchange what the other one says.
Socket join_as_echo(int port) {
  Socket socket = connection_to(port);
  say(socket, "tessera-1 1 2 1\n");
  EXPECT_EQ(hear_line(socket).substr(0, 3), "ok ");
  constexpr int kExchanges = 3;  // who is who; what is mapped; where the group of all ranks is
  for (int i = 0; i < kExchanges; ++i) {
    const std::string size = next_message(socket);
    std::string text = next_message(socket);
    const std::size_t own = text.find("#0 ");
    if (own != std::string::npos) text.replace(own, 3, "#1 ");
    send_message(socket, Kind::kData, size);
    send_message(socket, Kind::kData, text);
  }
  return socket;
}

TEST(SocketMessengerTest, AnAbortWithoutAReasonIsHeard) {
  const int listener = listening_socket(0);
  const int port = port_of_listener(listener);
  auto meeting = std::async(std::launch::async, [listener] {
    return make_socket_world({.process = 0, .processes = 2, .listener = listener}, {.apart = true});
  });
  const Socket other = join_as_echo(port);
  const std::unique_ptr<World> world = meeting.get();
  EXPECT_EQ(world->failure(), "");
  send_message(other, Kind::kAbort, "");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (world->failure().empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_NE(world->failure(), "");
  EXPECT_EQ(world->failure().find("lost the connection"), std::string::npos) << world->failure();
}

}  // namespace
}  // namespace tessera
