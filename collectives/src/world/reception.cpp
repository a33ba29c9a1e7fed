#include "world/reception.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "tessera/collectives/listening_socket.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

/// A process greets as soon as it is connected. What comes to the port by accident and says
/// nothing, as a scanner does, is open no longer than this.
constexpr milliseconds kGreetingPatience{5000};
/// So many connections are open at once that have not greeted. When there are more, the oldest one
/// goes, once it has had the time that a process of this job needs.
constexpr std::size_t kMostGuests = 64;
constexpr milliseconds kEnough{500};
/// Of so many addresses it is known who came from there.
constexpr std::size_t kMostAddresses = 4;

pollfd watched(const Socket& socket, int events) {
  return {.fd = socket.fd(), .events = static_cast<short>(events), .revents = 0};
}

std::string connections(int count) {
  return concat(count, count == 1 ? " connection" : " connections");
}

}  // namespace

Reception::Reception(Socket listener, const JobKey& key, int process)
    : listener_(std::move(listener)), key_(key), process_(process) {
  fcntl(listener_.fd(), F_SETFL, fcntl(listener_.fd(), F_GETFL) | O_NONBLOCK);
}

int Reception::port() const { return port_of_listener(listener_.fd()); }

std::optional<Reception::Arrival> Reception::next(const Deadline& deadline,
                                                  const std::vector<Socket>& mesh) {
  constexpr int kLook = 100;  // ms
  while (!deadline.over()) {
    if (std::optional<Arrival> arrival = advance_guests()) return arrival;
    if (ended_process(mesh) >= 0) return std::nullopt;
    accept_some();
    std::vector<pollfd> polled;
    for (const Guest& guest : guests_) polled.push_back(watched(guest.socket(), POLLIN));
    for (const Socket& socket : mesh) {
      if (socket) polled.push_back(watched(socket, POLLRDHUP));
    }
    if (guests_.size() < kMostGuests) polled.push_back(watched(listener_, POLLIN));
    poll(polled.data(), polled.size(), std::min(deadline.milliseconds_left(), kLook));
  }
  return std::nullopt;
}

void Reception::accept_some() {
  const auto has_had_enough = [](const Guest& guest) {
    return milliseconds(guest.deadline().milliseconds_left()) + kEnough < kGreetingPatience;
  };
  if (guests_.size() >= kMostGuests && has_had_enough(guests_.front())) {
    count(guests_.front(), Guest::State::kStranger);
    guests_.pop_front();
  }
  while (guests_.size() < kMostGuests) {
    Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    set_up_connection(socket);
    guests_.emplace_back(std::move(socket), kGreetingPatience);
  }
}

std::optional<Reception::Arrival> Reception::advance_guests() {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    Guest::State state = guest->advance(key_, process_);
    if (state == Guest::State::kProved) {
      Arrival arrival{
          .claim = guest->claim(), .address = guest->address(), .socket = guest->take_socket()};
      guests_.erase(guest);
      return arrival;
    }
    if (state == Guest::State::kGreeting && guest->deadline().over()) {
      state = Guest::State::kStranger;
    }
    if (state != Guest::State::kGreeting) count(*guest, state);
    guest = state == Guest::State::kGreeting ? std::next(guest) : guests_.erase(guest);
  }
  return std::nullopt;
}

void Reception::count(const Guest& guest, Guest::State state) {
  const bool known = strangers_.contains(guest.address()) || strangers_.size() < kMostAddresses;
  Strangers& those = strangers_[known ? guest.address() : "other addresses"];
  ++(state == Guest::State::kOtherJob ? those.other_job : those.silent);
}

std::string Reception::strangers() const {
  std::string text;
  for (const auto& [address, those] : strangers_) {
    if (those.other_job > 0) {
      text +=
          concat("; ", connections(those.other_job), " from ", address, " had another job's token");
    }
    if (those.silent > 0) {
      text += concat("; ", connections(those.silent), " from ", address,
                     " did not greet as this version of tessera does");
    }
  }
  return text;
}

int ended_process(const std::vector<Socket>& mesh) {
  std::vector<pollfd> polled;
  for (const Socket& socket : mesh) polled.push_back(watched(socket, POLLRDHUP));  // -1 is skipped
  if (poll(polled.data(), polled.size(), 0) <= 0) return -1;
  const auto closed = std::ranges::find_if(polled, [](const pollfd& p) { return p.revents != 0; });
  return static_cast<int>(closed - polled.begin());
}

}  // namespace tessera
