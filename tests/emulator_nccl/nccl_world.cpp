#include "nccl_world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <type_traits>
#include <utility>

#include "tessera/core/dtype.h"

namespace tessera::emulator {
namespace {

template <typename T>
T sum_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {  // they wrap around
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
bfloat16 sum_of(bfloat16 a, bfloat16 b) {
  return bfloat16(static_cast<float>(a) + static_cast<float>(b));
}
float16 sum_of(float16 a, float16 b) {
  return float16(static_cast<float>(a) + static_cast<float>(b));
}

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
      sum = k == 1 ? term : sum_of(sum, term);
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
    case ncclBfloat16:
      return sum_in_ring_order<bfloat16>(inputs, begin, count, owner, output);
    case ncclFloat16:
      return sum_in_ring_order<float16>(inputs, begin, count, owner, output);
  }
}

/// What a rank tells the others of a collective, before its input.
struct Header {
  NcclKind kind;
  ncclDataType_t type;
  std::int32_t root;
  std::uint64_t count;
};

Header header_of(const NcclCollective& call) {
  Header header;
  std::memset(&header, 0, sizeof header);  // padding is compared, too
  header.kind = call.kind;
  header.type = call.type;
  header.root = call.root;
  header.count = call.count;
  return header;
}

/// Between two looks whether a message is there. Ranks that wait long look less often: they share
/// the cores with those that they wait for.
class Pauses {
 public:
  void pause() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(next_ * 2, kLongest);
  }

 private:
  static constexpr std::chrono::microseconds kLongest{640};
  std::chrono::microseconds next_{20};
};

std::string numbered(const char* name, std::uint64_t number, int rank) {
  return std::string(name) + std::to_string(number) + "." + std::to_string(rank);
}

}  // namespace

std::size_t nccl_type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
    case ncclFloat16:
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

std::size_t NcclCollective::input_bytes(int size) const {
  const std::size_t bytes = count * nccl_type_bytes(type);
  return kind == NcclKind::kReduceScatter ? bytes * static_cast<std::size_t>(size) : bytes;
}

std::size_t NcclCollective::output_bytes(int size) const {
  const std::size_t bytes = count * nccl_type_bytes(type);
  return kind == NcclKind::kAllGather ? bytes * static_cast<std::size_t>(size) : bytes;
}

// ---- Messages -----------------------------------------------------------------------------------

