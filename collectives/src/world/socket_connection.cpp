#include "world/socket_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "tessera/core/error.h"
#include "world/messenger.h"

namespace tessera {
namespace {

/// A message goes in parts of at most so many bytes: 10 ms of a connection of 1 Gbit/s.
///
/// [Note: abort between parts] An abort must not wait for the messages before it, nor for their
/// memory, which failing ranks free. It goes out after the part that is on its way. What is left of
/// that part is copied if its memory goes; what is left of the message is never sent, so the other
/// end never takes it for done.
constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20U;

/// Memory for what comes of a message that has no other place: as it comes, not as it is announced.
void make_room(Piece& piece, std::uint64_t end) {
  const bool dropped = piece.data == nullptr && piece.moved > 0;
  if (dropped || piece.data != piece.own.data()) return;
  piece.own.resize(end);
  piece.data = piece.own.data();
}

}  // namespace

// ---- Sending ------------------------------------------------------------------------------------

bool SocketConnection::write_some() {
  for (int parts = 0; parts < 16 && !outgoing.empty(); ++parts) {
    Piece& piece = *outgoing.front();
    Part& part = sent;
    if (!sending) {
      part = {.header = piece.header,
              .end = std::min(piece.header.bytes, piece.moved + kPartBytes)};
      if (piece.moved > 0) part.header.kind = FrameKind::kMore;
      sending = true;
    }
    const std::uint64_t header_left = sizeof(FrameHeader) - part.header_bytes;
    std::array<iovec, 2> buffers{
        iovec{reinterpret_cast<std::byte*>(&part.header) + part.header_bytes, header_left},
        iovec{piece.data + piece.moved, part.end - piece.moved}};
    msghdr message{};
    message.msg_iov = buffers.data();
    message.msg_iovlen = buffers.size();
    const ssize_t n = sendmsg(socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    const std::uint64_t of_header = std::min(static_cast<std::uint64_t>(n), header_left);
    part.header_bytes += of_header;
    piece.moved += static_cast<std::uint64_t>(n) - of_header;
    if (part.header_bytes < sizeof(FrameHeader) || piece.moved < part.end) return true;
    sending = false;
    if (piece.moved < piece.header.bytes) continue;
    piece.done.store(true, std::memory_order_release);
    outgoing.pop_front();
  }
  return true;
}

bool SocketConnection::give_up(const PiecePtr& piece) {
  const auto place = std::find(outgoing.begin(), outgoing.end(), piece);
  if (place == outgoing.end()) return false;
  if (place != outgoing.begin() || !sending) {
    outgoing.erase(place);
    return true;
  }
  piece->own.assign(piece->data + piece->moved, piece->data + sent.end);  // it ends with this part
  piece->data = piece->own.data();
  piece->moved = 0;
  piece->header.bytes = sent.end = piece->own.size();
  return true;
}

void SocketConnection::break_off() {
  shutdown(socket.fd(), SHUT_RDWR);
  outgoing.clear();
  sending = false;
}

// ---- Receiving ----------------------------------------------------------------------------------

bool SocketConnection::read_some(int process, std::string& failure) {
  std::array<std::byte, 65536> dropped;
  for (int reads = 0; reads < 16; ++reads) {
    std::byte* to = reinterpret_cast<std::byte*>(&received.header) + received.header_bytes;
    std::size_t bytes = sizeof(FrameHeader) - received.header_bytes;
    if (incoming != nullptr) {
      Piece& piece = *incoming;
      bytes = received.end - piece.moved;
      to = piece.data == nullptr ? dropped.data() : piece.data + piece.moved;
      if (piece.data == nullptr) bytes = std::min(bytes, dropped.size());
    }
    const ssize_t n = recv(socket.fd(), to, bytes, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
      errno = 0;
      return false;
    }
    if (incoming == nullptr) {
      received.header_bytes += static_cast<std::uint64_t>(n);
      if (received.header_bytes == sizeof(FrameHeader) && !begin_part(process, failure)) {
        errno = EPROTO;
        return false;
      }
    } else {
      incoming->moved += static_cast<std::uint64_t>(n);
    }
    if (incoming != nullptr && incoming->moved == received.end) {
      end_part(failure);
    }
  }
  return true;
}

/// A header is there: finds a place for what follows it.
bool SocketConnection::begin_part(int process, std::string& failure) {
  const FrameHeader header = received.header;
  received.header_bytes = 0;
  if (header.kind < FrameKind::kData || header.kind > FrameKind::kMore) return false;
  if (header.kind == FrameKind::kMore) {
    if (partial == nullptr) return false;
    incoming = std::exchange(partial, nullptr);
    received.end = std::min(incoming->header.bytes, incoming->moved + kPartBytes);
    make_room(*incoming, received.end);
    return true;
  }
  received.end = std::min(header.bytes, kPartBytes);
  const auto queue = wanted.find(header.tag);
  if (header.kind != FrameKind::kData || queue == wanted.end()) {
    begin_unasked();
    return true;
  }
  incoming = queue->second.front();
  queue->second.pop_front();
  if (queue->second.empty()) wanted.erase(queue);
  const std::uint64_t expected = incoming->header.bytes;
  if (expected == header.bytes) return true;
  if (failure.empty()) {
    failure = concat("process ", process, " sent ", header.bytes, " bytes where ", expected,
                     " were expected");
  }
  incoming = std::make_shared<Piece>();  // what does not fit is dropped
  incoming->header = header;
  return true;
}

/// The header of a message that nobody waits for is there.
void SocketConnection::begin_unasked() {
  incoming = std::make_shared<Piece>();
  incoming->header = received.header;
  make_room(*incoming, received.end);
  if (received.header.kind == FrameKind::kData) unasked[received.header.tag].push_back(incoming);
}

void SocketConnection::end_part(std::string& failure) {
  const PiecePtr piece = std::exchange(incoming, nullptr);
  if (piece->moved < piece->header.bytes) {
    partial = piece;
    return;
  }
  piece->done.store(true, std::memory_order_release);
  if (piece->header.kind == FrameKind::kLeave) left = true;
  if (piece->header.kind == FrameKind::kAbort && failure.empty()) {
    failure.assign(reinterpret_cast<const char*>(piece->own.data()), piece->own.size());
    if (failure.empty()) failure = kNoReason;
  }
}

}  // namespace tessera
