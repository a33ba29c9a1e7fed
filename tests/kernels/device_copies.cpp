#include "kernels/device_copies.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::uintptr_t kAlignment = 16;  // no kernel asks for more

/// One past the last element; rows may be strided.
std::byte* end_of(const TensorView& view) {
  std::int64_t last = 0;
  for (int i = 0; i < view.shape.rank(); ++i) {
    last += (view.shape[i] - 1) * view.strides[static_cast<std::size_t>(i)];
  }
  return view.data + (last + 1) * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace

DeviceCopies::DeviceCopies(const Views& views, Stream& stream) : stream_(stream) {
  Views moved;
  for (TensorView* view : views) {
    if (*view && view->numel() > 0) moved.push_back(view);
  }
  std::sort(moved.begin(), moved.end(),
            [](const TensorView* a, const TensorView* b) { return a->data < b->data; });
  for (const TensorView* view : moved) {
    if (blocks_.empty() || view->data >= blocks_.back().end) {
      blocks_.push_back({.begin = view->data, .end = view->data});
    }
    blocks_.back().end = std::max(blocks_.back().end, end_of(*view));
  }
  for (Block& block : blocks_) allocate(block);
  stream_.synchronize();
  auto block = blocks_.begin();
  for (TensorView* view : moved) {
    while (view->data >= block->end) ++block;
    view->data = block->copy + (view->data - block->begin);
  }
}

DeviceCopies::~DeviceCopies() {
  for (const Block& block : blocks_) static_cast<void>(cudaFree(block.allocation));
}

void DeviceCopies::copy_back() {
  stream_.synchronize();
  for (const Block& block : blocks_) {
    stream_.copy(block.begin, block.copy, static_cast<std::size_t>(block.end - block.begin));
  }
  stream_.synchronize();
}

void DeviceCopies::allocate(Block& block) {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(block.begin) % kAlignment;
  const auto bytes = static_cast<std::size_t>(block.end - block.begin);
  const cudaError_t status = cudaMalloc(&block.allocation, before + bytes);
  require(status == cudaSuccess, ErrorCode::kOutOfMemory, "cudaMalloc of ", bytes,
          " bytes failed: ", cudaGetErrorString(status));
  block.copy = static_cast<std::byte*>(block.allocation) + before;
  stream_.copy(block.copy, block.begin, bytes);
}

}  // namespace tessera
