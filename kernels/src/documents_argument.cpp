#include "documents_argument.h"

#include "tessera/core/error.h"

namespace tessera {

void check_starts(const char* kernel, const TensorView& starts, std::int64_t batch,
                  std::int64_t length) {
  if (!starts) return;
  require(starts.shape == Shape{batch, length} && starts.dtype == DType::kInt32 &&
              starts.is_contiguous(),
          ErrorCode::kInvalidArgument, kernel, ": starts is ", starts.shape, " of ",
          to_string(starts.dtype), ", wanted contiguous ", Shape{batch, length}, " of int32");
}

void check_start_values(const char* kernel, const TensorView& starts) {
  if (!starts) return;
  const std::int32_t* const start = starts.as<std::int32_t>();
  const std::int64_t length = starts.shape[1];
  for (std::int64_t i = 0; i < starts.numel(); ++i) {
    const std::int64_t place = i % length;
    const std::int64_t before = place == 0 ? 0 : start[i - 1];
    require(start[i] == before || start[i] == place, ErrorCode::kInvalidArgument, kernel,
            ": the document of place ", place, " of sequence ", i / length, " begins at ", start[i],
            "; wanted ", before, ", where that of the place before does, or ", place);
  }
}

}  // namespace tessera
