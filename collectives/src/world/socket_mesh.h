#pragma once

#include <vector>

#include "tessera/collectives/world.h"
#include "world/socket.h"

namespace tessera {

/// One TCP connection to every other process, by process; the own place is empty. Process 0 waits
/// at the address for the others, learns where each of them listens, and tells them all; then every
/// pair connects. Each connection begins with a greeting, see [Note: greeting]. A process that ends
/// meanwhile ends the meeting. Throws Error{kUnavailable} that names the address or the pair, and
/// what is wrong.
std::vector<Socket> connect_mesh(const SocketRendezvous& rendezvous);

}  // namespace tessera
