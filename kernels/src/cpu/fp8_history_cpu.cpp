#include <algorithm>
#include <cstring>

#include "cpu/cpu_kernels.h"
#include "cpu/parallel.h"
#include "fp8_arguments.h"

// roll_fp8_history: tensors side by side. Traffic: a history is read and written once.
namespace tessera::cpu {
namespace {

constexpr std::int64_t kHistoryGrain = 4096;  // words of a thread at least

std::uint32_t* words_of(const TensorView& view) {
  return reinterpret_cast<std::uint32_t*>(view.as<std::int32_t>());
}

}  // namespace

void roll_fp8_history(const RollFp8HistoryArgs& args, Stream&) {
  check_arguments(args);
  const std::int64_t tensors = args.history.shape[0], length = args.history.shape[1];
  auto* const newest = words_of(args.newest);
  auto* const scale_words = words_of(args.scale_words);
  const std::int64_t grain = std::max<std::int64_t>(1, kHistoryGrain / (length + 1));
  parallel_for(tensors, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::uint32_t* const history = words_of(args.history) + t * length;
      const std::uint32_t last = newest[t];
      std::uint32_t amax = last;
      if (args.rule == Fp8HistoryRule::kMax) {
        const auto take = [&amax](std::uint32_t word) {
          if (word <= 0x7f800000U) amax = std::max(amax, word);
        };
        if (amax > 0x7f800000U) amax = 0;
        std::for_each(history, history + length, take);
      }
      scale_words[t] = fp8_scale_word(amax, scale_words[t], args.margin);
      newest[t] = 0;
      if (last == 0 || length == 0) continue;
      std::memmove(history, history + 1, static_cast<std::size_t>(length - 1) * sizeof(last));
      history[length - 1] = last;
    }
  });
}

}  // namespace tessera::cpu
