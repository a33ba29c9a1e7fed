#include <algorithm>
#include <bit>

#include "execution/device_array.h"
#include "execution/executor_impl.h"

// The histories of delayed scaling between steps: how they begin, and their words for checkpoints.
namespace tessera {
namespace {

/// Visits the matrices with histories: the name, and the number of the first of their tensors.
template <typename Visit>
void for_each_history(const Schedule& schedule, const ModelLayout& layout, const Visit& visit) {
  const HistoryTable table(schedule);
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    std::int64_t next = table.first_tensor(static_cast<int>(l));
    if (next < 0) continue;
    for (const ParameterAddress& address : layout.layers[l].parameters) {
      const ParameterSpec& spec = layout.tensor_of(address).spec;
      if (!spec.fp8) continue;
      visit(spec.name, next);
      next += kFp8Tensors;
    }
  }
}

/// Where the words of one tensor lie among those of all.
struct HistoryPlace {
  std::int64_t scale_word, first, count;
};

HistoryPlace place_of(const HistoryTable& table, const Schedule& schedule, std::int64_t tensor) {
  const std::int64_t count = schedule.fp8_history - 1;
  return {tensor, table.tensors() + tensor * count, count};
}

}  // namespace

/// The schedule that trains with histories; null: none does.
const Schedule* Executor::Impl::schedule_with_histories() const {
  for (const auto& program : programs_) {
    if (!HistoryTable(program->schedule).empty()) return &program->schedule;
  }
  return nullptr;
}

/// Scales are 1 before the first step.
void Executor::Impl::begin_histories() {
  const Schedule* const schedule = schedule_with_histories();
  if (schedule == nullptr || device_.kind() == DeviceKind::kSim) return;
  std::vector<Fp8History> histories;
  const bool hybrid = options_.fp8.formats == Fp8Formats::kHybrid;
  const auto word = [](Fp8Format format) {
    return std::vector<std::uint32_t>{std::bit_cast<std::uint32_t>(largest_of(format))};
  };
  for_each_history(*schedule, layout_, [&](const std::string& name, std::int64_t) {
    histories.push_back({.name = name,
                         .words = {word(Fp8Format::kE4M3), word(Fp8Format::kE4M3),
                                   word(hybrid ? Fp8Format::kE5M2 : Fp8Format::kE4M3)}});
  });
  const HistoryTable table(*schedule);
  for (const auto& [kind, numel] : {std::pair(BufferKind::kHistory, table.history_numel()),
                                    std::pair(BufferKind::kMaxima, table.maxima_numel())}) {
    DeviceArray<std::int32_t> zeros(device_, numel);
    const std::string& name =
        schedule->buffers[static_cast<std::size_t>(schedule->find(kind))].name;
    run_apart([&, to = pool_->at(name)](Stream& stream) {
      zeros.upload(stream);
      stream.copy(to.data, zeros.view().data, static_cast<std::size_t>(to.bytes()));
      stream.synchronize();
    });
  }
  set_fp8_histories(histories);
}

std::vector<Fp8History> Executor::Impl::fp8_histories() {
  require_no_step();
  std::vector<Fp8History> histories;
  const Schedule* const schedule = schedule_with_histories();
  if (schedule == nullptr) return histories;
  const HistoryTable table(*schedule);
  DeviceArray<std::int32_t> words(device_, table.history_numel());
  const TensorView from = pool_->at(
      schedule->buffers[static_cast<std::size_t>(schedule->find(BufferKind::kHistory))].name);
  run_apart([&](Stream& stream) {
    stream.copy(words.view().data, from.data, static_cast<std::size_t>(from.bytes()));
    words.download(stream);
    stream.synchronize();
  });
  const auto word_at = [&](std::int64_t i) { return static_cast<std::uint32_t>(words.host()[i]); };
  for_each_history(*schedule, layout_, [&](const std::string& name, std::int64_t tensor) {
    Fp8History& history = histories.emplace_back(Fp8History{.name = name});
    for (int o = 0; o < kFp8Tensors; ++o) {
      const HistoryPlace place = place_of(table, *schedule, tensor + o);
      std::vector<std::uint32_t>& own = history.words[static_cast<std::size_t>(o)];
      own.push_back(word_at(place.scale_word));
      for (std::int64_t i = 0; i < place.count; ++i) own.push_back(word_at(place.first + i));
    }
  });
  return histories;
}

void Executor::Impl::set_fp8_histories(const std::vector<Fp8History>& histories) {
  require_no_step();
  const Schedule* const schedule = schedule_with_histories();
  if (schedule == nullptr || histories.empty()) return;
  const HistoryTable table(*schedule);
  DeviceArray<std::int32_t> words(device_, table.history_numel());
  const TensorView to = pool_->at(
      schedule->buffers[static_cast<std::size_t>(schedule->find(BufferKind::kHistory))].name);
  const auto bytes = static_cast<std::size_t>(to.bytes());
  run_apart([&](Stream& stream) {
    stream.copy(words.view().data, to.data, bytes);
    words.download(stream);
    stream.synchronize();
  });
  for_each_history(*schedule, layout_, [&](const std::string& name, std::int64_t tensor) {
    const auto found = std::ranges::find(histories, name, &Fp8History::name);
    if (found == histories.end()) return;
    for (int o = 0; o < kFp8Tensors; ++o) {
      const HistoryPlace place = place_of(table, *schedule, tensor + o);
      const std::vector<std::uint32_t>& own = found->words[static_cast<std::size_t>(o)];
      require(!own.empty(), ErrorCode::kInvalidArgument, "the histories of '", name,
              "' have no word for a scale");
      words.host()[place.scale_word] = static_cast<std::int32_t>(own.front());
      for (std::int64_t i = 0; i < place.count; ++i) {  // the newest are the last ones
        const std::int64_t from = std::ssize(own) - 1 - i;
        words.host()[place.first + place.count - 1 - i] =
            from > 0 ? static_cast<std::int32_t>(own[static_cast<std::size_t>(from)]) : 0;
      }
    }
  });
  run_apart([&](Stream& stream) {
    words.upload(stream);
    stream.copy(to.data, words.view().data, bytes);
    stream.synchronize();
  });
}

}  // namespace tessera
