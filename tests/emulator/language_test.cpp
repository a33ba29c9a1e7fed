#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "device_run.h"
#include "tessera/core/dtype.h"

// simt.h: what kernels are written in does what it does on a GPU.

namespace tessera::emulator_test {
namespace {

using simt::bf16;
using simt::fp16;

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Bf16, RoundsAsTheProductDoes) {
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      const bf16 rounded = simt::from_float<bf16>(value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(simt::to_float(rounded)));
      } else {
        ASSERT_EQ(rounded.bits, bfloat16(value).bits) << std::hex << high << " " << low;
      }
    }
  }
  EXPECT_EQ(simt::pack_pair<bf16>(1.0F, -2.0F), 0xc0003f80U);
}

TEST(Fp16, RoundsAsTheProductDoes) {
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0U, 0x1000U, 0x1001U, 0x2fffU, 0x3000U, 0xffffU}) {
      const float value = std::bit_cast<float>(high << 16 | low);
      const fp16 rounded = simt::from_float<fp16>(value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(simt::to_float(rounded)));
      } else {
        ASSERT_EQ(rounded.bits, float16(value).bits) << std::hex << high << " " << low;
        ASSERT_EQ(simt::to_float(rounded), static_cast<float>(float16(value)));
      }
    }
  }
  EXPECT_EQ(simt::pack_pair<fp16>(1.0F, -2.0F), 0xc0003c00U);
}

__global__ void reductions(const float* in, float* sums, float* maxima, double* doubles) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const float value = in[thread];
  for (int repeat = 0; repeat < 2; ++repeat) {
    sums[thread] = simt::block_sum(value);
    maxima[thread] = simt::block_max(value);
    doubles[thread] = simt::block_sum(static_cast<double>(value));
  }
}

class Reductions : public testing::TestWithParam<dim3> {};

TEST_P(Reductions, GiveEveryThreadTheSameResult) {
  const dim3 block = GetParam();
  const std::size_t threads = block.x * block.y * block.z;
  std::vector<float> values = normal_values(threads, 3);
  for (float& value : values) value = std::round(value * 64);  // sums are exact
  double sum = 0;
  float maximum = values[0];
  for (const float value : values) {
    sum += value;
    maximum = std::max(maximum, value);
  }
  const TestStream stream(5);
  const DeviceArray<float> in(values), sums(threads), maxima(threads);
  const DeviceArray<double> doubles(threads);
  simt::launch(&reductions, dim3(1), block, 0, stream, in.data(), sums.data(), maxima.data(),
               doubles.data());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (std::size_t i = 0; i < threads; ++i) {
    ASSERT_EQ(sums.values()[i], static_cast<float>(sum));
    ASSERT_EQ(maxima.values()[i], maximum);
    ASSERT_EQ(doubles.values()[i], sum);
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, Reductions,
                         testing::Values(dim3(32), dim3(64), dim3(96), dim3(8, 4, 2), dim3(256)));

__global__ void widest_reductions(float* sums, float* maxima) {
  const float value = static_cast<float>(threadIdx.x) - 100.0F;
  const float sum = simt::block_sum(value);
  const float maximum = simt::block_max(-value);
  if (threadIdx.x % 341 == 0) {
    sums[threadIdx.x / 341] = sum;
    maxima[threadIdx.x / 341] = maximum;
  }
}

TEST(Reductions, WorkInTheLargestBlock) {
  const TestStream stream;
  const DeviceArray<float> sums(4), maxima(4);
  simt::launch(&widest_reductions, dim3(1), dim3(1024), 0, stream, sums.data(), maxima.data());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(sums.values(), std::vector<float>(4, 1023 * 512 - 102400));
  EXPECT_EQ(maxima.values(), std::vector<float>(4, 100));
}

/// C (16, 8) = A (16, 16) B (16, 8), all row-major, through shared memory: A by ldmatrix, B by its
/// transposing form.
template <typename T>
__global__ void one_product(const T* a, const T* b, float* c) {
  T* shared_a = simt::dynamic_shared<T>();
  T* shared_b = shared_a + 16 * 16;
  const unsigned lane = threadIdx.x;
  simt::cp_async16(shared_a + lane * 8, a + lane * 8);
  if (lane < 16) simt::cp_async16(shared_b + lane * 8, b + lane * 8);
  simt::cp_async_commit();
  simt::cp_async_wait<0>();
  __syncwarp();
  std::uint32_t of_a[4], of_b[4];
  simt::ldmatrix_x4(of_a, shared_a + lane % 16 * 16 + lane / 16 * 8);
  simt::ldmatrix_x4_trans(of_b, shared_b + lane % 16 * 8);
  float sums[4] = {};
  simt::mma_m16n8k16<T>(sums, of_a, {of_b[0], of_b[1]});
  for (unsigned i = 0; i < 4; ++i) {
    c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
  }
}

template <typename T>
void check_products() {
  const auto rounded = [](std::size_t count, unsigned seed) {
    std::vector<T> values;
    for (const float value : normal_values(count, seed)) {
      values.push_back(simt::from_float<T>(value));
    }
    return values;
  };
  const std::vector<T> a = rounded(16 * 16, 1), b = rounded(16 * 8, 2);
  for (const int order : {0, 1, 9}) {
    const TestStream stream(order);
    const DeviceArray<T> device_a(a), device_b(b);
    const DeviceArray<float> c(16 * 8);
    simt::launch(&one_product<T>, dim3(1), dim3(32), (16 * 16 + 16 * 8) * sizeof(T), stream,
                 device_a.data(), device_b.data(), c.data());
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<float> result = c.values();
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t column = 0; column < 8; ++column) {
        double sum = 0;
        for (std::size_t k = 0; k < 16; ++k) {
          sum += static_cast<double>(simt::to_float(a[row * 16 + k])) *
                 static_cast<double>(simt::to_float(b[k * 8 + column]));
        }
        EXPECT_NEAR(result[row * 8 + column], sum, 1e-5) << row << ", " << column;
      }
    }
  }
}

TEST(TensorCores, MultiplyMatrices) {
  check_products<bf16>();
  check_products<fp16>();
}

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* row = out + lane * 8;
  row[0] = __shfl_sync(0xffffffffU, lane, 5);
  row[1] = __shfl_sync(0xffffffffU, lane, 5, 8);
  row[2] = __shfl_xor_sync(0xffffffffU, lane, 3);
  row[3] = __shfl_down_sync(0xffffffffU, lane, 2, 16);
  row[4] = __shfl_up_sync(0xffffffffU, lane, 2, 16);
  row[5] = static_cast<int>(__ballot_sync(0xffffffffU, lane % 3 == 0));
  row[6] = __any_sync(0xffffffffU, lane == 31) + 2 * __all_sync(0xffffffffU, lane < 31);
  row[7] = __syncthreads_count(lane % 2);
}

TEST(WarpFunctions, FollowTheirDefinitions) {
  const TestStream stream(6);
  const DeviceArray<int> out(32 * 8);
  simt::launch(&shuffles, dim3(1), dim3(32), 0, stream, out.data());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<int> values = out.values();
  for (int lane = 0; lane < 32; ++lane) {
    const std::vector<int> row(values.begin() + lane * 8, values.begin() + lane * 8 + 8);
    EXPECT_EQ(row,
              (std::vector<int>{5, lane / 8 * 8 + 5, lane ^ 3, lane % 16 < 14 ? lane + 2 : lane,
                                lane % 16 < 2 ? lane : lane - 2, 0x49249249, 1, 16}))
        << "lane " << lane;
  }
}

}  // namespace
}  // namespace tessera::emulator_test
