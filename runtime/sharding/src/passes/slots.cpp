#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "passes/pass_tools.h"
#include "tessera/core/error.h"
#include "tessera/sharding/passes.h"

// [Note: slots]
//
// 1. What a cast leaves unchanged needs no buffer before it: a micro-step's gradient that becomes
//    the sum as it is is written there.
// 2. Contents for passes (whole parameters, gradients as layers write them) whose occupations on
//    the compute lane overlap need different slots. A chain of equal units gets a ring: one slot in
//    use and `depth` ahead, and one more where a layer is kept while its successor is already
//    there. A gradient that is sent occupies its slot until `depth` others have begun after its
//    last write.
// 3. Other contents have the slots of a ring in turn, one in use and `depth` ahead, each as large
//    as the largest of them. Messages between pipeline ranks have no more slots than messages, and
//    more than `depth` ahead where the order of passes makes more before they can be received.
namespace tessera {
namespace {

constexpr std::int64_t kEver = std::numeric_limits<std::int64_t>::max();

// Positions on the compute lane: before a pass, and during it.
constexpr std::int64_t before(std::int64_t pass) { return 2 * pass; }
constexpr std::int64_t during(std::int64_t pass) { return 2 * pass + 1; }

/// A content and the stretch of passes during which it has its slot.
struct Occupation {
  int buffer = 0;
  int first = -1, last = -1;  ///< passes: of a gradient, that write it
  bool is_sent = false;       ///< by a lane of its own
  std::int64_t numel = 0;
  std::int64_t begin = 0, end = 0;  ///< occupied, both inclusive: positions as above
  std::size_t slot = 0;
  int written = -1, read = -1;  ///< actions: the first that writes it, the last that reads it
};

/// Gives each the lowest slot that is free during its occupation, and returns the slots' sizes.
/// Largest first, so that a small unit can sit in a big slot but never the other way round.
std::vector<std::int64_t> colour(std::vector<Occupation>& occupations) {
  std::vector<Occupation*> by_size;
  for (Occupation& occupation : occupations) by_size.push_back(&occupation);
  std::ranges::stable_sort(by_size, std::greater(), &Occupation::numel);
  std::vector<std::int64_t> sizes;
  std::vector<std::map<std::int64_t, std::int64_t>> taken;  // by slot: begin -> end
  for (Occupation* const occupation : by_size) {
    const auto is_free = [&](const std::map<std::int64_t, std::int64_t>& others) {
      const auto next = others.lower_bound(occupation->begin);
      if (next != others.end() && next->first <= occupation->end) return false;
      return next == others.begin() || std::prev(next)->second < occupation->begin;
    };
    occupation->slot =
        static_cast<std::size_t>(std::ranges::find_if(taken, is_free) - taken.begin());
    if (occupation->slot == taken.size()) {
      sizes.push_back(occupation->numel);
      taken.emplace_back();
    }
    taken[occupation->slot][occupation->begin] = occupation->end;
  }
  return sizes;
}

/// Gives each the slot that has been free for longest when it is written, of `least` or of more
/// where so many are in use at once. Returns how many there are.
std::size_t take_longest_free(std::vector<Occupation>& contents, std::size_t least) {
  std::deque<std::size_t> free;
  for (std::size_t slot = 0; slot < least; ++slot) free.push_back(slot);
  std::size_t count = least;
  std::vector<const Occupation*> taken;
  for (Occupation& content : contents) {
    std::ranges::sort(taken, {}, &Occupation::read);
    std::erase_if(taken, [&](const Occupation* other) {
      if (other->read > content.written) return false;
      free.push_back(other->slot);
      return true;
    });
    if (free.empty()) free.push_back(count++);
    content.slot = free.front();
    free.pop_front();
    taken.push_back(&content);
  }
  return count;
}

/// The key that decides on a content's ring, and on the order of rings among buffers.
struct RingKey {
  BufferKind kind;
  Role role;
  DType format;
  Tier tier;
  std::string tensor;
  auto operator<=>(const RingKey&) const = default;
};

/// The name of slot `index` of a ring: "p0" of parameters, "q0" of quantised ones, "p-fp32.0" of
/// those that are kept in another format than the run's.
std::string slot_name(const RingKey& ring, std::size_t index, DType parameter_dtype) {
  const bool quantized = ring.role == Role::kParameter && ring.format == DType::kUInt8;
  const std::string other =
      ring.role == Role::kParameter && !quantized && ring.format != parameter_dtype
          ? concat('-', to_string(ring.format), '.')
          : "";
  const std::string_view host = ring.tier == Tier::kHost ? "@host" : "";
  switch (ring.kind) {
    case BufferKind::kShardSlot:
      if (ring.role == Role::kCode) return concat("cs", index);
      return concat(quantized ? "qs" : "s", other, index);
    case BufferKind::kStagingSlot:
      return concat(quantized ? "qd" : "d", other, index);
    case BufferKind::kUpdateSlot:
      return concat("update", other, index, host);
    case BufferKind::kSumSlot:
      return concat("sum", index);
    case BufferKind::kSendSlot:
    case BufferKind::kReceiveSlot:
      return concat(ring.kind == BufferKind::kSendSlot ? "send" : "receive",
                    ring.role == Role::kActivation           ? ".x"
                    : ring.role == Role::kActivationGradient ? ".d"
                                                             : ".tied",
                    index);
    case BufferKind::kStateSlot: {
      const std::string_view what =
          ring.role == Role::kOptimizer ? ring.tensor : to_string(ring.role);
      return concat('o', other, index, '.', what);
    }
    default:
      return concat(quantized                       ? 'q'
                    : ring.role == Role::kDecoded   ? 'w'
                    : ring.role == Role::kCode      ? 'c'
                    : ring.role == Role::kParameter ? 'p'
                                                    : 'g',
                    other, index);
  }
}

class Slots {
 public:
  explicit Slots(Schedule& schedule) : schedule_(schedule), slot_of_(schedule.buffers.size(), -1) {}

