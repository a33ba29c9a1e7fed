#include "attention_products.h"

#include <omp.h>

#include <algorithm>
#include <exception>
#include <span>

#include "cpu/attention_blocks.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

using cpu::kKeyBlock;
using cpu::kQueryBlock;

/// The address of element `index`.
std::byte* address(const Tensor& tensor, std::int64_t index) {
  return tensor.view().data + index * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

/// Elements between rows of `width` scores.
std::int64_t score_stride(std::int64_t width) { return width + cpu::kScorePadding; }

}  // namespace

AttentionProducts::AttentionProducts(const GptConfig& gpt, std::int64_t micro_batch,
                                     std::int64_t length, DType dtype, Memory& memory)
    : layers_(gpt.layers),
      batch_(micro_batch),
      length_(length),
      heads_(gpt.heads),
      head_dim_(gpt.head_width_used()),
      dtype_(dtype),
      qkv_(random_operand(memory, {micro_batch * length, 3 * heads_ * head_dim_}, dtype, 1.0F, 1)),
      gradient_(
          random_operand(memory, {micro_batch * length, heads_ * head_dim_}, dtype, 1.0F, 2)) {
  add_forward();
  add_backward();
  threads_.resize(static_cast<std::size_t>(omp_get_max_threads()));
  std::exception_ptr error;
#pragma omp parallel
  {
    omp_set_num_threads(1);
#pragma omp critical(tessera_bench_attention)
    try {
      auto& thread = threads_[static_cast<std::size_t>(omp_get_thread_num())];
      thread = std::make_unique<Thread>();
      prepare(*thread, memory);
    } catch (...) {
      error = std::current_exception();
    }
  }
  omp_set_num_threads(static_cast<int>(threads_.size()));
  if (error) std::rethrow_exception(error);
}

void AttentionProducts::run() {
  const std::int64_t heads = batch_ * heads_;
  for (const std::vector<Call>* calls : {&forward_, &backward_}) {
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
#pragma omp parallel for schedule(dynamic, 1)
      for (std::int64_t head = 0; head < heads; ++head) {
        Thread& thread = *threads_[static_cast<std::size_t>(omp_get_thread_num())];
        for (const Call& call : *calls) {
          thread.products[call.product].run(Layouts::kPlain, operands(call, thread, head));
        }
      }
    }
  }
}

double AttentionProducts::flops() const {
  double head = 0.0;
  for (const std::vector<Call>* calls : {&forward_, &backward_}) {
    for (const Call& call : *calls) head += shapes_[call.product].flops();
  }
  return head * static_cast<double>(layers_ * batch_ * heads_);
}

/// For each block of queries and keys: scores = q k^T, out = [out +] p v.
void AttentionProducts::add_forward() {
  const std::int64_t stride = score_stride(std::min(length_, kKeyBlock));
  for (std::int64_t q0 = 0; q0 < length_; q0 += kQueryBlock) {
    const std::int64_t queries = std::min(kQueryBlock, length_ - q0);
    for (std::int64_t k0 = 0; k0 < q0 + queries; k0 += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, q0 + queries - k0);
      ProductShape scores = product(queries, keys, head_dim_, stride);
      scores.transpose_b = true;
      add(forward_, scores, qkv(0, q0), qkv(1, k0), {Base::kScores, 0});
      ProductShape out = product(queries, head_dim_, keys, head_dim_);
      out.a_stride = stride;
      out.accumulate = k0 > 0;
      add(forward_, out, {Base::kRounded, 0}, qkv(2, k0), {Base::kSums, 0});
    }
  }
}

