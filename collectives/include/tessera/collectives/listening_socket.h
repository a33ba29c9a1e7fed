#pragma once

namespace tessera {

/// A TCP socket that listens on every address of this machine, of IPv6 and of IPv4, and is not
/// inherited; the caller closes it. `port` 0 picks a free one. Returns -1 with errno set if it
/// cannot be had.
int listening_socket(int port);

/// The port at which a socket listens.
int port_of_listener(int socket);

}  // namespace tessera