  void run();

 private:
  void write_sums_directly();
  void find_occupations();
  void colour_ring(const RingKey& ring, std::vector<Occupation> contents);
  void take_turns(const RingKey& ring, std::vector<Occupation> contents);
  int add_slot(const RingKey& ring, std::size_t index, const ScheduleBuffer& like,
               std::int64_t numel);
  void replace_contents();
  void sort_buffers();

  Schedule& schedule_;
  std::vector<int> slot_of_;                          ///< by content
  std::map<RingKey, std::vector<Occupation>> rings_;  ///< contents in order of first write
};

void Slots::write_sums_directly() {
  std::map<int, int> sums;  // by content
  std::vector<Action> actions;
  for (Action& action : schedule_.actions) {
    const bool copies = action.operation == &operations::kCast && !action.writes.front().adds;
    if (copies) {
      const Operand &from = action.reads.front(), &to = action.writes.front();
      if (is_written_gradient(schedule_.buffer(from)) &&
          schedule_.is_of_kind(to, BufferKind::kGradient) &&
          schedule_.buffer(from).format == schedule_.buffer(to).format &&
          schedule_.buffer(from).numel == schedule_.buffer(to).numel) {
        sums[from.buffer] = to.buffer;
        continue;
      }
    }
    actions.push_back(std::move(action));
  }
  schedule_.actions = std::move(actions);
  if (sums.empty()) return;
  for (Action& action : schedule_.actions) {
    for (Operand& operand : action.writes) {
      const auto sum = sums.find(operand.buffer);
      if (sum == sums.end()) continue;
      operand.buffer = sum->second;
      operand.flats = {};
    }
  }
}

void Slots::find_occupations() {
  struct Place {
    std::vector<Occupation>* ring = nullptr;
    std::size_t index = 0;
  };
  std::vector<Place> places(schedule_.buffers.size());
  int passes = 0;  // so far
  for (int index = 0; index < static_cast<int>(schedule_.actions.size()); ++index) {
    const Action& action = schedule_.actions[static_cast<std::size_t>(index)];
    const bool is_pass = action.operation->is_pass;
    const int now = is_pass ? passes++ : passes;
    for (const Operand& operand : action.writes) {
      const ScheduleBuffer& buffer = schedule_.buffer(operand);
      if (!buffer.is_slot()) continue;
      Place& place = places[static_cast<std::size_t>(operand.buffer)];
      if (place.ring == nullptr) {
        place.ring = &rings_[{buffer.kind, buffer.role, buffer.format, buffer.tier, buffer.tensor}];
        place.index = place.ring->size();
        place.ring->push_back({.buffer = operand.buffer,
                               .first = now,
                               .last = now,
                               .numel = buffer.numel,
                               .written = index});
      }
      Occupation& occupation = (*place.ring)[place.index];
      if (is_pass) occupation.last = now;
      if (action.operation == &operations::kReshard) occupation.last = now - 1;
    }
    for (const Operand& operand : action.reads) {
      const Place& place = places[static_cast<std::size_t>(operand.buffer)];
      if (place.ring == nullptr) continue;
      Occupation& occupation = (*place.ring)[place.index];
      occupation.read = index;
      if (action.lane == Lane::kReduce) occupation.is_sent = true;
    }
  }
}

int Slots::add_slot(const RingKey& ring, std::size_t index, const ScheduleBuffer& like,
                    std::int64_t numel) {
  ScheduleBuffer slot = like;
  slot.name = slot_name(ring, index, schedule_.parameter_dtype);
  slot.numel = numel;
  slot.micro_step = -1;
  return add_buffer(schedule_, std::move(slot));
}

void Slots::colour_ring(const RingKey& ring, std::vector<Occupation> contents) {
  const auto depth = static_cast<std::size_t>(schedule_.policy.prefetch_backward);
  for (Occupation& content : contents) {
    content.begin = before(content.first);
    content.end = during(content.last);
    if (ring.role != Role::kGradient || !content.is_sent || depth == 0) continue;
    const auto later = std::ranges::upper_bound(contents, content.last, {}, &Occupation::first);
    const auto remaining = static_cast<std::size_t>(contents.end() - later);
    content.end =
        remaining > depth ? before((later + static_cast<std::ptrdiff_t>(depth))->first) - 1 : kEver;
  }
  const std::vector<std::int64_t> sizes = colour(contents);
  const ScheduleBuffer like = schedule_.buffers[static_cast<std::size_t>(contents.front().buffer)];
  std::vector<int> slots;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    slots.push_back(add_slot(ring, i, like, sizes[i]));
  }
  for (const Occupation& content : contents) {
    slot_of_[static_cast<std::size_t>(content.buffer)] = slots[content.slot];
  }
}

void Slots::take_turns(const RingKey& ring, std::vector<Occupation> contents) {
  const bool of_disk = ring.kind == BufferKind::kStagingSlot ||
                       ring.kind == BufferKind::kStateSlot ||
                       (ring.kind == BufferKind::kUpdateSlot && ring.tier == Tier::kHost);
  const StepPolicy& policy = schedule_.policy;
  const bool is_message =
      ring.kind == BufferKind::kSendSlot || ring.kind == BufferKind::kReceiveSlot;
  // Codes are made and gathered on one lane.
  const int depth = ring.role == Role::kCode ? 0
                    : is_message             ? schedule_.pipeline.prefetch
                    : of_disk                ? policy.prefetch_disk
                                             : policy.prefetch_host;
  auto count = static_cast<std::size_t>(depth) + 1;
  if (is_message) {
    count = take_longest_free(contents, std::min(contents.size(), count));
  } else {
    for (std::size_t i = 0; i < contents.size(); ++i) contents[i].slot = i % count;
  }
  const auto largest = std::ranges::max_element(contents, {}, &Occupation::numel)->numel;
  const ScheduleBuffer like = schedule_.buffers[static_cast<std::size_t>(contents.front().buffer)];
  std::vector<int> slots;
  for (std::size_t i = 0; i < count; ++i) {
    slots.push_back(add_slot(ring, i, like, largest));
  }
  for (const Occupation& content : contents) {
    slot_of_[static_cast<std::size_t>(content.buffer)] = slots[content.slot];
  }
}

void Slots::replace_contents() {
  for (Action& action : schedule_.actions) {
    for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
      for (Operand& operand : *operands) {
        const int slot = slot_of_[static_cast<std::size_t>(operand.buffer)];
        if (slot < 0) continue;
        const FlatSet flats = operand.unit < 0 ? FlatSet() : schedule_.flats(operand);
        operand.buffer = slot;
        if (operand.unit >= 0) schedule_.set_flats(operand, flats);
      }
    }
  }
}

