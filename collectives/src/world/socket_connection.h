#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "world/socket_mesh.h"

namespace tessera {

enum class FrameKind : std::uint32_t { kData = 0x74657301, kAbort, kLeave, kMore };

/// The header of a part's bytes: the first one's (kData), which tells of the whole message, or a
/// further one's (kMore). All machines have one byte order.
struct FrameHeader {
  FrameKind kind = FrameKind::kData;
  std::uint32_t tag = 0;
  std::uint64_t bytes = 0;
};

/// A message of this side, as its thread and the input-output thread share it.
struct Piece {
  FrameHeader header{};
  std::byte* data = nullptr;  // the caller's, or in `own`; null: what comes is dropped
  std::vector<std::byte>
      own{};                // if it came unasked, as far as it is there, or outlives its caller
  std::uint64_t moved = 0;  // of the data
  std::atomic<bool> done{false};
};
using PiecePtr = std::shared_ptr<Piece>;

/// By tag; none is empty.
using PieceQueues = std::map<std::uint32_t, std::deque<PiecePtr>>;

/// The part of a message that is being moved.
struct Part {
  FrameHeader header{};
  std::uint64_t header_bytes = 0;  // moved of it
  std::uint64_t end = 0;           // in the message
};

/// A connection to one process and what waits on it. Guarded by the messenger's mutex.
struct SocketConnection {
  Socket socket{};
  bool left = false;    // the other process has finished well
  bool closed = false;  // nothing comes or goes any more
  std::deque<PiecePtr> outgoing{};
  bool sending = false;  // a part of the first of them
  Part sent{};
  PiecePtr incoming{};  // being read; null: a header is
  PiecePtr partial{};   // the message whose next part may follow
  Part received{};
  PieceQueues wanted{};
  PieceQueues unasked{};  // may be still arriving

  /// False if the connection is broken. Writes what the socket takes of the next few parts.
  bool write_some();
  /// False if the connection is broken; errno is 0 if the other end has closed it. Reads what is
  /// there of the next few parts. `failure`: why the run cannot go on, set if it is empty and the
  /// other end, `process`, says so or sends what was not expected.
  bool read_some(int process, std::string& failure);
  /// Nothing of `piece` is sent any more after the part that is on its way; true if it was to be.
  /// Its memory may go.
  bool give_up(const PiecePtr& piece);
  /// Nothing more is sent. What the other end has said before, such as why, is still to be read.
  void break_off();

 private:
  bool begin_part(int process, std::string& failure);
  void begin_unasked();
  void end_part(std::string& failure);
};

}  // namespace tessera
