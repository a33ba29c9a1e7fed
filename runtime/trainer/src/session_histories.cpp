#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "session_impl.h"
#include "tessera/trainer/gather.h"

namespace tessera {

/// The histories of all pipeline ranks, for a checkpoint, in order of names.
std::vector<Fp8History> Session::Impl::fp8_histories() {
  std::map<std::string, Fp8History> all;
  if (!plan_.options.fp8.is_delayed()) return {};
  std::mutex mutex;
  run([&](RankSeat& seat) {
    std::vector<Fp8History> own = seat.executor.fp8_histories();
    const std::lock_guard lock(mutex);
    for (Fp8History& history : own) all.emplace(history.name, std::move(history));
  });
  const auto listed = [&all] {
    std::vector<Fp8History> histories;
    for (const auto& [name, history] : all) histories.push_back(history);
    return histories;
  };
  const bool is_spread = plan_.options.world != nullptr && plan_.options.world->processes() > 1 &&
                         plan_.options.pipeline.ranks > 1;
  if (!is_spread) return listed();
  run([&](RankSeat& seat) {
    if (seat.leaders == nullptr) return;
    for (const std::string& text : gather(*seat.leaders, to_text(listed()))) {
      for (Fp8History& history : parse_histories(text)) {
        all.emplace(history.name, std::move(history));
      }
    }
  });
  return listed();
}

}  // namespace tessera