void NcclWorld::put(const std::string& name, const Bytes& bytes) const {
  const std::filesystem::path part = folder_ / (name + "." + std::to_string(rank_) + ".part");
  std::ofstream file(part, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code ignored;  // the folder is gone: so are the readers
  std::filesystem::rename(part, folder_ / name, ignored);
}

std::optional<NcclWorld::Bytes> NcclWorld::find(const std::string& name) const {
  if (!std::filesystem::exists(folder_ / name)) return std::nullopt;  // costs less than to open it
  std::ifstream file(folder_ / name, std::ios::binary | std::ios::ate);
  if (!file) return std::nullopt;
  Bytes bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

void NcclWorld::remove(const std::string& name) const {
  std::error_code ignored;
  std::filesystem::remove(folder_ / name, ignored);
}

std::optional<NcclWorld::Bytes> NcclWorld::await(const std::string& name) const {
  for (Pauses wait; !aborted(); wait.pause()) {
    if (auto bytes = find(name)) return bytes;
  }
  return std::nullopt;
}

// ---- Coming and going ---------------------------------------------------------------------------

NcclWorld::NcclWorld(std::filesystem::path folder, int rank, int size)
    : folder_(std::move(folder)), rank_(rank), size_(size) {
  std::filesystem::create_directories(folder_);
  put(numbered("joined", 0, rank), {});
}

NcclWorld::~NcclWorld() {
  put(numbered("gone", 0, rank_), {});
  for (int r = 0; r < size_; ++r) {
    if (!std::filesystem::exists(folder_ / numbered("gone", 0, r))) return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool NcclWorld::all_joined() const {
  for (int r = 0; r < size_; ++r) {
    if (!std::filesystem::exists(folder_ / numbered("joined", 0, r))) return false;
  }
  return true;
}

bool NcclWorld::connect(const std::string& name, const std::set<int>& ranks) {
  const auto call = [&](int from, int to) {
    return "connect." + name + "." + std::to_string(from) + "." + std::to_string(to);
  };
  std::set<int> missing;
  for (const int r : ranks) {
    if (!connected_.emplace(name, r).second) continue;
    missing.insert(r);
    put(call(rank_, r), {});
  }
  for (const int r : missing) {
    for (Pauses wait; !std::filesystem::exists(folder_ / call(r, rank_)); wait.pause()) {
      if (aborted()) return false;
    }
  }
  return !aborted();
}

void NcclWorld::stall() const {
  for (Pauses wait; !aborted();) wait.pause();
}

// ---- Operations ---------------------------------------------------------------------------------

NcclWorld::Bytes NcclWorld::result_of(const NcclCollective& own,
                                      const std::vector<Bytes>& inputs) const {
  const std::size_t bytes = own.count * nccl_type_bytes(own.type);
  const auto size = static_cast<std::size_t>(size_), me = static_cast<std::size_t>(rank_);
  Bytes result(own.output_bytes(size_));
  std::vector<const std::byte*> values;
  for (const Bytes& input : inputs) values.push_back(input.data() + sizeof(Header));
  switch (own.kind) {
    case NcclKind::kAllGather:
      for (std::size_t r = 0; r < size; ++r) std::memcpy(&result[r * bytes], values[r], bytes);
      break;
    case NcclKind::kReduceScatter:
      sum_typed(own.type, values, me * own.count, own.count, me, result.data());
      break;
    case NcclKind::kAllReduce:
      for (std::size_t r = 0; r < size; ++r) {
        const std::size_t begin = own.count * r / size, end = own.count * (r + 1) / size;
        sum_typed(own.type, values, begin, end - begin, r,
                  result.data() + begin * nccl_type_bytes(own.type));
      }
      break;
    case NcclKind::kBroadcast:
      std::memcpy(result.data(), values[static_cast<std::size_t>(own.root)], bytes);
      break;
  }
  return result;
}

/// Every rank sends its whole input, and takes its message of the round before back: whoever has
/// come to this round has read it.
void NcclWorld::run(const NcclCollective& own) {
  const std::uint64_t round = rounds_++;
  const Header header = header_of(own);
  Bytes message(sizeof header + own.input_bytes(size_));
  std::memcpy(message.data(), &header, sizeof header);
  std::memcpy(message.data() + sizeof header, own.input, message.size() - sizeof header);
  put(numbered("round", round, rank_), message);
  std::vector<Bytes> inputs;
  for (int r = 0; r < size_; ++r) {
    auto input = await(numbered("round", round, r));
    if (input && std::memcmp(input->data(), &header, sizeof header) != 0) stall();
    if (aborted()) {
      std::memset(own.output, 0xff, own.output_bytes(size_));
      return;
    }
    inputs.push_back(std::move(*input));
  }
  const Bytes result = result_of(own, inputs);
  std::memcpy(own.output, result.data(), result.size());
  if (round > 0) remove(numbered("round", round - 1, rank_));
}

/// A message is taken by removing it.
void NcclWorld::run(const std::vector<NcclTransfer>& transfers) {
  std::vector<std::string> names;
  for (const NcclTransfer& t : transfers) {
    const int from = t.sends ? rank_ : t.peer, to = t.sends ? t.peer : rank_;
    const std::uint64_t number = t.sends ? sent_[t.peer]++ : received_[t.peer]++;
    names.push_back("from" + std::to_string(from) + "." + numbered("to", number, to));
    if (t.sends) put(names.back(), Bytes(t.data, t.data + t.bytes));
  }
  std::vector<bool> done(transfers.size());
  for (Pauses wait; !aborted() && std::ranges::find(done, false) != done.end(); wait.pause()) {
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (done[i]) continue;
      if (transfers[i].sends) {
        done[i] = !std::filesystem::exists(folder_ / names[i]);
      } else if (const auto bytes = find(names[i]);
                 bytes && bytes->size() == transfers[i].bytes) {  // others wait for ever
        std::memcpy(transfers[i].data, bytes->data(), bytes->size());
        remove(names[i]);
        done[i] = true;
      }
    }
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (!transfers[i].sends && !done[i]) std::memset(transfers[i].data, 0xff, transfers[i].bytes);
  }
}

void NcclWorld::choose(std::uint64_t sequence, int color, int key) {
  const std::array<int, 2> choice{color, key};
  Bytes bytes(sizeof choice);
  std::memcpy(bytes.data(), choice.data(), sizeof choice);
  put(numbered("choice", sequence, rank_), bytes);
}

std::optional<NcclWorld::Part> NcclWorld::part_of(std::uint64_t sequence) const {
  int color = 0;
  std::map<int, std::vector<std::pair<int, int>>> parts;  // color -> (key, rank)
  for (int r = 0; r < size_; ++r) {
    const auto bytes = find(numbered("choice", sequence, r));
    if (!bytes) return std::nullopt;
    std::array<int, 2> choice{};
    std::memcpy(choice.data(), bytes->data(), sizeof choice);
    parts[choice[0]].emplace_back(choice[1], r);
    if (r == rank_) color = choice[0];
  }
  auto& members = parts[color];
  std::sort(members.begin(), members.end());
  const auto own = std::find_if(members.begin(), members.end(),
                                [&](const auto& member) { return member.second == rank_; });
  return Part{.folder = folder_ / numbered("part", sequence, color),
              .rank = static_cast<int>(own - members.begin()),
              .size = static_cast<int>(members.size())};
}

}  // namespace tessera::emulator
