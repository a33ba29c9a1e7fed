#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "world/deadline.h"
#include "world/greeting.h"
#include "world/socket.h"

namespace tessera {

/// Where processes of this job arrive. Greets many at once, so nobody who is slow or silent holds
/// up others; who is not of this job is counted and sent away.
class Reception {
 public:
  /// A process that has proved itself.
  struct Arrival {
    Claim claim{};
    std::string address{};
    Socket socket{};
  };

  /// `process`: this one.
  Reception(Socket listener, const JobKey& key, int process);

  /// The next one. Nothing if the time is over, or if one of `mesh` has been closed, which is a
  /// process that has ended.
  std::optional<Arrival> next(const Deadline& deadline, const std::vector<Socket>& mesh);

  int port() const;
  /// Strangers that came: "; 2 connections from 10.0.0.7 had another job's token"; empty if nobody.
  std::string strangers() const;

 private:
  struct Strangers {
    int other_job = 0;
    int silent = 0;
  };

  void accept_some();
  void count(const Guest& guest, Guest::State state);
  std::optional<Arrival> advance_guests();

  const Socket listener_;
  const JobKey key_;
  const int process_;
  const std::size_t most_guests_;
  std::list<Guest> guests_;                     // the oldest first
  std::map<std::string, Strangers> strangers_;  // by address
};

/// The first process whose connection has been closed by the other end; -1 if there is none.
int ended_process(const std::vector<Socket>& mesh);

}  // namespace tessera
