#include "world/reception.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
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
/// At most so many connections are open at once that have not greeted, and no more than half of the
/// files that the process may open. When there are more, those go that have said nothing for so
/// long, since a process of this job speaks first and at once: 10,000 silent connections are
/// through in three seconds. Who has begun to greet may be slow.
constexpr std::size_t kMostGuests = 512;
constexpr milliseconds kSilence{150}, kSlow{1000};
/// The number of addresses of which it is known who came from there.
constexpr std::size_t kMostAddresses = 4;

pollfd watched(const Socket& socket, int events) {
  return {.fd = socket.fd(), .events = static_cast<short>(events), .revents = 0};
}

std::size_t most_guests() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostGuests / 8;
  return std::clamp<std::size_t>(limit.rlim_cur / 2, 1, kMostGuests);
}

std::string connections(int count) {
  return concat(count, count == 1 ? " connection" : " connections");
}

}  // namespace

Reception::Reception(Socket listener, const JobKey& key, int process)
    : listener_(std::move(listener)), key_(key), process_(process), most_guests_(most_guests()) {
  fcntl(listener_.fd(), F_SETFL, fcntl(listener_.fd(), F_GETFL) | O_NONBLOCK);
}

int Reception::port() const { return port_of_listener(listener_.fd()); }

std::optional<Reception::Arrival> Reception::next(const Deadline& deadline,
                                                  const std::vector<Socket>& mesh) {
  constexpr int kLook = 100, kCrowdedLook = 20;  // ms
  while (!deadline.over()) {
    if (std::optional<Arrival> arrival = advance_guests()) return arrival;
    if (ended_process(mesh) >= 0) return std::nullopt;
    accept_some();
    std::vector<pollfd> polled;
    for (const Guest& guest : guests_) polled.push_back(watched(guest.socket(), POLLIN));
    for (const Socket& socket : mesh) {
      if (socket) polled.push_back(watched(socket, POLLRDHUP));
    }
    if (guests_.size() < most_guests_) polled.push_back(watched(listener_, POLLIN));
    const int look = guests_.size() < most_guests_ ? kLook : kCrowdedLook;
    poll(polled.data(), polled.size(), std::min(deadline.milliseconds_left(), look));
  }
  return std::nullopt;
}

void Reception::accept_some() {
  const auto makes_room = [this](const Guest& guest) {
    const auto time = guest.has_spoken() ? kSlow : kSilence;
    const bool goes = milliseconds(guest.deadline().milliseconds_left()) + time < kGreetingPatience;
    if (goes) count(guest, Guest::State::kStranger);
    return goes;
  };
  if (guests_.size() >= most_guests_) guests_.remove_if(makes_room);
  while (guests_.size() < most_guests_) {
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
