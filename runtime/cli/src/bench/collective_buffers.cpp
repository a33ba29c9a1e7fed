#include "bench/collective_buffers.h"

#include <algorithm>
#include <cstring>

#include "tessera/core/error.h"
#include "tessera/core/thread_team.h"

namespace tessera::bench {
namespace {

/// Bytes of no element that a check expects.
constexpr int kWrongByte = 0xEE;

/// A whole number as an element; fp32, bf16 and fp16 round it as the library rounds an exact sum.
template <typename T>
T as_element(double value) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// Calls body(T()) for the C++ type of the dtype.
template <typename Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(float());
    case DType::kBFloat16:
      return body(bfloat16());
    case DType::kFloat16:
      return body(float16());
    case DType::kFloat64:
      return body(double());
    case DType::kInt32:
      return body(std::int32_t());
    case DType::kInt64:
      return body(std::int64_t());
    case DType::kUInt8:
      return body(std::uint8_t());
  }
  fail(ErrorCode::kInternal, "a dtype without a C++ type");
}

}  // namespace

CollectiveBuffers::CollectiveBuffers(Device& device, Stream& stream, std::int64_t numel,
                                     int unalign, DType dtype)
    : device_(device), stream_(stream), memory_(device), unalign_(unalign) {
  for (Tensor* tensor : {&first_, &second_}) {
    *tensor = Tensor::empty(memory_, Shape{numel + unalign}, dtype, MemoryCategory::kWorkspace,
                            "buffers of the benchmark");
  }
  host_bytes_ = static_cast<std::size_t>(std::max<std::int64_t>(first_.bytes(), 1));
  host_ = static_cast<std::byte*>(device_.allocate_host(host_bytes_));
  std::memset(host_, kWrongByte, host_bytes_);
  to_device(first_);  // pages are touched before anything is timed
  to_device(second_);
}

CollectiveBuffers::~CollectiveBuffers() { device_.deallocate_host(host_, host_bytes_); }

void CollectiveBuffers::to_device(const TensorView& view) {
  if (view.bytes() == 0) return;
  stream_.copy(view.data, host_, static_cast<std::size_t>(view.bytes()));
  stream_.synchronize();
}

void CollectiveBuffers::from_device(const TensorView& view) {
  if (view.bytes() > 0) {
    stream_.copy(host_, view.data, static_cast<std::size_t>(view.bytes()));
  }
  stream_.synchronize();
}

CollectiveOperands CollectiveBuffers::operands(const CollectiveCase& collective,
                                               const ProcessGroup& group, std::int64_t numel,
                                               bool in_place, int root) const {
  const TensorView from = first_.view().narrow(0, unalign_, numel);
  const TensorView whole = second_.view().narrow(0, unalign_, numel);
  const std::int64_t part = numel / group.size();
  const auto part_of = [&](const TensorView& view, std::int64_t index) {
    return view.narrow(0, index * part, part);
  };
  CollectiveOperands o{.root = root};
  o.input = collective.input_is_part ? part_of(in_place ? whole : from, in_place ? group.rank() : 0)
            : in_place               ? whole
                                     : from;
  o.output = collective.output_is_part ? part_of(whole, in_place ? group.rank() : 0) : whole;
  o.staging = from.narrow(0, 0, o.input.numel());
  return o;
}

void CollectiveBuffers::fill(const CollectiveOperands& operands, int rank) {
  std::memset(host_, kWrongByte, host_bytes_);
  to_device(operands.output);
  with_type(operands.input.dtype, [&]<typename T>(T) {
    for (std::int64_t i = 0; i < operands.input.numel(); ++i) {
      const T element = as_element<T>(input_value(rank, i));
      std::memcpy(host_ + static_cast<std::size_t>(i) * sizeof(T), &element, sizeof(T));
    }
  });
  to_device(operands.input);
}

std::int64_t CollectiveBuffers::count_wrong(const CollectiveCase& collective,
                                            const CollectiveOperands& operands, int rank, int n) {
  from_device(operands.output);
  const std::int64_t numel = operands.output.numel();
  const std::int64_t part =
      std::max<std::int64_t>(1, collective.output_is_part ? numel : numel / n);
  return with_type(operands.output.dtype, [&]<typename T>(T) {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < numel; ++i) {
      const T right = as_element<T>(collective.expected(rank, n, operands.root, part, i));
      wrong += std::memcmp(host_ + static_cast<std::size_t>(i) * sizeof(T), &right, sizeof(T)) != 0;
    }
    return wrong;
  });
}

void CollectiveBuffers::copy(std::int64_t bytes, std::int64_t numel, int threads) {
  const TensorView from = first_.view().narrow(0, unalign_, numel);
  const TensorView to = second_.view().narrow(0, unalign_, numel);
  while (bytes > 0) {
    const std::int64_t piece = std::min(bytes, from.bytes());
    if (device_.kind() != DeviceKind::kCpu) {
      stream_.copy(to.data, from.data, static_cast<std::size_t>(piece));
    } else {
      stream_.submit({.name = "memcpy"}, [to = to.data, from = from.data, piece, threads] {
        const TeamLimit limit(threads);
        on_team(threads, [&](int t) {
          const std::int64_t begin = piece * t / threads;
          const std::int64_t end = piece * (t + 1) / threads;
          std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
        });
      });
    }
    bytes -= piece;
  }
}

}  // namespace tessera::bench
