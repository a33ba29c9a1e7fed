// Optimizers whose states are codes of 8 bits: against plain operations and against bitsandbytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "../../kernels/src/dynamic_codes.h"
#include "kernels/every_way.h"
#include "kernels/golden.h"
#include "tessera/core/error.h"
#include "tessera/kernels/dynamic_map.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/philox.h"

namespace tessera::coded_optimizer_test {
namespace {

constexpr double kLearningRate = 0.01;
constexpr float kGradientScale = 0.7F, kBeta1 = 0.9F, kBeta2 = 0.95F, kEpsilon = 1e-8F;
constexpr std::int64_t kStep = 3;

const Optimizer& adamw8bit() { return find_optimizer("adamw8bit"); }

std::vector<std::byte> bytes_of_digits(const std::string& digits) {
  std::vector<std::byte> bytes(digits.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

template <typename T>
std::vector<T> numbers_of(const nlohmann::json& digits) {
  const auto bytes = bytes_of_digits(digits.get<std::string>());
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

nlohmann::json golden() { return kernel_golden("adamw8bit.json"); }

/// How many bounds between codes are below x.
std::uint8_t plain_code(bool is_signed, float x) {
  const auto& map = dynamic_map(is_signed);
  if (std::isnan(x)) return is_signed ? 127 : 0;
  int code = 0;
  for (std::size_t i = 0; i + 1 < map.size(); ++i) code += x > (map[i] + map[i + 1]) / 2.0F ? 1 : 0;
  return static_cast<std::uint8_t>(code);
}

/// Encodes a block, and returns its absmax.
float plain_encode(bool is_signed, std::span<const float> values, std::uint8_t* codes) {
  float absmax = 0.0F;
  for (const float value : values) {
    if (!std::isnan(value)) absmax = std::max(absmax, std::abs(value));
  }
  const float inverse = 1.0F / std::max(absmax, 1e-38F);
  for (std::size_t i = 0; i < values.size(); ++i) {
    codes[i] = plain_code(is_signed, values[i] * inverse);
  }
  return absmax;
}

TEST(DynamicCodes, AreOfTheNearestNumber) {
  for (const bool is_signed : {true, false}) {
    const DynamicCodes& codes = dynamic_codes(is_signed);
    const auto& map = dynamic_map(is_signed);
    const auto check = [&](float x) {
      ASSERT_EQ(codes.code_of(x), plain_code(is_signed, x)) << x << (is_signed ? " signed" : "");
    };
    for (std::size_t i = 0; i + 1 < map.size(); ++i) {
      const float middle = (map[i] + map[i + 1]) / 2.0F;
      for (const float x :
           {map[i], middle, std::nextafter(middle, -2.0F), std::nextafter(middle, 2.0F)}) {
        check(x);
      }
      EXPECT_EQ(codes.code_of(map[i]), i);
    }
    std::mt19937 generator(5);
    for (int i = 0; i < 20000; ++i)
      check(std::bit_cast<float>(static_cast<std::uint32_t>(generator())));
    for (int i = 0; i < 20000; ++i) {
      const auto bits = static_cast<std::uint32_t>(0x33000000U + generator() % 0x0d000000U);
      check(std::bit_cast<float>(bits));
      check(-std::bit_cast<float>(bits));
    }
    for (const float x : {0.0F, -0.0F, 1.0F, -1.0F, 2.0F, INFINITY, -INFINITY, NAN, 1e-45F}) {
      check(x);
    }
  }
}

TEST(DynamicCodes, AreThoseOfBitsandbytes) {
  for (const bool is_signed : {true, false}) {
    const auto of = golden().at("codes").at(is_signed ? "signed" : "unsigned");
    const auto input = numbers_of<float>(of.at("input"));
    const auto codes = numbers_of<std::uint8_t>(of.at("codes"));
    const auto absmax = numbers_of<float>(of.at("absmax"));
    const auto values = numbers_of<float>(of.at("values"));
    ASSERT_EQ(input.size(), 6U * 256U);
    for (std::size_t block = 0; block < absmax.size(); ++block) {
      const std::span of_block = std::span(input).subspan(256 * block, 256);
      std::vector<std::uint8_t> found(256);
      EXPECT_EQ(plain_encode(is_signed, of_block, found.data()), absmax[block]);
      for (std::size_t i = 0; i < 256; ++i) {
        ASSERT_EQ(found[i], codes[256 * block + i]) << block << ' ' << i << ' ' << of_block[i];
        const float value = dynamic_map(is_signed)[found[i]] * absmax[block];
        ASSERT_EQ(value, values[256 * block + i]);
      }
    }
  }
}

/// A shard: what a step reads and writes.
template <typename G, typename P = bfloat16>
struct State {
  std::vector<float> master;
  std::vector<G> gradient;
  std::vector<std::uint8_t> codes[2];
  std::vector<float> absmax[2];
  std::vector<P> parameter;
  std::vector<float> scalars, gradient_scale{kGradientScale};
  std::vector<std::int64_t> skip{0};
  std::vector<std::int64_t> rounding_key{};  ///< with stochastic rounding

  explicit State(std::int64_t n)
      : master(random_values<float>(n, 1)),
        gradient(random_values<G>(n, 4)),
        parameter(static_cast<std::size_t>(n)) {
    const auto blocks = (n + kCodedBlock - 1) / kCodedBlock;
    std::mt19937 generator(9);
    for (int s = 0; s < 2; ++s) {
      for (std::int64_t i = 0; i < n; ++i) {
        codes[s].push_back(static_cast<std::uint8_t>(generator() % 256));
      }
      absmax[s] = random_values<float>(blocks, 3, s == 0 ? 0.1F : 1e-3F);
      for (float& value : absmax[s]) value = std::abs(value);
    }
    const auto of_step =
        optimizer_scalars(adamw8bit(), hyperparameter_values(adamw8bit()), kLearningRate, kStep);
    scalars.assign(of_step.begin(), of_step.end());
  }

  /// Everything that a step writes, for comparing bits.
  std::vector<float> written() const {
    std::vector<float> all(master);
    for (int s = 0; s < 2; ++s) {
      all.insert(all.end(), codes[s].begin(), codes[s].end());
      all.insert(all.end(), absmax[s].begin(), absmax[s].end());
    }
    for (const P p : parameter) all.push_back(as_float(p));
    return all;
  }
};

using Segments = std::vector<OptimizerSegment>;

/// Tensors of odd sizes, each from the beginning of a block, with and without weight decay.
Segments segments_of(std::int64_t n) {
  Segments segments;
  const std::int64_t sizes[] = {256, 1, 700, 255, 3000, 257};
  for (std::int64_t begin = 0; begin < n;) {
    const std::int64_t size = sizes[segments.size() % std::size(sizes)];
    segments.push_back({begin, std::min(n, begin + size), segments.size() % 2 == 0 ? 0.1F : 0.0F});
    begin += (size + kCodedBlock - 1) / kCodedBlock * kCodedBlock;
  }
  return segments;
}

Segments narrow(const Segments& segments, std::int64_t begin, std::int64_t count) {
  Segments inside;
  for (const OptimizerSegment& s : segments) {
    const std::int64_t from = std::max(s.begin, begin) - begin;
    const std::int64_t to = std::min(s.end, begin + count) - begin;
    if (from < to) inside.push_back({from, to, s.rates});
  }
  return inside;
}

/// A step on the shard [begin, begin + count), of whole blocks, after `change`.
template <typename G, typename P, typename Change>
void step_on(State<G, P>& state, const Segments& segments, std::int64_t begin, std::int64_t count,
             const Change& change) {
  const Segments inside = narrow(segments, begin, count);
  const std::int64_t blocks = (count + kCodedBlock - 1) / kCodedBlock;
  std::vector<TensorView> views;
  for (int s = 0; s < 2; ++s) {
    views.push_back(view_of(state.codes[s], begin, count));
    views.push_back(view_of(state.absmax[s], begin / kCodedBlock, blocks));
  }
  OptimizerStepArgs args{
      .optimizer = &adamw8bit(),
      .master = view_of(state.master, begin, count),
      .gradient = view_of(state.gradient, begin, count),
      .states = views,
      .parameter = view_of(state.parameter, begin, count),
      .segments = inside,
      .scalars = view_of(state.scalars),
      .gradient_scale = view_of(state.gradient_scale),
      .skip = view_of(state.skip),
      .stochastic_rounding = !state.rounding_key.empty(),
      .rounding_key = state.rounding_key.empty() ? TensorView() : view_of(state.rounding_key),
      .first_index = begin};
  change(args);
  StreamUnderTest stream;
  kernels_under_test().optimizer_step(args, stream);
}
template <typename G, typename P>
void step_on(State<G, P>& state, const Segments& segments, std::int64_t begin, std::int64_t count) {
  step_on(state, segments, begin, count, [](OptimizerStepArgs&) {});
}

/// AdamW's step, as optimizer_test.cpp holds it to the formula.
void plain_adamw(float g, const SegmentRates& rates, const std::vector<float>& scalars, float& p,
                 float& m, float& v) {
  const auto decay = static_cast<float>(1.0 - static_cast<double>(scalars[0]) *
                                                  static_cast<double>(rates.weight_decay));
  g = kGradientScale * g;
  const float new_g = (1.0F - kBeta1) * g;
  m = std::fma(kBeta1, m, new_g);
  const float scaled_g = (1.0F - kBeta2) * g;
  const float square = scaled_g * g;
  v = std::fma(kBeta2, v, square);
  const float root = std::sqrt(v);
  const float denominator = std::fma(root, scalars[2], kEpsilon);
  const float decayed = decay * p;
  const float ratio = m / denominator;
  p = std::fma(-scalars[1], ratio, decayed);
}

template <typename G, typename P>
void plain_step(State<G, P>& state, const Segments& segments) {
  for (const OptimizerSegment& segment : segments) {
    for (std::int64_t at = segment.begin; at < segment.end; at += kCodedBlock) {
      const auto block = static_cast<std::size_t>(at / kCodedBlock);
      const auto begin = static_cast<std::size_t>(at);
      const auto end = static_cast<std::size_t>(std::min(segment.end, at + kCodedBlock));
      std::vector<float> values[2];
      for (std::size_t i = begin; i < end; ++i) {
        float moments[2];
        for (int s = 0; s < 2; ++s) {
          moments[s] = dynamic_map(s == 0)[state.codes[s][i]] * state.absmax[s][block];
        }
        plain_adamw(as_float(state.gradient[i]), segment.rates, state.scalars, state.master[i],
                    moments[0], moments[1]);
        for (int s = 0; s < 2; ++s) values[s].push_back(moments[s]);
        state.parameter[i] = P(state.master[i]);
      }
      for (int s = 0; s < 2; ++s) {
        state.absmax[s][block] = plain_encode(s == 0, values[s], state.codes[s].data() + begin);
      }
    }
  }
}

template <typename G, typename P = bfloat16>
void check_bits(std::int64_t n) {
  SCOPED_TRACE(n);
  State<G, P> expected(n);
  State<G, P> state = expected;
  plain_step(expected, segments_of(n));
  const auto start = state;
  const auto written = run_every_way([&] {
    state = start;
    step_on(state, segments_of(n), 0, n);
    return state.written();
  });
  EXPECT_TRUE(same_bits(written, expected.written()));
}

TEST(CodedOptimizer, GivesTheBitsOfItsOperations) {
  for (const std::int64_t n : {0, 1, 3, 8, 255, 256, 257, 1009, 9001}) {
    check_bits<float>(n);
    check_bits<bfloat16>(n);
    check_bits<float16, float16>(n);
  }
  check_bits<float>(testing_cuda() ? 20011 : 60013);
}

TEST(CodedOptimizer, TakesMoreSegmentsThanOneLaunch) {
  const std::int64_t n = 100 * 256;
  State<float> expected(n);
  State<float> state = expected;
  Segments segments;
  for (std::int64_t begin = 0; begin < n; begin += 256) {  // some of them empty
    segments.push_back({begin, begin + begin / 256 % 12, begin % 512 == 0 ? 0.1F : 0.0F});
  }
  plain_step(expected, segments);
  step_on(state, segments, 0, n);
  EXPECT_TRUE(same_bits(state.written(), expected.written()));
}

TEST(CodedOptimizer, ShardsOfWholeBlocksChangeNoBit) {
  const std::int64_t n = 70 * 256;
  const Segments segments = segments_of(n);
  for (const bool at_random : {false, true}) {
    State<float> start(n);
    if (at_random) start.rounding_key = words_of({.seed = 11, .stream = stream_of("rounding", 3)});
    State<float> expected = start;
    step_on(expected, segments, 0, n);
    if (at_random) {
      for (std::size_t i = 0; i < expected.master.size(); ++i) {
        const auto word = random_word({.seed = 11, .stream = stream_of("rounding", 3)},
                                      static_cast<std::int64_t>(i));
        const bool inside = std::ranges::any_of(segments, [&](const OptimizerSegment& s) {
          return std::cmp_greater_equal(i, s.begin) && std::cmp_less(i, s.end);
        });
        EXPECT_EQ(expected.parameter[i].bits,
                  inside ? bf16_rounded_at_random(expected.master[i], word) : 0);
      }
    }
    std::mt19937 generator(11);
    for (int trial = 0; trial < 5; ++trial) {
      State<float> state = start;
      for (std::int64_t begin = 0; begin < n;) {
        const auto count = std::min(n - begin, static_cast<std::int64_t>(generator() % 20) * 256);
        step_on(state, segments, begin, count);
        begin += count;
      }
      EXPECT_TRUE(same_bits(state.written(), expected.written())) << "trial " << trial;
    }
  }
}

TEST(CodedOptimizer, LeavesAloneWhatItIsNotGiven) {
  const State<float> before(1024);
  State<float> state = before;
  step_on(state, {{256, 300, 0.0F}}, 0, 1024);
  for (std::size_t i = 0; i < 1024; ++i) {
    const bool inside = i >= 256 && i < 300;
    EXPECT_EQ(state.master[i] != before.master[i], inside) << i;
    EXPECT_EQ(state.parameter[i].bits != 0, inside) << i;
    if (inside) continue;
    for (int s = 0; s < 2; ++s) {
      EXPECT_EQ(state.codes[s][i], before.codes[s][i]) << i;
      if (i / 256 == 1) continue;
      EXPECT_EQ(state.absmax[s][i / 256], before.absmax[s][i / 256]);
    }
  }
  State<float> skipped = before;
  skipped.skip = {1};
  step_on(skipped, segments_of(1024), 0, 1024);
  EXPECT_TRUE(same_bits(skipped.written(), before.written()));
  // Without a parameter, the rest is the same.
  State<float> with = before, without = before;
  step_on(with, segments_of(1024), 0, 1024);
  step_on(without, segments_of(1024), 0, 1024,
          [](OptimizerStepArgs& args) { args.parameter = {}; });
  without.parameter = with.parameter;
  EXPECT_TRUE(same_bits(without.written(), with.written()));
}

/// What is not a number becomes 0 in the moments, but shows in the parameter.
TEST(CodedOptimizer, GradientsThatAreNotFiniteHaveTheSameBitsEverywhere) {
  State<float> expected(1024);
  expected.gradient[5] = NAN;
  expected.gradient[300] = INFINITY;
  expected.gradient[301] = -INFINITY;
  std::fill(expected.gradient.begin() + 512, expected.gradient.begin() + 768, 0.0F);
  for (int s = 0; s < 2; ++s) expected.absmax[s][2] = 0.0F;
  State<float> state = expected;
  const Segments all{{0, 1024, 0.0F}};
  plain_step(expected, all);
  step_on(state, all, 0, 1024);
  for (int s = 0; s < 2; ++s) {
    EXPECT_EQ(state.codes[s], expected.codes[s]);
    EXPECT_TRUE(same_bits(state.absmax[s], expected.absmax[s]));
    EXPECT_EQ(state.codes[s][5], s == 0 ? 127 : 0);
    EXPECT_EQ(state.absmax[s][1], INFINITY);
    EXPECT_EQ(state.absmax[s][2], 0.0F);
    EXPECT_EQ(state.codes[s][600], s == 0 ? 127 : 0);
  }
  EXPECT_TRUE(std::isnan(state.master[5]));
  EXPECT_TRUE(std::isfinite(state.master[4]));
}

TEST(CodedOptimizer, RejectsWhatDoesNotFit) {
  const auto expect_refused = [&](const auto& change) {
    State<float> state(1000);
    EXPECT_THROW(step_on(state, {}, 0, 1000, change), Error);
  };
  State<float> other(1000);
  const Segments inside_of_block{{100, 200, 0.0F}};
  const auto views = [&](std::int64_t blocks, bool swapped) {
    std::vector<TensorView> all;
    for (int s = 0; s < 2; ++s) {
      all.push_back(view_of(other.codes[s]));
      all.push_back(view_of(other.absmax[s], 0, blocks));
      if (swapped) std::swap(all[all.size() - 1], all[all.size() - 2]);
    }
    return all;
  };
  const auto short_views = views(3, false), swapped_views = views(4, true);
  expect_refused([&](OptimizerStepArgs& args) { args.segments = inside_of_block; });
  expect_refused([&](OptimizerStepArgs& args) { args.states = short_views; });
  expect_refused([&](OptimizerStepArgs& args) { args.states = swapped_views; });
  expect_refused([&](OptimizerStepArgs& args) { args.states = args.states.first(2); });
}

/// Twelve steps as bitsandbytes takes them: golden/make_adamw8bit_golden.py. The arithmetic in
/// between is rounded otherwise, so a moment half way between two codes may get the other one.
TEST(CodedOptimizerGolden, StepsStayWithBitsandbytes) {
  const auto run = golden().at("run");
  std::vector<float> master = numbers_of<float>(run.at("initial")), scale{1.0F};
  const auto n = static_cast<std::int64_t>(master.size());
  std::vector<std::pair<std::string_view, double>> given;
  for (const char* const name : {"beta1", "beta2", "epsilon"}) {
    given.emplace_back(name, run.at(name).get<double>());
  }
  const auto values = hyperparameter_values(adamw8bit(), given);
  std::vector<std::uint8_t> codes[2];
  std::vector<float> absmax[2];
  std::vector<TensorView> views;
  for (int s = 0; s < 2; ++s) {
    codes[s].resize(master.size());
    absmax[s].resize((master.size() + 255) / 256);
    views.push_back(view_of(codes[s]));
    views.push_back(view_of(absmax[s]));
  }
  const Segments segments{{0, n, run.at("weight_decay").get<float>()}};
  StreamUnderTest stream;
  double largest = 0.0;
  for (std::size_t step = 0; step < run.at("steps").size(); ++step) {
    auto gradient = numbers_of<float>(run.at("gradients").at(step));
    const auto of_step =
        optimizer_scalars(adamw8bit(), values, run.at("learning_rate").get<double>(),
                          static_cast<std::int64_t>(step) + 1);
    std::vector<float> scalars(of_step.begin(), of_step.end());
    kernels_under_test().optimizer_step({.optimizer = &adamw8bit(),
                                         .master = view_of(master),
                                         .gradient = view_of(gradient),
                                         .states = views,
                                         .segments = segments,
                                         .scalars = view_of(scalars),
                                         .gradient_scale = view_of(scale)},
                                        stream);
    const auto expected = numbers_of<float>(run.at("steps").at(step));
    for (std::size_t i = 0; i < master.size(); ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(master[i] - expected[i])));
      EXPECT_NEAR(master[i], expected[i], 1e-6) << "step " << step << ", " << i;
    }
  }
  RecordProperty("largest_difference", std::to_string(largest));
  EXPECT_EQ(codes[0], numbers_of<std::uint8_t>(run.at("first codes")));
  EXPECT_EQ(codes[1], numbers_of<std::uint8_t>(run.at("second codes")));
}

}  // namespace
}  // namespace tessera::coded_optimizer_test
