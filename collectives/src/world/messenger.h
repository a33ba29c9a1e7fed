#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

struct SocketRendezvous;

/// Memory that processes of one machine share: of each process as many bytes.
struct SharedWindow {
  std::size_t bytes = 0;            ///< of each process; 0: there is no window
  std::vector<std::byte*> bases{};  ///< where this process sees that of each
};

/// Stands for the reason of an abort that gives none: an empty failure() would say that all is
/// well.
inline constexpr const char* kNoReason = "aborted, for no reason that was given";

/// Connects the processes of a run before they share memory, and those that cannot share it.
///
/// Every function but `exchange` and `share_window` may be called from any thread.
class Messenger {
 public:
  /// A message on its way. Its memory belongs to the messenger until it is done, or until a failure
  /// has been reported.
  class Transfer {
   public:
    virtual ~Transfer() = default;
    virtual bool done() = 0;
  };

  virtual ~Messenger() = default;
  virtual int process() const = 0;
  virtual int processes() const = 0;

  /// Every process gives a text and gets those of all, in order. Blocks.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;

  /// Collective, once. `neighbours`: the processes on this one's machine, itself among them, in
  /// order. The window has its parts in that order and lives as long as the messenger.
  virtual SharedWindow share_window(const std::vector<int>& neighbours) = 0;

  /// Messages from one process to another with one tag arrive in the order of both ends' calls. A
  /// receive that is longer than a cache line or two is asked for before its message is sent.
  virtual std::shared_ptr<Transfer> send(int process, std::uint32_t tag, const void* data,
                                         std::size_t bytes) = 0;
  virtual std::shared_ptr<Transfer> receive(int process, std::uint32_t tag, void* data,
                                            std::size_t bytes) = 0;

  /// Tells all other processes; the first reason that they hear wins. An empty one is kNoReason.
  /// Where memory is too short for that, they see the end of this one.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Why the run cannot go on as far as this process was told: another one aborted or was lost.
  /// Empty while all is well. Asked again and again by one thread.
  virtual std::string failure() = 0;
  /// The process whose loss failure() tells, or -1.
  virtual int lost() noexcept = 0;
  /// Called once, last: this process has finished well and needs nobody any more.
  virtual void leave() noexcept = 0;
};

/// Over TCP; see make_socket_world.
std::unique_ptr<Messenger> make_socket_messenger(const SocketRendezvous& rendezvous);

}  // namespace tessera
