#include "sim_communicator.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr std::pair<int, int> kAll{-1, -1};

std::string describe(const CollectiveCall& call) {
  const std::string text = describe(summary_of(call));
  if (!is_pairwise(call.kind)) return text;
  return concat(text, call.kind == CollectiveKind::kSend ? " to rank " : " from rank ", call.peer);
}

}  // namespace

void SimCommunicator::join(int rank, int size, int present) {
  require(size == size_ && present == present_, ErrorCode::kInvalidArgument, "rank ", rank,
          " makes communicator '", name_, "' of ", size, " ranks with ", present,
          " simulated, but it was made of ", size_, " with ", present_);
  require(!ranks_.contains(rank), ErrorCode::kInvalidArgument, "rank ", rank, " of communicator '",
          name_, "' is there already; each rank makes its end once");
  require(static_cast<int>(ranks_.size()) < present_, ErrorCode::kInvalidArgument, "rank ", rank,
          " of communicator '", name_, "' is one more than the ", present_, " that are simulated");
  ranks_.insert(rank);
}

void SimCommunicator::meet(int rank, const CollectiveCall& call, Stream& stream) {
  const std::optional<Members> members = members_of(rank, call);
  if (!members) return;
  auto* const sim = dynamic_cast<SimStream*>(&stream);
  require(sim != nullptr, ErrorCode::kInvalidArgument, "simulated ranks of communicator '", name_,
          "' meet on streams of a SimDevice only");
  Order& order = orders_[*members];
  const std::uint64_t number = order.issued[rank];
  const auto found = order.open.find(number);
  const Open now = found != order.open.end() ? found->second : open(*members, number, *sim);
  check_fits(*now.meeting, rank, call);
  sim->arrive(now.all_are_there);
  sim->wait(now.all_are_there);
  // Nothing throws any more: a call that did counts for nothing.
  now.meeting->sides.push_back({.rank = rank, .call = call});
  order.issued[rank] = number + 1;
  order.open.insert_or_assign(number, now);
  if (static_cast<int>(now.meeting->sides.size()) == now.meeting->size) order.open.erase(number);
}

/// Nothing if the call meets nobody.
std::optional<SimCommunicator::Members> SimCommunicator::members_of(
    int rank, const CollectiveCall& call) const {
  if (present_ == 1) return std::nullopt;
  if (!is_pairwise(call.kind) || size_ == 2) return kAll;
  const bool is_present = present_ == size_ || ranks_.contains(call.peer);
  require(is_present || static_cast<int>(ranks_.size()) == present_, ErrorCode::kInvalidArgument,
          "communicator '", name_, "': rank ", rank, " issues ", describe(call), " when ",
          ranks_.size(), " of ", present_,
          " simulated ranks are there, so it is unknown whether rank ", call.peer,
          " is one; make all ends before the first call between two");
  if (!is_present) return std::nullopt;
  return std::minmax({rank, call.peer});
}

SimCommunicator::Open SimCommunicator::open(const Members& members, std::uint64_t number,
                                            SimStream& stream) {
  const int size = members == kAll ? present_ : 2;
  auto meeting =
      std::make_shared<Meeting>(Meeting{.members = members, .number = number, .size = size});
  // The event lives in queues, and this communicator as long as an end of it or its family.
  auto overdue = [self = weak_from_this(), meeting] {
    const auto communicator = self.lock();
    if (communicator != nullptr) return communicator->overdue(*meeting);
    return Error(ErrorCode::kTimeout, "calls of other ranks, whose groups are gone");
  };
  return {.meeting = std::move(meeting),
          .all_are_there = stream.announce(size, std::move(overdue))};
}

void SimCommunicator::check_fits(const Meeting& meeting, int rank,
                                 const CollectiveCall& call) const {
  if (meeting.sides.empty() || fits(summary_of(meeting.sides.front().call), summary_of(call))) {
    return;
  }
  const Side& other = meeting.sides.front();
  fail(ErrorCode::kInvalidArgument, place_of(meeting), ": rank ", other.rank, " issued ",
       describe(other.call), " but rank ", rank, " issues ", describe(call),
       "; all ranks must issue the same operations in the same order");
}

std::string SimCommunicator::place_of(const Meeting& meeting) const {
  const auto [low, high] = meeting.members;
  return concat("call #", meeting.number,
                meeting.members == kAll ? "" : concat(" between ranks ", low, " and ", high),
                " of communicator '", name_, "'");
}

/// The ranks that are known and have not issued it.
std::vector<int> SimCommunicator::missing_in(const Meeting& meeting) const {
  std::vector<int> missing;
  const auto [low, high] = meeting.members;
  for (const int rank : ranks_) {
    if (meeting.members != kAll && rank != low && rank != high) continue;
    if (std::ranges::find(meeting.sides, rank, &Side::rank) == meeting.sides.end()) {
      missing.push_back(rank);
    }
  }
  return missing;
}

Error SimCommunicator::overdue(const Meeting& meeting) const {
  const Side& first = meeting.sides.front();
  std::string text = concat(place_of(meeting), ", where rank ", first.rank, " of ", size_,
                            " issued ", describe(first.call), ": ");
  if (const auto reason = aborted_->get()) return {ErrorCode::kAborted, text + *reason};
  const std::vector<int> missing = missing_in(meeting);
  if (!missing.empty())
    return {ErrorCode::kTimeout, concat(text, list_ranks(missing), " did not arrive")};
  return {ErrorCode::kTimeout, concat(text, "only ", ranks_.size(), " of the ", present_,
                                      " simulated ranks have made their end of it")};
}

std::shared_ptr<SimCommunicator> SimMeetings::Family::join(const std::string& name, int rank,
                                                           int size, int present) {
  auto communicator = communicators_[name];
  if (communicator == nullptr) {
    communicator = std::make_shared<SimCommunicator>(name, size, present, aborted_);
  }
  communicator->join(rank, size, present);
  communicators_[name] = communicator;
  return communicator;
}

SimMeetings::SimMeetings() : family_(std::make_shared<Family>()) {}

}  // namespace tessera
