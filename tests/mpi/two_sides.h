#pragma once

#include <array>
#include <functional>
#include <memory>
#include <thread>

#include "tessera/collectives/listening_socket.h"
#include "tessera/collectives/world.h"

namespace tessera::test {

template <typename T>
using Two = std::array<std::unique_ptr<T>, 2>;

/// Two sides of a connection that have met in this process, each made on a thread of its own.
template <typename T>
Two<T> meet(const std::function<std::unique_ptr<T>(const SocketRendezvous&)>& make) {
  const int listener = listen_at(kLoopback, 0).socket;
  const int port = port_of_listener(listener);
  Two<T> both;
  std::thread first([&] {
    both[0] = make(
        {.process = 0, .processes = 2, .address = "127.0.0.1", .port = port, .listener = listener});
  });
  both[1] = make({.process = 1, .processes = 2, .address = "127.0.0.1", .port = port});
  first.join();
  return both;
}

}  // namespace tessera::test
