#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "autograd/op_check.h"

// What the operations compute, naively and in double precision.
namespace tessera::test {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// x (rows, I) w (O, I)^T + b
inline Doubles linear_oracle(const Doubles& x, const Doubles& w, const Doubles& b,
                             std::int64_t inputs) {
  const std::int64_t rows = std::ssize(x) / inputs;
  const std::int64_t outputs = std::ssize(w) / inputs;
  Doubles y;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < outputs; ++o) {
      double sum = b.empty() ? 0.0 : b[at(o)];
      for (std::int64_t i = 0; i < inputs; ++i)
        sum += x[at(r * inputs + i)] * w[at(o * inputs + i)];
      y.push_back(sum);
    }
  }
  return y;
}

inline Doubles norm_oracle(const Doubles& x, const Doubles& gamma, const Doubles& beta) {
  const std::int64_t c = std::ssize(gamma);
  Doubles y(x.size());
  for (std::int64_t row = 0; row < std::ssize(x); row += c) {
    double mean = 0.0;
    double variance = 0.0;
    for (std::int64_t i = 0; i < c; ++i) mean += x[at(row + i)] / static_cast<double>(c);
    for (std::int64_t i = 0; i < c; ++i) {
      variance += std::pow(x[at(row + i)] - mean, 2) / static_cast<double>(c);
    }
    for (std::int64_t i = 0; i < c; ++i) {
      y[at(row + i)] =
          (x[at(row + i)] - mean) / std::sqrt(variance + 1e-5) * gamma[at(i)] + beta[at(i)];
    }
  }
  return y;
}

/// gamma is what `weights` are above -1.
inline Doubles rms_oracle(const Doubles& x, const Doubles& weights, double epsilon) {
  const std::int64_t c = std::ssize(weights);
  Doubles y(x.size());
  for (std::int64_t row = 0; row < std::ssize(x); row += c) {
    double squares = 0.0;
    for (std::int64_t i = 0; i < c; ++i) squares += std::pow(x[at(row + i)], 2);
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(c) + epsilon);
    for (std::int64_t i = 0; i < c; ++i) {
      y[at(row + i)] = x[at(row + i)] * rstd * (1.0 + weights[at(i)]);
    }
  }
  return y;
}

inline Doubles gelu_oracle(const Doubles& x) {
  Doubles y;
  for (const double v : x) {
    y.push_back(0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))));
  }
  return y;
}

inline Doubles silu_oracle(const Doubles& x) {
  Doubles y;
  for (const double v : x) y.push_back(v / (1 + std::exp(-v)));
  return y;
}

inline Doubles relu_oracle(const Doubles& x) {
  Doubles y;
  for (const double v : x) y.push_back(std::max(v, 0.0));
  return y;
}

inline Doubles sum_oracle(const Doubles& a, const Doubles& b) {
  Doubles y(a.size());
  std::transform(a.begin(), a.end(), b.begin(), y.begin(), std::plus<>());
  return y;
}

inline Doubles product_oracle(const Doubles& a, const Doubles& b) {
  Doubles y(a.size());
  std::transform(a.begin(), a.end(), b.begin(), y.begin(), std::multiplies<>());
  return y;
}

/// Of rows of `columns`.
inline Doubles softmax_oracle(const Doubles& x, std::size_t columns) {
  Doubles y;
  for (const double v : x) y.push_back(std::exp(v));
  for (std::size_t begin = 0; begin < y.size(); begin += columns) {
    const auto row = y.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = row + static_cast<std::ptrdiff_t>(columns);
    const double sum = std::accumulate(row, end, 0.0);
    std::for_each(row, end, [&](double& v) { v /= sum; });
  }
  return y;
}

/// (B, M, K) (B, K, N) -> (B, M, N)
inline Doubles matmul_oracle(const Doubles& a, const Doubles& b, std::int64_t batch, std::int64_t m,
                             std::int64_t n, std::int64_t k) {
  Doubles c(at(batch * m * n));
  for (std::int64_t i = 0; i < batch * m * n; ++i) {
    const std::int64_t matrix = i / (m * n), column = i % n;
    for (std::int64_t j = 0; j < k; ++j) {
      c[at(i)] += a[at(i / n * k + j)] * b[at((matrix * k + j) * n + column)];
    }
  }
  return c;
}

/// (B, R, C) -> (B, C, R)
inline Doubles transposed_oracle(const Doubles& x, std::int64_t batch, std::int64_t rows,
                                 std::int64_t columns) {
  Doubles y(x.size());
  for (std::int64_t i = 0; i < batch * rows * columns; ++i) {
    const std::int64_t matrix = i / (rows * columns), row = i / columns % rows, c = i % columns;
    y[at((matrix * columns + c) * rows + row)] = x[at(i)];
  }
  return y;
}

/// (B, L, C) -> (B, C)
inline Doubles mean_rows_oracle(const Doubles& x, std::int64_t batch, std::int64_t length,
                                std::int64_t width) {
  Doubles y(at(batch * width));
  for (std::int64_t i = 0; i < batch * length * width; ++i) {
    y[at(i / (length * width) * width + i % width)] += x[at(i)] / static_cast<double>(length);
  }
  return y;
}

/// qkv (B, L, 3, H, D) -> (B, L, H, D)
inline Doubles attention_oracle(const Doubles& qkv, std::int64_t b, std::int64_t l, std::int64_t h,
                                std::int64_t d, bool causal = true,
                                const AttentionScores& scores = {}) {
  const auto element = [&](std::int64_t n, std::int64_t t, std::int64_t which, std::int64_t head,
                           std::int64_t i) {
    return qkv[at((((n * l + t) * 3 + which) * h + head) * d + i)];
  };
  Doubles out(at(b * l * h * d));
  for (std::int64_t n = 0; n < b; ++n) {
    for (std::int64_t head = 0; head < h; ++head) {
      for (std::int64_t t = 0; t < l; ++t) {
        Doubles weights;
        const std::int64_t last = causal ? t : l - 1;
        for (std::int64_t s = 0; s <= last; ++s) {
          double score = 0.0;
          for (std::int64_t i = 0; i < d; ++i) {
            score += element(n, t, 0, head, i) * element(n, s, 1, head, i);
          }
          score *= scores.scale == 0.0F ? 1.0 / std::sqrt(static_cast<double>(d))
                                        : static_cast<double>(scores.scale);
          const auto cap = static_cast<double>(scores.soft_cap);
          weights.push_back(std::exp(cap == 0.0 ? score : cap * std::tanh(score / cap)));
        }
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (std::int64_t s = 0; s <= last; ++s) {
          for (std::int64_t i = 0; i < d; ++i) {
            out[at(((n * l + t) * h + head) * d + i)] +=
                weights[at(s)] / total * element(n, s, 2, head, i);
          }
        }
      }
    }
  }
  return out;
}

/// logits (rows, V) -> losses, 0 where the target is -1
inline Doubles cross_entropy_oracle(const Doubles& logits,
                                    const std::vector<std::int32_t>& targets) {
  const std::int64_t v = std::ssize(logits) / std::ssize(targets);
  Doubles losses;
  for (std::int64_t r = 0; r < std::ssize(targets); ++r) {
    double total = 0.0;
    for (std::int64_t i = 0; i < v; ++i) total += std::exp(logits[at(r * v + i)]);
    const std::int32_t target = targets[at(r)];
    losses.push_back(target < 0 ? 0.0 : std::log(total) - logits[at(r * v + target)]);
  }
  return losses;
}

}  // namespace tessera::test
