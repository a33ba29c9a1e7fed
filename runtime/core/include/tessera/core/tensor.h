#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/core/dtype.h"
#include "tessera/core/memory.h"

namespace tessera {

inline constexpr int kMaxDims = 5;

/// Sizes of up to five dimensions. A scalar has rank 0 and numel 1.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);
  explicit Shape(const std::vector<std::int64_t>& dims);

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t numel() const;  ///< Throws Error{kInvalidArgument} above 2^58.
  /// This shape with another size of dimension `dim`.
  Shape with(int dim, std::int64_t size) const {
    Shape result = *this;
    result.dims_[static_cast<std::size_t>(dim)] = size;
    return result;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxDims> dims_{};
  int rank_ = 0;
};

/// Writes "(4, 256, 768)": a check that holds (see require) makes no text of the shapes it names.
std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// A typed window on memory that somebody else owns: what kernels and collectives take.
/// Strides are in elements; a fresh view is contiguous and row-major.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::array<std::int64_t, kMaxDims> strides{};

  TensorView() = default;
  TensorView(void* data, DType dtype, Shape shape);

  std::int64_t numel() const { return shape.numel(); }
  std::int64_t bytes() const { return numel() * static_cast<std::int64_t>(size_of(dtype)); }
  bool is_contiguous() const;
  explicit operator bool() const { return data != nullptr; }

  /// The elements as T. Throws Error{kInvalidArgument} if dtype does not match.
  template <typename T>
  T* as() const {
    check_dtype(dtype_of<T>());
    return reinterpret_cast<T*>(data);
  }

  /// Elements [begin, begin + count) of dimension `dim`; shares memory.
  TensorView narrow(int dim, std::int64_t begin, std::int64_t count) const;
  /// These elements under another shape of equal numel. Requires contiguity.
  TensorView reshape(Shape shape) const;
  /// All elements as one dimension. Requires contiguity.
  TensorView flat() const { return reshape(Shape{numel()}); }

 private:
  void check_dtype(DType wanted) const;
};

/// A TensorView with shared ownership of the Buffer behind it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<Buffer> buffer, TensorView view)
      : buffer_(std::move(buffer)), view_(std::move(view)) {}

  /// Uninitialised and contiguous, from that tier of `memory`.
  static Tensor empty(Memory& memory, Shape shape, DType dtype, MemoryCategory category,
                      std::string_view what, Tier tier = Tier::kDevice);
  /// Wraps memory that outlives the tensor; nothing is owned or counted.
  static Tensor borrow(TensorView view) { return Tensor(nullptr, std::move(view)); }

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: a tensor is usable as a view
  const Shape& shape() const { return view_.shape; }
  DType dtype() const { return view_.dtype; }
  std::int64_t numel() const { return view_.numel(); }
  std::int64_t bytes() const { return view_.bytes(); }
  template <typename T>
  T* as() const {
    return view_.as<T>();
  }
  explicit operator bool() const { return static_cast<bool>(view_); }
  /// How many Tensors share the buffer (0 if borrowed).
  long use_count() const { return buffer_.use_count(); }

  Tensor narrow(int dim, std::int64_t begin, std::int64_t count) const {
    return Tensor(buffer_, view_.narrow(dim, begin, count));
  }
  Tensor reshape(Shape shape) const { return Tensor(buffer_, view_.reshape(std::move(shape))); }

 private:
  std::shared_ptr<Buffer> buffer_;
  TensorView view_;
};

}  // namespace tessera
