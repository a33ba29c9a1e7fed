#include <cstdint>

#include "cuda/cuda_kernels.h"
#include "cuda/elementwise_cuda.h"
#include "cuda/fp8_transpose_cuda.h"
#include "fp8_arguments.h"

// Codes of fp8 and their transpose (columns, rows), as cuBLASLt's products want them: of a matrix
// that is encoded on the way, with the codes as they lie if they are wanted, too; or of codes.
//
// A block takes a tile of 64 x 64. Its codes go by way of shared memory, whose rows are 68 bytes
// apart, so that a warp that reads down columns meets each bank at most twice. Loads are 16 bytes;
// stores of transposed codes are 16 bytes, four threads to a row of the tile. Bytes: the matrix is
// read once, and each copy of its codes written once.

namespace tessera::cuda {
namespace {

constexpr int kCodesTile = 64;
constexpr int kCodesPitch = kCodesTile + 4;
constexpr int kCodesThreads = 256;
constexpr int kStoreRows = 16;  ///< of the matrix, bytes of one store of transposed codes

/// A matrix that is encoded.
template <typename T>
struct EncodedMatrix {
  using Element = T;
  const T* data;
  const std::uint32_t* amax;
  Fp8Format format;
  Fp8Scales scales;

  __device__ float prepare() const { return fp8_scale(*amax, format, scales); }
  __device__ std::uint8_t code(T value, float scale) const {
    return fp8_code(__fmul_rn(simt::to_float(value), scale), format);
  }
};

/// A matrix of codes.
struct CodeMatrix {
  using Element = std::uint8_t;
  const std::uint8_t* data;

  __device__ float prepare() const { return 1.0F; }
  __device__ std::uint8_t code(std::uint8_t value, float /*scale*/) const { return value; }
};

struct TransposeSizes {
  std::int64_t rows, columns, tiles_across;
};

/// `codes` may be null. Each group of kSize neighbours in a row is loaded at once; with kSize of 1
/// nothing needs to be aligned.
template <typename Matrix, int kSize>
__global__ void __launch_bounds__(kCodesThreads)
    transpose_tile(Matrix from, std::uint8_t* codes, std::uint8_t* transposed, TransposeSizes s) {
  SIMT_SHARED(std::uint8_t[kCodesTile * kCodesPitch], tile);
  constexpr int kGroups = kCodesTile / kSize;  // of a row
  constexpr int kRowsAtOnce = kCodesThreads / kGroups;
  const std::int64_t top = blockIdx.x / s.tiles_across * kCodesTile;
  const std::int64_t left = blockIdx.x % s.tiles_across * kCodesTile;
  const float scale = from.prepare();
  const int within = static_cast<int>(threadIdx.x) % kGroups * kSize;
  const std::int64_t column = left + within;
#pragma unroll
  for (int pass = 0; pass < kCodesTile / kRowsAtOnce; ++pass) {
    const int row_within = static_cast<int>(threadIdx.x) / kGroups + pass * kRowsAtOnce;
    const std::int64_t row = top + row_within;
    if (row >= s.rows || column >= s.columns) continue;
    const std::int64_t at = row * s.columns + column;
    const auto group = load_pack<kSize>(from.data + at);
    Pack<std::uint8_t, kSize> result;
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      result.v[e] = from.code(group.v[e], scale);
      tile[row_within * kCodesPitch + within + e] = result.v[e];
    }
    if (codes != nullptr) store_pack(codes + at, result);
  }
  __syncthreads();
  const int down = static_cast<int>(threadIdx.x) % (kCodesTile / kStoreRows) * kStoreRows;
  const int across = static_cast<int>(threadIdx.x) / (kCodesTile / kStoreRows);
  if (left + across >= s.columns || top + down >= s.rows) return;
  Pack<std::uint8_t, kStoreRows> result;
#pragma unroll
  for (int e = 0; e < kStoreRows; ++e) result.v[e] = tile[(down + e) * kCodesPitch + across];
  std::uint8_t* const to = transposed + (left + across) * s.rows + top + down;
  if constexpr (kSize > 1) {
    store_pack(to, result);  // rows are a multiple of kStoreRows
  } else {
#pragma unroll
    for (int e = 0; e < kStoreRows; ++e) {
      if (top + down + e < s.rows) to[e] = result.v[e];
    }
  }
}

template <typename Matrix>
void launch_transpose(const Matrix& from, std::uint8_t* codes, const TensorView& transposed,
                      Stream& stream) {
  constexpr int kSize = kGroupOf<typename Matrix::Element>;
  const std::int64_t columns = transposed.shape[0], rows = transposed.shape[1];
  if (transposed.numel() == 0) return;
  auto* const to = transposed.as<std::uint8_t>();
  const bool grouped = columns % kSize == 0 && rows % kStoreRows == 0 &&
                       groups_aligned<kSize>(from.data, codes) && is_aligned(to, kStoreRows);
  const std::int64_t across = ceil_div(columns, kCodesTile);
  simt::launch(grouped ? transpose_tile<Matrix, kSize> : transpose_tile<Matrix, 1>,
               dim3(blocks_for(across * ceil_div(rows, kCodesTile), 1)), dim3(kCodesThreads), 0,
               handle(stream), from, codes, to, TransposeSizes{rows, columns, across});
}

}  // namespace

void fp8_encode_transposed(const Fp8EncodeArgs& args, Stream& stream) {
  with_element_type("fp8_encode", args.x.dtype, [&]<typename T>(ElementType<T>) {
    launch_transpose(
        EncodedMatrix<T>{device_data<const T>(args.x), device_data<const std::uint32_t>(args.amax),
                         args.format, args.scales},
        device_data<std::uint8_t>(args.codes), args.transposed, stream);
  });
}

void fp8_transpose(const Fp8TransposeArgs& args, Stream& stream) {
  check_arguments(args);
  launch_transpose(CodeMatrix{args.codes.as<std::uint8_t>()}, nullptr, args.transposed, stream);
}

}  // namespace tessera::cuda
