#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "world/deadline.h"
#include "world/socket.h"

// [Note: greeting] Processes that meet over sockets prove to each other that they are of one job
// before anything else that they say is believed. There are four messages, each of a fixed size.
// A process that has connected sends a random number and gets another; it says which it is, with an
// HMAC of that and both numbers under the job's key; the other one answers with an HMAC of its own.
// The one that listens tells nothing before the first proof holds, but that a wrong one is wrong.
namespace tessera {

/// The key that proves the greetings of a job.
using JobKey = std::array<unsigned char, 32>;

/// From a secret that the processes of the job were given. If that is empty, from their port, which
/// keeps other jobs out but nobody who means harm.
JobKey make_job_key(const std::string& token, int port);

/// A process's words of itself.
struct Claim {
  std::int32_t process = -1;
  std::int32_t processes = 0;
  std::int32_t port = 0;  ///< where it listens
  std::int32_t to = 0;    ///< the process that it means to speak to
};

enum class Greeted {
  kWelcome,   ///< both are of one job
  kOtherJob,  ///< what listens there is not of this job
  kNoAnswer,  ///< the connection was closed, or the time is over
};

/// On a connection that this process has made, which does not block. Returns early as kNoAnswer
/// where `give_up` is set and true.
Greeted greet(const Socket& socket, const JobKey& key, const Claim& claim, const Deadline& deadline,
              const std::function<bool()>& give_up = {});

/// A connection that somebody has made to this process, until it has proved what it is.
class Guest {
 public:
  enum class State {
    kGreeting,
    kProved,    ///< claim() holds
    kOtherJob,  ///< it knows how to greet, but not the key
    kStranger,  ///< anything else: it has left, or speaks another language
  };

  /// `socket` does not block.
  Guest(Socket socket, std::chrono::milliseconds patience)
      : socket_(std::move(socket)), deadline_(patience), address_(peer_address(socket_)) {}

  /// Reads what is there, and answers it. `process`: this one.
  State advance(const JobKey& key, int process);

  const Socket& socket() const { return socket_; }
  Socket take_socket() { return std::move(socket_); }
  const Deadline& deadline() const { return deadline_; }
  const std::string& address() const { return address_; }
  const Claim& claim() const { return claim_; }
  bool has_spoken() const { return received_ > 0 || challenged_; }

 private:
  static constexpr std::size_t kMostBytes = 48;
  /// False as long as some of the next `bytes` are missing; sets `gone_`.
  bool heard(std::size_t bytes);

  Socket socket_;
  Deadline deadline_;
  std::string address_;
  std::array<unsigned char, kMostBytes> buffer_{};
  std::size_t received_ = 0;
  bool gone_ = false;
  bool challenged_ = false;
  std::array<unsigned char, 64> nonces_{};  // theirs, ours
  Claim claim_{};
};

}  // namespace tessera
