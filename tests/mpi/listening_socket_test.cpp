#include "tessera/collectives/listening_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "world/socket.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(ListeningSocketTest, ListensAtTheAddressAlone) {
  for (const char* address : {kLoopback, "localhost"}) {
    const Listening listening = listen_at(address, 0);
    const Socket socket(listening.socket);
    ASSERT_TRUE(socket);
    EXPECT_EQ(listening.everywhere, "");
    EXPECT_TRUE(is_loopback(own_address(socket))) << own_address(socket);
    EXPECT_GT(port_of_listener(socket.fd()), 0);
  }
}

TEST(ListeningSocketTest, SaysWhyItListensEverywhere) {
  const Listening elsewhere = listen_at("192.0.2.1", 0);  // is kept for documents
  const Socket socket(elsewhere.socket);
  ASSERT_TRUE(socket);
  EXPECT_THAT(elsewhere.everywhere, HasSubstr("no interface of this machine"));
  EXPECT_FALSE(is_loopback(own_address(socket)));
}

TEST(ListeningSocketTest, APortThatIsTakenIsAnError) {
  const Socket first(listen_at(kLoopback, 0).socket);
  const Listening second = listen_at(kLoopback, port_of_listener(first.fd()));
  EXPECT_EQ(second.socket, -1);
  EXPECT_EQ(second.error, EADDRINUSE);
}

}  // namespace
}  // namespace tessera
