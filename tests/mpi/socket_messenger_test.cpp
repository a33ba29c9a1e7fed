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
namespace tessera::socket_messenger_test {
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

/// The header of a message that does not follow.
void announce(const Socket& socket, Kind kind, std::uint64_t bytes) {
  const Header header{.kind = kind, .tag = 1, .bytes = bytes};
  std::string message(sizeof(header), '\0');
  std::memcpy(message.data(), &header, sizeof(header));
  say(socket, message);
}

std::string next_message(const Socket& socket) {
  Header header;
  const std::string bytes = hear(socket, sizeof(header));
  if (bytes.size() < sizeof(header)) return "";
  std::memcpy(&header, bytes.data(), sizeof(header));
  return hear(socket, header.bytes);
}

/// Process 1 of two, until the meeting is over.
Socket join(int port) {
  Socket socket = connection_to(port);
  const Claim claim{.process = 1, .processes = 2, .port = 1};
  EXPECT_EQ(test::greet_as(claim, socket, port), Greeted::kWelcome);
  EXPECT_EQ(hear_line(socket).substr(0, 3), "ok ");
  return socket;
}

/// The same on another machine: says at every exchange what the other one says.
Socket join_as_echo(int port) {
  Socket socket = join(port);
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

/// Process 0 of two, on a thread of its own; port() is where the test, as process 1, finds it.
class FirstProcess {
 public:
  FirstProcess() {
    meeting_ = std::async(std::launch::async, [listener = listener_] {
      return make_socket_world({.process = 0, .processes = 2, .listener = listener},
                               {.apart = true});
    });
  }
  int port() const { return port_; }
  std::unique_ptr<World> world() { return meeting_.get(); }
  std::string error() {
    try {
      meeting_.get();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

 private:
  const int listener_ = listen_at(kLoopback, 0).socket;
  const int port_ = port_of_listener(listener_);
  std::future<std::unique_ptr<World>> meeting_;
};

std::string failure_of(World& world) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (world.failure().empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return world.failure();
}

TEST(SocketMessengerTest, AnAbortWithoutAReasonIsHeard) {
  FirstProcess first;
  const Socket other = join_as_echo(first.port());
  const std::unique_ptr<World> world = first.world();
  EXPECT_EQ(world->failure(), "");
  send_message(other, Kind::kAbort, "");
  const std::string failure = failure_of(*world);
  EXPECT_NE(failure, "");
  EXPECT_EQ(failure.find("lost the connection"), std::string::npos) << failure;
}

constexpr std::uint64_t kHuge = std::uint64_t{20} << 30U;

TEST(SocketMessengerTest, AMessageLongerThanAnyIsRefusedBeforeThereIsMemoryForIt) {
  for (const Kind kind : {Kind::kData, Kind::kAbort, Kind::kLeave}) {
    FirstProcess first;
    const Socket other = join_as_echo(first.port());
    const std::unique_ptr<World> world = first.world();
    announce(other, kind, kHuge);
    EXPECT_NE(failure_of(*world).find("process 1 announced a message of 21474836480 bytes"),
              std::string::npos)
        << world->failure();
  }
}

TEST(SocketMessengerTest, AnIntroductionLongerThanAnyIsRefused) {
  FirstProcess first;
  const Socket other = join(first.port());
  std::string size(sizeof(kHuge), '\0');
  std::memcpy(size.data(), &kHuge, sizeof(kHuge));
  send_message(other, Kind::kData, size);
  EXPECT_NE(first.error().find("process 1 announced a text of 21474836480 bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::socket_messenger_test
