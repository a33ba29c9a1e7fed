#include "tessera/core/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tessera/core/cpu_device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

TEST(ShapeTest, NumelAndText) {
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ(concat(Shape{}), "()");
  EXPECT_EQ((Shape{4, 256, 768}).numel(), 786432);
  EXPECT_EQ(concat(Shape{4, 256, 768}), "(4, 256, 768)");
  EXPECT_EQ((Shape{3, 0, 5}).numel(), 0);
  EXPECT_EQ(Shape(std::vector<std::int64_t>{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
}

TEST(ShapeTest, RejectsNegativeSizesAndTooManyDimensions) {
  EXPECT_THROW((Shape{2, -1}), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1}), Error);
}

TEST(ShapeTest, SaysThatAProductIsTooLarge) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 29;
  EXPECT_EQ((Shape{kLarge, kLarge}).numel(), std::int64_t{1} << 58);
  for (const Shape& shape : {Shape{kLarge, kLarge, 2}, Shape{kLarge, kLarge, kLarge, kLarge},
                             Shape{(std::int64_t{1} << 62) + 1, 4}}) {
    try {
      ADD_FAILURE() << "counted as " << shape.numel();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(concat(shape)), std::string::npos);
    }
  }
}

TEST(TensorViewTest, NarrowKeepsStridesAndMovesData) {
  std::vector<float> data(24);
  std::iota(data.begin(), data.end(), 0.0F);
  const TensorView view(data.data(), DType::kFloat32, Shape{2, 3, 4});
  EXPECT_TRUE(view.is_contiguous());
  const TensorView rows = view.narrow(1, 1, 2);
  EXPECT_EQ(rows.shape, (Shape{2, 2, 4}));
  EXPECT_EQ(rows.as<float>()[0], 4.0F);
  EXPECT_EQ(rows.strides[0], 12);
  EXPECT_FALSE(rows.is_contiguous());
  EXPECT_TRUE(view.narrow(0, 1, 1).narrow(1, 1, 2).is_contiguous());  // a size of 1 has no stride
  EXPECT_TRUE(view.narrow(2, 4, 0).is_contiguous());                  // nor has nothing
  EXPECT_THROW(view.narrow(1, 2, 2), Error);
  EXPECT_THROW(view.narrow(3, 0, 1), Error);
  EXPECT_THROW(view.narrow(0, -1, 1), Error);
}

TEST(TensorViewTest, ReshapeNeedsEqualNumelAndContiguity) {
  std::vector<float> data(24);
  const TensorView view(data.data(), DType::kFloat32, Shape{2, 3, 4});
  EXPECT_EQ(view.reshape(Shape{6, 4}).strides[0], 4);
  EXPECT_EQ(view.flat().shape, (Shape{24}));
  EXPECT_THROW(view.reshape(Shape{5, 5}), Error);
  EXPECT_THROW(view.narrow(1, 0, 2).flat(), Error);
}

TEST(TensorViewTest, AsChecksTheDType) {
  float x = 1.0F;
  const TensorView view(&x, DType::kFloat32, Shape{1});
  EXPECT_EQ(*view.as<float>(), 1.0F);
  EXPECT_THROW(view.as<double>(), Error);
  EXPECT_THROW(view.as<bfloat16>(), Error);
}

TEST(TensorTest, SharesItsBufferUntilTheLastOneDies) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  {
    Tensor part;
    {
      const Tensor whole = Tensor::empty(memory, Shape{10, 10}, DType::kBFloat16,
                                         MemoryCategory::kActivations, "test");
      part = whole.narrow(0, 5, 5);
      EXPECT_EQ(part.use_count(), 2);
      EXPECT_EQ(part.bytes(), 100);
    }
    EXPECT_EQ(memory.current()[MemoryCategory::kActivations], 256);
  }
  EXPECT_EQ(memory.current(), MemoryUse{});
}

TEST(TensorTest, EmptyTensorsExistButCostNothing) {
  const auto device = make_cpu_device();
  Memory memory(*device);
  const Tensor none =
      Tensor::empty(memory, Shape{0, 7}, DType::kFloat32, MemoryCategory::kGradients, "nothing");
  EXPECT_TRUE(static_cast<bool>(none));
  EXPECT_EQ(memory.current(), MemoryUse{});
  EXPECT_EQ(Tensor::borrow(none.view()).use_count(), 0);
}

}  // namespace
}  // namespace tessera
