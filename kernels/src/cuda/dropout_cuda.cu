#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "elementwise_arguments.h"
#include "tessera/kernels/philox.h"

// y = x / (1 - p) where the element's random word is at least p 2^32, else 0: the CPU's bits. The
// mask is never stored: backward draws it again. Bytes: x and y once.

namespace tessera::cuda {
namespace {

template <typename T>
struct Dropout {
  const T* x;
  T* y;
  const std::int64_t* key;  // (kRandomKeyWords)
  std::uint64_t call;
  const std::int64_t* first_sample;  // (1), or none
  std::int64_t sample_numel;
  std::int64_t first_index;
  std::uint32_t threshold;
  float scale;

  template <int kSize>
  struct Loaded {
    Pack<T, kSize> x;
    RandomKey key;
    std::int64_t first_index;
  };

  template <int kSize>
  __device__ Loaded<kSize> load(std::int64_t i) const {
    return {
        .x = load_pack<kSize>(x + i),
        .key = load_random_key(key),
        .first_index = first_index + (first_sample != nullptr ? *first_sample * sample_numel : 0)};
  }
  /// A group of more than one element begins at a multiple of 4 of the stream.
  template <int kSize>
  __device__ void store(std::int64_t i, const Loaded<kSize>& loaded) const {
    const auto index = static_cast<std::uint64_t>(loaded.first_index + i);
    const RandomKey of_call = key_of_call(loaded.key, call);
    Pack<T, kSize> group = loaded.x;
    if constexpr (kSize == 1) {
      const PhiloxCounter words =
          philox4x32(philox_counter(of_call, index / 4), philox_key(of_call));
      // Selected, not indexed: an index would put the words into memory.
      const std::uint32_t low = index % 2 == 0 ? words[0] : words[1];
      const std::uint32_t high = index % 2 == 0 ? words[2] : words[3];
      mask(group.v[0], index % 4 < 2 ? low : high);
    } else {
#pragma unroll
      for (int e = 0; e < kSize; e += 4) {
        const PhiloxCounter words = philox4x32(
            philox_counter(of_call, (index + static_cast<unsigned>(e)) / 4), philox_key(of_call));
        mask(group.v[e], words[0]);
        mask(group.v[e + 1], words[1]);
        mask(group.v[e + 2], words[2]);
        mask(group.v[e + 3], words[3]);
      }
    }
    store_pack(y + i, group);
  }

  __device__ void mask(T& value, std::uint32_t word) const {
    value = simt::from_float<T>(word >= threshold ? __fmul_rn(simt::to_float(value), scale) : 0.0F);
  }
};

}  // namespace

void dropout(const DropoutArgs& args, Stream& stream) {
  check_arguments(args);
  with_element_type("dropout", args.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSize = kGroupOf<T>;
    const Dropout<T> op{.x = device_data<T>(args.x),
                        .y = device_data<T>(args.y),
                        .key = device_data<const std::int64_t>(args.key),
                        .call = args.call,
                        .first_sample = args.first_sample
                                            ? device_data<const std::int64_t>(args.first_sample)
                                            : nullptr,
                        .sample_numel = args.sample_numel,
                        .first_index = args.first_index,
                        .threshold = probability_threshold(args.probability),
                        .scale = 1.0F / (1.0F - args.probability)};
    const bool grouped = groups_aligned<kSize>(op.x, op.y) && args.first_index % 4 == 0 &&
                         args.sample_numel % 4 == 0;
    launch_elementwise<kSize>(op, args.x.numel(), grouped, stream);
  });
}

}  // namespace tessera::cuda
