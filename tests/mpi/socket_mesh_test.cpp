#include "world/socket_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <vector>

#include "mpi/raw_process.h"
#include "tessera/core/error.h"

// Who meets, and who only knocks. The test plays the other processes, and strangers.
namespace tessera::socket_mesh_test {
namespace {

using std::chrono::milliseconds;
using test::connection_to;
using test::greet_as;
using test::hear;
using test::hear_line;
using test::say;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience{60000};
/// Sooner than the five seconds that a stranger may be silent.
constexpr milliseconds kSoon{4800};

/// One process that looks for the others, on a thread: how many it is connected to, or its error.
class Meeting {
 public:
  Meeting(int process, int processes, const std::string& token = "",
          milliseconds patience = kPatience)
      : listener_(listen_at(kLoopback, 0).socket), port_(port_of_listener(listener_)) {
    const SocketRendezvous rendezvous{.process = process,
                                      .processes = processes,
                                      .address = "127.0.0.1",
                                      .port = port_,
                                      .listener = process == 0 ? listener_ : -1,
                                      .token = token,
                                      .patience = patience};
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
  auto elapsed() const { return Clock::now() - begin_; }

 private:
  const Clock::time_point begin_ = Clock::now();
  const int listener_;
  const int port_;
  std::future<std::string> outcome_;
};

Claim claim_of(int process, int processes, int port = 7, int to = 0) {
  return {.process = process, .processes = processes, .port = port, .to = to};
}

TEST(SocketMeshTest, ProcessesOfOneTokenMeet) {
  Meeting meeting(0, 2, "secret");
  const Socket other = connection_to(meeting.port());
  EXPECT_EQ(greet_as(claim_of(1, 2, 8), other, meeting.port(), "secret"), Greeted::kWelcome);
  EXPECT_EQ(meeting.outcome(), "1 connected");
  EXPECT_EQ(hear_line(other), "ok - 0 127.0.0.1 8");
}

TEST(SocketMeshTest, StrangersHoldNobodyUp) {
  Meeting meeting(0, 2);
  const Socket browser = connection_to(meeting.port());
  say(browser, "GET / HTTP/1.1\r\n\r\n" + std::string(100, 'x'));
  const Socket endless = connection_to(meeting.port());
  say(endless, std::string(50000, ' '));
  const Socket halfway = connection_to(meeting.port());
  say(halfway, "tessera2");
  const Socket old_version = connection_to(meeting.port());
  say(old_version, "tessera-1 1 2 7\n");
  std::vector<Socket> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connection_to(meeting.port()));
  const Socket other = connection_to(meeting.port());
  EXPECT_EQ(greet_as(claim_of(1, 2), other, meeting.port()), Greeted::kWelcome);
  EXPECT_EQ(meeting.outcome(), "1 connected");
  EXPECT_LT(meeting.elapsed(), kSoon);
  EXPECT_EQ(hear(browser, 1), "");
  EXPECT_EQ(hear(silent.front(), 1), "");
}

TEST(SocketMeshTest, MoreStrangersThanThereIsRoomForMakeRoom) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  if (files.rlim_cur < 3000) GTEST_SKIP() << "a process may open " << files.rlim_cur << " files";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  Meeting meeting(0, 2);
  std::vector<Socket> silent;
  for (int i = 0; i < 2000; ++i) silent.push_back(connection_to(meeting.port()));
  const Socket other = connection_to(meeting.port());
  EXPECT_EQ(greet_as(claim_of(1, 2), other, meeting.port()), Greeted::kWelcome);
  EXPECT_EQ(meeting.outcome(), "1 connected");
}

TEST(SocketMeshTest, AProcessOfAnotherJobIsSentAwayAndNamedIfOneIsMissing) {
  Meeting meeting(0, 3, "secret", milliseconds(10000));
  for (const char* token : {"", "Secret"}) {
    const Socket other = connection_to(meeting.port());
    EXPECT_EQ(greet_as(claim_of(1, 3), other, meeting.port(), token), Greeted::kOtherJob);
  }
  const Socket silent = connection_to(meeting.port());
  const Socket liar = connection_to(meeting.port());
  say(liar, "no 1 3 7\n" + std::string(40, 'x'));
  const Socket good = connection_to(meeting.port());
  EXPECT_EQ(greet_as(claim_of(2, 3), good, meeting.port(), "secret"), Greeted::kWelcome);
  const std::string outcome = meeting.outcome();
  EXPECT_THAT(outcome, AllOf(HasSubstr("these processes did not come: 1;"),
                             HasSubstr("2 connections from 127.0.0.1 had another job's token"),
                             HasSubstr("from 127.0.0.1 did not greet")));
  EXPECT_EQ(hear_line(good), "over " + outcome);
}

TEST(SocketMeshTest, AProcessThatComesToAnotherJobSaysSoAtOnce) {
  Meeting first(0, 2, "one");
  const SocketRendezvous lost{.process = 1,
                              .processes = 2,
                              .address = "127.0.0.1",
                              .port = first.port(),
                              .token = "two",
                              .patience = kPatience};
  try {
    connect_mesh(lost);
    ADD_FAILURE() << "it has joined";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("process 1"), HasSubstr("found another job at"),
                                    HasSubstr("TESSERA_JOB_TOKEN")));
  }
  const Socket other = connection_to(first.port());
  EXPECT_EQ(greet_as(claim_of(1, 2), other, first.port(), "one"), Greeted::kWelcome);
  EXPECT_EQ(first.outcome(), "1 connected");
  EXPECT_LT(first.elapsed(), kSoon);
}