/// State, what else units have, slots, scalars, activations: each in the order of units and rings.
/// Buffers that no action names go, but for slots of rings whose turn does not come.
void Slots::sort_buffers() {
  std::vector<bool> is_named(schedule_.buffers.size());
  for (const Action& action : schedule_.actions) {
    for (const std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
      for (const Operand& operand : *operands) {
        is_named[static_cast<std::size_t>(operand.buffer)] = true;
      }
    }
  }
  const auto place = [&](int index) {
    const ScheduleBuffer& b = schedule_.buffers[static_cast<std::size_t>(index)];
    const auto of_kind = [](BufferKind kind) { return static_cast<int>(kind); };
    if (b.persistent) return std::tuple(0, 0, 0);
    if (b.kind == BufferKind::kCopy) return std::tuple(1, 0, 0);
    if (b.kind == BufferKind::kGradient) return std::tuple(2, 0, 0);
    if (b.is_activation()) return std::tuple(6, 0, 0);
    if (b.kind == BufferKind::kBatch) return std::tuple(7, 0, 0);
    if (!b.is_slot()) return std::tuple(b.role == Role::kScalars ? 5 : 3, of_kind(b.kind), 0);
    return std::tuple(4, 0, 0);
  };
  std::vector<int> sorted;
  for (int b = 0; b < static_cast<int>(schedule_.buffers.size()); ++b) {
    const ScheduleBuffer& buffer = schedule_.buffers[static_cast<std::size_t>(b)];
    const bool is_slot_of_ring = b >= static_cast<int>(slot_of_.size());
    const bool stays =
        buffer.persistent || is_slot_of_ring || is_named[static_cast<std::size_t>(b)];
    if (stays) sorted.push_back(b);
  }
  std::ranges::stable_sort(sorted, {}, place);
  std::vector<ScheduleBuffer> buffers;
  std::vector<int> moved(schedule_.buffers.size(), -1);
  for (const int b : sorted) {
    moved[static_cast<std::size_t>(b)] = static_cast<int>(buffers.size());
    buffers.push_back(std::move(schedule_.buffers[static_cast<std::size_t>(b)]));
  }
  schedule_.buffers = std::move(buffers);
  for (Action& action : schedule_.actions) {
    for (std::vector<Operand>* const operands : {&action.reads, &action.writes}) {
      for (Operand& operand : *operands) {
        operand.buffer = moved[static_cast<std::size_t>(operand.buffer)];
      }
    }
  }
}

void Slots::run() {
  write_sums_directly();
  find_occupations();
  for (auto& [ring, contents] : rings_) {
    if (ring.kind == BufferKind::kWholeSlot) {
      colour_ring(ring, std::move(contents));
    } else {
      take_turns(ring, std::move(contents));
    }
  }
  replace_contents();
  sort_buffers();
}

}  // namespace

Schedule slots(Schedule schedule) {
  Slots(schedule).run();
  return schedule;
}

}  // namespace tessera
