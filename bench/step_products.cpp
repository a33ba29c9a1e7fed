#include "step_products.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

ProductShape shape_of(const GemmArgs& args) {
  return {.m = args.c.shape[0],
          .n = args.c.shape[1],
          .k = args.a.shape[args.transpose_a ? 0 : 1],
          .a_stride = args.a.strides[0],
          .b_stride = args.b.strides[0],
          .c_stride = args.c.strides[0],
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = args.accumulate,
          .dtype = args.a.dtype,
          .c_dtype = args.c.dtype};
}

}  // namespace

StepProducts::StepProducts(std::span<const GemmArgs> gemms, Memory& memory) {
  make_blocks(gemms, memory);
  std::vector<ProductShape> shapes;
  for (const GemmArgs& args : gemms) {
    const ProductShape shape = shape_of(args);
    const auto known = std::ranges::find(shapes, shape);
    calls_.push_back({.shape = shape,
                      .operands = {.a = find(args.a), .b = find(args.b), .c = find(args.c)},
                      .product = static_cast<std::size_t>(known - shapes.begin())});
    if (known == shapes.end()) shapes.push_back(shape);
  }
  for (const ProductShape& shape : shapes) {
    std::vector<Operands> samples;
    for (const Call& call : calls_) {
      if (call.shape == shape) samples.push_back(call.operands);
    }
    products_.emplace_back(shape, samples, memory);
  }
}

void StepProducts::run(Layouts layouts) {
  for (const Call& call : calls_) products_[call.product].run(layouts, call.operands);
}

double StepProducts::flops() const {
  double sum = 0.0;
  for (const Call& call : calls_) sum += call.shape.flops();
  return sum;
}

void StepProducts::make_blocks(std::span<const GemmArgs> gemms, Memory& memory) {
  std::vector<Block> all;
  for (const GemmArgs& args : gemms) {
    for (const TensorView* view : {&args.a, &args.b, &args.c}) {
      const std::int64_t elements = (view->shape[0] - 1) * view->strides[0] + view->shape[1];
      const auto bytes = elements * static_cast<std::int64_t>(size_of(view->dtype));
      all.push_back({.begin = view->data, .end = view->data + bytes, .dtype = view->dtype});
    }
  }
  std::ranges::sort(all, {}, &Block::begin);
  for (const Block& block : all) {
    if (blocks_.empty() || block.begin >= blocks_.back().end) {
      blocks_.push_back(block);
      continue;
    }
    require(block.dtype == blocks_.back().dtype, ErrorCode::kInternal,
            "operands of two dtypes share memory, which random numbers cannot fill for both");
    blocks_.back().end = std::max(blocks_.back().end, block.end);
  }
  constexpr float kStddev = 0.02F;  // products of products neither vanish nor overflow
  for (Block& block : blocks_) {
    const std::int64_t numel =
        (block.end - block.begin) / static_cast<std::int64_t>(size_of(block.dtype));
    const auto seed = static_cast<std::uint64_t>(&block - blocks_.data());
    block.tensor = random_operand(memory, {numel}, block.dtype, kStddev, seed);
  }
}

void* StepProducts::find(const TensorView& operand) const {
  const auto after = std::ranges::upper_bound(blocks_, operand.data, {}, &Block::begin);
  const Block& block = *std::prev(after);
  return block.tensor.view().data + (operand.data - block.begin);
}

}  // namespace tessera::bench
