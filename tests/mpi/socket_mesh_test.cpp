#include "world/socket_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <sstream>

#include "mpi/raw_process.h"
#include "tessera/core/error.h"

// Who meets, and who only knocks. The test plays the other processes.
namespace tessera {
namespace {

using test::connection_to;
using test::hear;
using test::hear_line;
using test::say;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kPatience{20000};

/// One process that looks for the others, on a thread: how many it is connected to, or its error.
class Meeting {
 public:
  Meeting(int process, int processes)
      : listener_(listening_socket(0)), port_(port_of_listener(listener_)) {
    const SocketRendezvous rendezvous{.process = process,
                                      .processes = processes,
                                      .address = "127.0.0.1",
                                      .port = port_,
                                      .listener = process == 0 ? listener_ : -1,
                                      .patience = kPatience};
    outcome_ = std::async(std::launch::async, [rendezvous] {
      int connected = 0;
      try {
        for (const Socket& socket : connect_mesh(rendezvous)) connected += socket ? 1 : 0;
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return concat(connected, " connected");
    });
  }
  int port() const { return port_; }  // of process 0
  /// Of the process under test, to the test as process 0.
  Socket accept_here() {
    const Socket listener(listener_);
    return Socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  std::string outcome() { return outcome_.get(); }

 private:
  const int listener_;
  const int port_;
  std::future<std::string> outcome_;
};

TEST(SocketMeshTest, ASilentConnectionToALaterPortStopsNobody) {
  Meeting meeting(1, 3);
  const Socket first = meeting.accept_here();
  std::istringstream greeting(hear_line(first));
  std::string name;
  int process = 0;
  int processes = 0;
  int port = 0;
  greeting >> name >> process >> processes >> port;
  ASSERT_EQ(process, 1);
  const Socket silent = connection_to(port);
  ASSERT_TRUE(silent);
  say(first, concat("ok - 0 127.0.0.1 ", port, " 127.0.0.1 1\n"));
  EXPECT_EQ(hear(silent, 1), "");  // until it is given up
  const Socket last = connection_to(port);
  say(last, "tessera-1 2\n");
  EXPECT_EQ(meeting.outcome(), "2 connected");
}

TEST(SocketMeshTest, AnEndlessLineIsNoGreeting) {
  Meeting meeting(0, 2);
  const Socket endless = connection_to(meeting.port());
  say(endless, "tessera-1 1 2 7" + std::string(5000, ' ') + "\n");
  const Socket other = connection_to(meeting.port());
  say(other, "tessera-1 1 2 8\n");
  EXPECT_EQ(meeting.outcome(), "1 connected");
  EXPECT_EQ(hear_line(other), "ok - 0 127.0.0.1 8");
}

TEST(SocketMeshTest, WhatSpeaksAnotherLanguageIsNoProcess) {
  Meeting meeting(0, 2);
  const Socket browser = connection_to(meeting.port());
  say(browser, "GET / HTTP/1.1\r\n\r\n");
  const Socket other = connection_to(meeting.port());
  say(other, "tessera-1 1 2 8\n");
  EXPECT_EQ(meeting.outcome(), "1 connected");
}

TEST(SocketMeshTest, NumbersOfProcessesAreChecked) {
  const auto answer_to = [](const std::string& greeting) {
    Meeting meeting(0, 3);
    const Socket first = connection_to(meeting.port());
    say(first, "tessera-1 1 3 7\n");
    const Socket second = connection_to(meeting.port());
    say(second, greeting);
    const std::string answer = hear_line(second);
    EXPECT_EQ(answer, "no " + meeting.outcome());
    EXPECT_EQ(answer, hear_line(first));
    return answer;
  };
  EXPECT_THAT(answer_to("tessera-1 3 3 8\n"), HasSubstr("process 3 is outside of 3 processes"));
  EXPECT_THAT(answer_to("tessera-1 -1 3 8\n"), HasSubstr("process -1 is outside of 3 processes"));
  EXPECT_THAT(answer_to("tessera-1 1 3 8\n"), HasSubstr("two processes with number 1"));
  EXPECT_THAT(answer_to("tessera-1 0 3 8\n"), HasSubstr("two processes with number 0"));
  EXPECT_THAT(answer_to("tessera-1 1 4 8\n"), HasSubstr("counts 4 processes but process 0 3"));
}

}  // namespace
}  // namespace tessera
