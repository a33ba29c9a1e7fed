#include <bit>

#include "block.h"
#include "tessera/core/dtype.h"

namespace tessera::emulator {
namespace {

constexpr std::uint32_t kWarp = 0xffffffffU;

struct MmaLane {
  float* d;
  const std::uint32_t *a, *b;
};
struct MatrixLane {
  std::uint32_t* words;
  const unsigned char* row;
};

/// Element i of words that have two each. T: bfloat16 or float16.
template <typename T>
float element_of(const std::uint32_t* words, int i) {
  const std::uint32_t word = words[i / 2];
  return static_cast<float>(
      std::bit_cast<T>(static_cast<std::uint16_t>(i % 2 == 1 ? word >> 16 : word)));
}

template <typename T>
void multiply(const std::array<void*, 32>& payload, std::uint32_t lanes) {
  if (lanes != kWarp) return;  // a warp that is not whole: the results stay as they are
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* of = static_cast<const MmaLane*>(payload[static_cast<std::size_t>(lane)]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 8; ++i) {
      a[g + i / 2 % 2 * 8][t * 2 + i % 2 + i / 4 * 8] = element_of<T>(of->a, i);
    }
    for (int i = 0; i < 4; ++i) b[t * 2 + i % 2 + i / 2 * 8][g] = element_of<T>(of->b, i);
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; ++column) {
      const auto lane = static_cast<std::size_t>(row % 8 * 4 + column / 2);
      static_cast<const MmaLane*>(payload[lane])->d[row / 8 * 2 + column % 2] += sums[column];
    }
  }
}

const unsigned char* element(const std::array<void*, 32>& payload, int matrix, int row,
                             int column) {
  const auto lane = static_cast<std::size_t>(matrix * 8 + row);
  return static_cast<const MatrixLane*>(payload[lane])->row + column * 2;
}

template <bool kTransposed>
void load(const std::array<void*, 32>& payload, std::uint32_t lanes) {
  if (lanes != kWarp) return;
  for (int lane = 0; lane < 32; ++lane) {
    std::uint32_t* words =
        static_cast<const MatrixLane*>(payload[static_cast<std::size_t>(lane)])->words;
    const int row = lane / 4;
    const int column = lane % 4 * 2;
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::uint16_t low, high;
      __builtin_memcpy(&low,
                       kTransposed ? element(payload, matrix, column, row)
                                   : element(payload, matrix, row, column),
                       2);
      __builtin_memcpy(&high,
                       kTransposed ? element(payload, matrix, column + 1, row)
                                   : element(payload, matrix, row, column + 1),
                       2);
      words[matrix] = low | static_cast<std::uint32_t>(high) << 16;
    }
  }
}

}  // namespace

void multiply_matrices(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                       bool fp16, const Location& where) {
  MmaLane self{.d = d, .a = a, .b = b};
  Block::running().meet(kWarp, Collective::kMma, &self,
                        fp16 ? &multiply<float16> : &multiply<bfloat16>, where);
}

void load_matrices(std::uint32_t (&words)[4], const void* row, bool transposed,
                   const Location& where) {
  check_aligned16(row, where);
  if (!Block::running().shared().contains(row, 16)) {
    fault("ldmatrix of a row that is not in shared memory", where);
  }
  announce_read(row, 16);
  MatrixLane self{.words = words, .row = static_cast<const unsigned char*>(row)};
  Block::running().meet(kWarp, Collective::kLdMatrix, &self,
                        transposed ? &load<true> : &load<false>, where);
}

}  // namespace tessera::emulator