TEST(SocketMeshTest, WhoDoesNotKnowTheKeyIsNotBelievedToBeProcess0) {
  Meeting meeting(1, 2, "secret");
  const auto [claim, socket] = test::welcome(meeting.accept_here(), meeting.port());
  EXPECT_EQ(claim.process, -1);  // of the test's own key
  EXPECT_THAT(meeting.outcome(), HasSubstr("found another job at 127.0.0.1"));
}

TEST(SocketMeshTest, AtALaterPortStrangersHoldNobodyUp) {
  Meeting meeting(1, 3);
  const auto [claim, first] = test::welcome(meeting.accept_here(), meeting.port());
  ASSERT_EQ(claim.process, 1);
  const Socket silent = connection_to(claim.port);
  ASSERT_TRUE(silent);
  say(first, concat("ok - 0 127.0.0.1 ", claim.port, " 127.0.0.1 1\n"));
  // Of this job, but nobody who is missing; who means another one is not answered.
  for (const int wrong : {0, 1, 3, -1}) {
    const Socket stray = connection_to(claim.port);
    EXPECT_EQ(greet_as(claim_of(wrong, 3, 7, 1), stray, meeting.port()), Greeted::kWelcome);
    EXPECT_EQ(hear(stray, 1), "");
  }
  const Socket astray = connection_to(claim.port);
  EXPECT_EQ(greet_as(claim_of(2, 3, 7, 0), astray, meeting.port()), Greeted::kNoAnswer);
  const Socket last = connection_to(claim.port);
  EXPECT_EQ(greet_as(claim_of(2, 3, 7, 1), last, meeting.port()), Greeted::kWelcome);
  EXPECT_EQ(meeting.outcome(), "2 connected");
  EXPECT_LT(meeting.elapsed(), kSoon);
}

TEST(SocketMeshTest, AProcessThatEndsWhileOthersComeEndsTheMeetingForAll) {
  Meeting meeting(0, 4);
  const Socket second = connection_to(meeting.port());
  EXPECT_EQ(greet_as(claim_of(2, 4), second, meeting.port()), Greeted::kWelcome);
  {
    const Socket first = connection_to(meeting.port());
    EXPECT_EQ(greet_as(claim_of(1, 4), first, meeting.port()), Greeted::kWelcome);
  }
  const std::string outcome = meeting.outcome();
  EXPECT_THAT(outcome, HasSubstr("process 1 ended before all processes had met"));
  EXPECT_LT(meeting.elapsed(), kSoon);
  EXPECT_EQ(hear_line(second), "over " + outcome);
}

TEST(SocketMeshTest, NumbersOfProcessesAreChecked) {
  const auto answer_to = [](const Claim& claim) {
    Meeting meeting(0, 3);
    const Socket first = connection_to(meeting.port());
    EXPECT_EQ(greet_as(claim_of(1, 3), first, meeting.port()), Greeted::kWelcome);
    const Socket second = connection_to(meeting.port());
    EXPECT_EQ(greet_as(claim, second, meeting.port()), Greeted::kWelcome);
    const std::string answer = hear_line(second);
    EXPECT_EQ(answer, "no " + meeting.outcome());
    EXPECT_EQ(answer, hear_line(first));
    return answer;
  };
  EXPECT_THAT(answer_to(claim_of(3, 3)), HasSubstr("process 3 is outside of 3 processes"));
  EXPECT_THAT(answer_to(claim_of(-1, 3)), HasSubstr("process -1 is outside of 3 processes"));
  EXPECT_THAT(answer_to(claim_of(1, 3)), HasSubstr("two processes with number 1"));
  EXPECT_THAT(answer_to(claim_of(0, 3)), HasSubstr("two processes with number 0"));
  EXPECT_THAT(answer_to(claim_of(1, 4)), HasSubstr("counts 4 processes but process 0 3"));
}

}  // namespace
}  // namespace tessera::socket_mesh_test