/// For each block, whose scores are held a row per key: k q^T and v do^T; then dv += p^T do,
/// dk += ds^T q, dq += ds k.
void AttentionProducts::add_backward() {
  const std::int64_t stride = score_stride(std::min(length_, kQueryBlock));
  const std::int64_t last = (length_ - 1) / kQueryBlock * kQueryBlock;
  for (std::int64_t k0 = 0; k0 < length_; k0 += kKeyBlock) {
    for (std::int64_t q0 = last; q0 >= k0; q0 -= kQueryBlock) {
      const std::int64_t queries = std::min(kQueryBlock, length_ - q0);
      const std::int64_t keys = std::min(kKeyBlock, q0 + queries - k0);
      const Place gradient{Base::kGradient, q0 * heads_ * head_dim_};
      ProductShape scores = product(keys, queries, head_dim_, stride);
      scores.transpose_b = true;
      add(backward_, scores, qkv(1, k0), qkv(0, q0), {Base::kScores, 0});
      scores.b_stride = heads_ * head_dim_;
      add(backward_, scores, qkv(2, k0), gradient, {Base::kScores, 0});
      ProductShape d_keys = product(keys, head_dim_, queries, head_dim_);
      d_keys.a_stride = stride;
      d_keys.accumulate = q0 < last;
      add(backward_, d_keys, {Base::kRounded, 0}, qkv(0, q0), {Base::kSums, 0});
      d_keys.b_stride = heads_ * head_dim_;
      add(backward_, d_keys, {Base::kRounded, 0}, gradient, {Base::kSums, 0});
      ProductShape d_queries = product(queries, head_dim_, keys, head_dim_);
      d_queries.a_stride = stride;
      d_queries.transpose_a = true;
      d_queries.accumulate = k0 > 0;
      add(backward_, d_queries, {Base::kRounded, 0}, qkv(1, k0), {Base::kSums, 0});
    }
  }
}

void AttentionProducts::add(std::vector<Call>& calls, const ProductShape& shape, Place a, Place b,
                            Place c) {
  const auto known = std::ranges::find(shapes_, shape);
  calls.push_back({static_cast<std::size_t>(known - shapes_.begin()), a, b, c});
  if (known == shapes_.end()) shapes_.push_back(shape);
}

/// A matmul of rows of qkv, into rows `c_stride` apart.
ProductShape AttentionProducts::product(std::int64_t m, std::int64_t n, std::int64_t k,
                                        std::int64_t c_stride) const {
  const std::int64_t row = 3 * heads_ * head_dim_;
  return {.m = m,
          .n = n,
          .k = k,
          .a_stride = row,
          .b_stride = row,
          .c_stride = c_stride,
          .dtype = dtype_,
          .c_dtype = DType::kFloat32};
}

AttentionProducts::Place AttentionProducts::qkv(int part, std::int64_t position) const {
  return {Base::kQkv, (3 * position + part) * heads_ * head_dim_};
}

void AttentionProducts::prepare(Thread& thread, Memory& memory) const {
  const std::int64_t queries = std::min(length_, kQueryBlock);
  const std::int64_t keys = std::min(length_, kKeyBlock);
  const std::int64_t scores = std::max(queries * score_stride(keys), keys * score_stride(queries));
  thread.scores = random_operand(memory, {scores}, DType::kFloat32, 1.0F, 3);
  thread.rounded = random_operand(memory, {scores}, dtype_, 1.0F, 4);
  thread.sums = random_operand(memory, {keys, head_dim_}, DType::kFloat32, 1.0F, 5);
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const auto of_shape = [&](const Call& call) { return call.product == i; };
    auto call = std::ranges::find_if(forward_, of_shape);
    if (call == forward_.end()) call = std::ranges::find_if(backward_, of_shape);
    const Operands sample = operands(*call, thread, 0);
    thread.products.emplace_back(shapes_[i], std::span(&sample, 1), memory);
  }
}

Operands AttentionProducts::operands(const Call& call, const Thread& thread,
                                     std::int64_t head) const {
  const std::int64_t width = heads_ * head_dim_;
  const std::int64_t sample = head / heads_ * length_;
  const std::int64_t column = head % heads_ * head_dim_;
  const auto at = [&](const Place& place) -> std::byte* {
    switch (place.base) {
      case Base::kQkv:
        return address(qkv_, sample * 3 * width + column + place.offset);
      case Base::kGradient:
        return address(gradient_, sample * width + column + place.offset);
      case Base::kScores:
        return address(thread.scores, place.offset);
      case Base::kRounded:
        return address(thread.rounded, place.offset);
      case Base::kSums:
        return address(thread.sums, place.offset);
    }
    fail(ErrorCode::kInternal, "an operand of no known base");
  };
  return {.a = at(call.a), .b = at(call.b), .c = at(call.c)};
}

}  // namespace tessera::bench
