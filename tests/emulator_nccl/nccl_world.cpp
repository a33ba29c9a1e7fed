#include "nccl_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/core/dtype.h"

namespace tessera::emulator {
namespace {

/// Element `i` of the sum over ranks as a ring makes it: begun by the neighbour of the rank that
/// holds the element in the end, and rounded to T after each addition. Neither is rank order.
template <typename T>
void sum_in_ring_order(const std::vector<const std::byte*>& inputs, std::size_t begin,
                       std::size_t count, std::size_t owner, std::byte* output) {
  const std::size_t size = inputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    T sum{};
    for (std::size_t k = 1; k <= size; ++k) {
      T term{};
      std::memcpy(&term, inputs[(owner + k) % size] + (begin + i) * sizeof(T), sizeof(T));
      sum = k == 1 ? term : static_cast<T>(sum + term);
    }
    std::memcpy(output + i * sizeof(T), &sum, sizeof(T));
  }
}

void sum_typed(ncclDataType_t type, const std::vector<const std::byte*>& inputs, std::size_t begin,
               std::size_t count, std::size_t owner, std::byte* output) {
  switch (type) {
    case ncclFloat32:
      return sum_in_ring_order<float>(inputs, begin, count, owner, output);
    case ncclFloat64:
      return sum_in_ring_order<double>(inputs, begin, count, owner, output);
    case ncclInt32:
      return sum_in_ring_order<std::int32_t>(inputs, begin, count, owner, output);
    case ncclInt64:
      return sum_in_ring_order<std::int64_t>(inputs, begin, count, owner, output);
    case ncclUint8:
      return sum_in_ring_order<std::uint8_t>(inputs, begin, count, owner, output);
    case ncclBfloat16: {
      const std::size_t size = inputs.size();
      for (std::size_t i = 0; i < count; ++i) {
        bfloat16 sum{};
        for (std::size_t k = 1; k <= size; ++k) {
          bfloat16 term{};
          std::memcpy(&term, inputs[(owner + k) % size] + (begin + i) * sizeof(bfloat16),
                      sizeof(bfloat16));
          sum = k == 1 ? term : bfloat16(static_cast<float>(sum) + static_cast<float>(term));
        }
        std::memcpy(output + i * sizeof(bfloat16), &sum, sizeof(bfloat16));
      }
    }
  }
}

}  // namespace

std::size_t nccl_type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

std::size_t NcclCollective::output_bytes(int size) const {
  const std::size_t bytes = count * nccl_type_bytes(type);
  return kind == NcclKind::kAllGather ? bytes * static_cast<std::size_t>(size) : bytes;
}

bool NcclWorld::join(bool first_time) {
  const std::lock_guard lock(mutex_);
  if (first_time) ++joined_;
  return joined_ >= size_;
}

bool NcclWorld::all_agree(const Round& round) const {
  if (static_cast<int>(round.calls.size()) < size_) return false;
  const NcclCollective& first = round.calls.begin()->second;
  return std::all_of(round.calls.begin(), round.calls.end(), [&](const auto& entry) {
    return !left(entry.first) && entry.second.matches(first);
  });
}

std::vector<std::byte> NcclWorld::result_of(int rank, const Round& round) const {
  const NcclCollective& own = round.calls.at(rank);
  const std::size_t bytes = own.count * nccl_type_bytes(own.type);
  const auto size = static_cast<std::size_t>(size_);
  std::vector<std::byte> result(own.output_bytes(size_));
  std::vector<const std::byte*> inputs;
  for (const auto& [peer, call] : round.calls) inputs.push_back(call.input);
  switch (own.kind) {
    case NcclKind::kAllGather:
      for (std::size_t r = 0; r < size; ++r) std::memcpy(&result[r * bytes], inputs[r], bytes);
      break;
    case NcclKind::kReduceScatter:
      sum_typed(own.type, inputs, static_cast<std::size_t>(rank) * own.count, own.count,
                static_cast<std::size_t>(rank), result.data());
      break;
    case NcclKind::kAllReduce:
      for (std::size_t r = 0; r < size; ++r) {
        const std::size_t begin = own.count * r / size, end = own.count * (r + 1) / size;
        sum_typed(own.type, inputs, begin, end - begin, r,
                  result.data() + begin * nccl_type_bytes(own.type));
      }
      break;
    case NcclKind::kBroadcast:
      std::memcpy(result.data(), inputs[static_cast<std::size_t>(own.root)], bytes);
      break;
  }
  return result;
}

