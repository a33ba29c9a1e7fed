#include "tessera/core/tensor.h"

#include <algorithm>
#include <ostream>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// Bytes of any dtype, and a shape padded for any number of ranks, then fit 64 bits.
constexpr std::int64_t kMaxNumel = std::int64_t{1} << 58;

std::int64_t checked_dim(std::int64_t dim) {
  require(dim >= 0, ErrorCode::kInvalidArgument, "a shape cannot have the negative size ", dim);
  return dim;
}

int checked_rank(std::size_t rank) {
  require(rank <= static_cast<std::size_t>(kMaxDims), ErrorCode::kInvalidArgument,
          "a shape has at most ", kMaxDims, " dimensions, got ", rank);
  return static_cast<int>(rank);
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> dims) : rank_(checked_rank(dims.size())) {
  std::transform(dims.begin(), dims.end(), dims_.begin(), checked_dim);
}

Shape::Shape(const std::vector<std::int64_t>& dims) : rank_(checked_rank(dims.size())) {
  std::transform(dims.begin(), dims.end(), dims_.begin(), checked_dim);
}

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  bool fits = true;
  for (int i = 0; i < rank_; ++i) {
    fits = fits && !__builtin_mul_overflow(product, (*this)[i], &product) && product <= kMaxNumel;
  }
  if (!fits) {
    fail(ErrorCode::kInvalidArgument, "a tensor of shape ", *this,
         " would have more than 2^58 elements; make it smaller (for a model: fewer samples or "
         "tokens per micro-batch, a smaller width or vocabulary)");
  }
  return product;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << "(";
  for (int i = 0; i < shape.rank(); ++i) out << (i > 0 ? ", " : "") << shape[i];
  return out << ")";
}

TensorView::TensorView(void* data_, DType dtype_, Shape shape_)
    : data(static_cast<std::byte*>(data_)), dtype(dtype_), shape(shape_) {
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = stride;
    stride *= shape[i];
  }
}

bool TensorView::is_contiguous() const {
  if (numel() == 0) return true;
  std::int64_t expected = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[static_cast<std::size_t>(i)] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

TensorView TensorView::narrow(int dim, std::int64_t begin, std::int64_t count) const {
  if (dim < 0 || dim >= shape.rank()) {
    fail(ErrorCode::kInvalidArgument, "narrow: no dimension ", dim, " in shape ", shape);
  }
  if (begin < 0 || count < 0 || begin > shape[dim] - count) {
    fail(ErrorCode::kInvalidArgument, "narrow: [", begin, ", ", begin, " + ", count,
         ") is outside of dimension ", dim, " of shape ", shape);
  }
  TensorView result = *this;
  result.shape = shape.with(dim, count);
  if (result.data != nullptr) {
    result.data +=
        begin * strides[static_cast<std::size_t>(dim)] * static_cast<std::int64_t>(size_of(dtype));
  }
  return result;
}

TensorView TensorView::reshape(Shape new_shape) const {
  if (new_shape.numel() != numel()) {
    fail(ErrorCode::kInvalidArgument, "cannot reshape ", shape, " to ", new_shape,
         ": the element counts ", numel(), " and ", new_shape.numel(), " differ");
  }
  if (!is_contiguous()) {
    fail(ErrorCode::kInvalidArgument, "cannot reshape a view of shape ", shape,
         " that is not contiguous");
  }
  return TensorView(data, dtype, new_shape);
}

void TensorView::check_dtype(DType wanted) const {
  if (dtype == wanted) return;  // kernels ask often; the text is for those who are wrong
  fail(ErrorCode::kInvalidArgument, "a tensor of ", to_string(dtype), " ", shape, " was used as ",
       to_string(wanted));
}

Tensor Tensor::empty(Memory& memory, Shape shape, DType dtype, MemoryCategory category,
                     std::string_view what, Tier tier) {
  const std::int64_t bytes = shape.numel() * static_cast<std::int64_t>(size_of(dtype));
  auto buffer = std::make_shared<Buffer>(memory.allocate(bytes, category, what, tier));
  TensorView view(buffer->data(), dtype, shape);
  return Tensor(std::move(buffer), view);
}

}  // namespace tessera