void NcclWorld::run(int rank, std::uint64_t sequence, const NcclCollective& own) {
  std::unique_lock lock(mutex_);
  Round& round = rounds_[sequence];
  round.calls[rank] = own;
  changed_.notify_all();
  // Ranks that disagree wait for each other for ever, as with NCCL.
  changed_.wait(lock, [&] { return left(rank) || all_agree(round) || round.computed > 0; });
  if (!left(rank)) {
    const std::vector<std::byte> result = result_of(rank, round);
    ++round.computed;
    changed_.notify_all();
    // Outputs may lie in inputs, which others still read.
    changed_.wait(lock, [&] { return left(rank) || round.computed == size_; });
    if (!left(rank)) std::memcpy(own.output, result.data(), result.size());
  }
  if (left(rank)) std::memset(own.output, 0xff, own.output_bytes(size_));
  if (++round.left == size_) rounds_.erase(sequence);
}

bool NcclWorld::receive(int rank, const NcclTransfer& transfer) {
  std::deque<Message>& queue = messages_[{transfer.peer, rank}];
  if (queue.empty()) return false;
  const Message message = queue.front();
  if (message.bytes != transfer.bytes) return false;  // they wait for ever
  std::memcpy(transfer.data, message.data, message.bytes);
  *message.taken = true;
  queue.pop_front();
  return true;
}

void NcclWorld::run(int rank, std::vector<NcclTransfer> transfers) {
  std::unique_lock lock(mutex_);
  const auto taken = std::make_unique<bool[]>(transfers.size());
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const NcclTransfer& t = transfers[i];
    if (t.sends) messages_[{rank, t.peer}].push_back({t.data, t.bytes, &taken[i]});
  }
  changed_.notify_all();
  changed_.wait(lock, [&] {
    bool done = true;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (!transfers[i].sends && !taken[i] && receive(rank, transfers[i])) {
        taken[i] = true;
        changed_.notify_all();
      }
      done = done && taken[i];
    }
    return done || left(rank);
  });
  for (auto& [ends, queue] : messages_) {
    if (ends.first != rank) continue;
    std::erase_if(queue, [&](const Message& m) {
      return m.taken >= taken.get() && m.taken < taken.get() + transfers.size();
    });
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (!transfers[i].sends && !taken[i]) std::memset(transfers[i].data, 0xff, transfers[i].bytes);
  }
}

void NcclWorld::stall(int rank) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return left(rank); });
}

void NcclWorld::abort(int rank) {
  {
    const std::lock_guard lock(mutex_);
    left_[static_cast<std::size_t>(rank)] = true;
  }
  changed_.notify_all();
}

void NcclWorld::choose(int rank, std::uint64_t sequence, int color, int key) {
  const std::lock_guard lock(mutex_);
  splits_[sequence].choices[rank] = {color, key};
}

std::optional<NcclWorld::Part> NcclWorld::part_of(int rank, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  Split& split = splits_[sequence];
  if (static_cast<int>(split.choices.size()) < size_) return std::nullopt;
  const int color = split.choices.at(rank).first;
  std::vector<std::pair<int, int>> members;  // (key, rank)
  for (const auto& [other, choice] : split.choices) {
    if (choice.first == color) members.emplace_back(choice.second, other);
  }
  std::sort(members.begin(), members.end());
  std::shared_ptr<NcclWorld>& world = split.parts[color];
  if (!world) world = std::make_shared<NcclWorld>(static_cast<int>(members.size()));
  const auto own = std::find_if(members.begin(), members.end(),
                                [&](const auto& member) { return member.second == rank; });
  return Part{.world = world, .rank = static_cast<int>(own - members.begin())};
}

}  // namespace tessera::emulator
