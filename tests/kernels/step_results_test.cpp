#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/every_way.h"
#include "tessera/kernels/kernel_table.h"
#include "tessera/kernels/norm_tree.h"

namespace tessera {
namespace {

double sum_of(std::vector<float> x) {
  double out = -1.0;
  StreamUnderTest stream;
  kernels_under_test().sum({.x = view_of(x), .out = TensorView(&out, DType::kFloat64, Shape{1})},
                           stream);
  return out;
}

TEST(Sum, AddsInOrder) {
  // fp64 holds 1e17 + 1 no better than 1e17: any other order gives another sum.
  EXPECT_EQ(sum_of({1e17F, 1.0F, -1e17F, 1.0F}), 1.0);
  for (const std::int64_t n : {0, 1, 15, 16, 17, 255, 2047, 2048, 2049, 4096, 10007}) {
    auto x = random_values<float>(n, 3);
    for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 1e12F;
    double expected = 0.0;
    for (const float value : x) expected += static_cast<double>(value);
    EXPECT_EQ(sum_of(x), expected) << n;
  }
}

TEST(Sum, NoValueIsLost) {
  EXPECT_TRUE(std::isnan(sum_of({1.0F, NAN, 2.0F})));
  EXPECT_EQ(sum_of({1.0F, INFINITY, 2.0F}), INFINITY);
}

float loss_scale_of(std::vector<std::int64_t> counts) {
  float scale = -1.0F;
  StreamUnderTest stream;
  kernels_under_test().loss_scale(
      {.counts = view_of(counts), .scale = TensorView(&scale, DType::kFloat32, Shape{1})}, stream);
  return scale;
}

TEST(LossScale, IsTheReciprocalOfAllCounts) {
  EXPECT_EQ(loss_scale_of({4}), 0.25F);
  EXPECT_EQ(loss_scale_of({0, 3, 0, 4}), static_cast<float>(1.0 / 7.0));
  for (const std::int64_t n : {31, 32, 33, 1000}) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(n));
    std::iota(counts.begin(), counts.end(), std::int64_t{1} << 33);  // more than an fp32 can count
    const auto total =
        static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    EXPECT_EQ(loss_scale_of(counts), static_cast<float>(1.0 / total)) << n;
  }
}

TEST(LossScale, IsZeroIfNothingCounts) {
  EXPECT_EQ(loss_scale_of({}), 0.0F);
  EXPECT_EQ(loss_scale_of({0, 0, 0}), 0.0F);
}

/// Messages of a step, and the additions that finish the trees of units whose blocks are dealt to
/// the ranks at random.
struct Step {
  std::int64_t ranks, message, micro_steps;
  std::vector<double> values;
  std::vector<std::int32_t> additions, units{0}, roots;
  std::vector<double> squares;  // of each unit, by the tree's definition

  Step(std::int64_t rank_count, std::int64_t unit_count, std::int64_t steps, unsigned seed)
      : ranks(rank_count), message(steps), micro_steps(steps) {
    std::mt19937 generator(seed);
    std::vector<std::vector<BlockRange>> ranges(static_cast<std::size_t>(unit_count));
    std::vector<std::int64_t> offset(ranges.size());
    std::vector<std::vector<double>> blocks(ranges.size());
    std::lognormal_distribution<double> sizes(0.0, 8.0);  // every rounding differs
    for (std::size_t u = 0; u < ranges.size(); ++u) {
      std::int64_t first = 0, most_nodes = 0;
      for (std::int64_t r = 0; r < ranks; ++r) {
        // Some ranks have no part of a unit, and some units have no blocks.
        const std::int64_t count =
            u % 5 == 4 ? 0 : std::max(0, static_cast<int>(generator() % 60) - 5);
        ranges[u].push_back({first, count});
        first += count;
        most_nodes = std::max<std::int64_t>(most_nodes, std::ssize(norm_nodes(ranges[u].back())));
      }
      offset[u] = message;
      message += most_nodes;
      for (std::int64_t b = 0; b < first; ++b) blocks[u].push_back(sizes(generator));
    }
    values.resize(static_cast<std::size_t>(ranks * message));
    auto scratch = static_cast<std::int32_t>(values.size());
    for (std::size_t u = 0; u < ranges.size(); ++u) {
      std::vector<std::int32_t> first_value;
      for (std::int64_t r = 0; r < ranks; ++r) {
        const auto begin = static_cast<std::size_t>(r * message + offset[u]);
        first_value.push_back(static_cast<std::int32_t>(begin));
        const BlockRange range = ranges[u][static_cast<std::size_t>(r)];
        const auto size = norm_nodes(range).size();
        reduce_to_norm_nodes(std::span(blocks[u]).subspan(static_cast<std::size_t>(range.first),
                                                          static_cast<std::size_t>(range.count)),
                             range, std::span(values).subspan(begin, size));
      }
      std::vector<NormAddition> rows;
      roots.push_back(plan_norm_sum(ranges[u], first_value, scratch, rows));
      for (const NormAddition& row : rows) {
        additions.insert(additions.end(), {row.target, row.left, row.right});
      }
      units.push_back(static_cast<std::int32_t>(additions.size() / 3));
      const BlockRange whole{0, std::ssize(blocks[u])};
      std::vector<double> nodes(kNormNodes);
      reduce_to_norm_nodes(blocks[u], whole, nodes);
      squares.push_back(combine_norm_nodes({&whole, 1}, nodes));
    }
    values.resize(static_cast<std::size_t>(scratch));
    for (std::int64_t r = 0; r < ranks; ++r) {
      for (std::int64_t m = 0; m < micro_steps; ++m) loss(r, m) = sizes(generator);
    }
  }

  double& loss(std::int64_t rank, std::int64_t micro_step) {
    return values[static_cast<std::size_t>(rank * message + micro_step)];
  }
  double sum_of_losses() {
    double sum = 0.0;
    for (std::int64_t m = 0; m < micro_steps; ++m) {
      for (std::int64_t r = 0; r < ranks; ++r) sum += loss(r, m);
    }
    return sum;
  }
  double norm() const {
    double sum = 0.0;
    for (const double square : squares) sum += square;
    return std::sqrt(sum);
  }
};

struct Results {
  double losses, norm;
  float clip_factor;
};

Results results_of(Step step, double clip_norm) {
  std::vector<double> results(2, -1.0);
  std::vector<float> clip_factor(1, -1.0F);
  StreamUnderTest stream;
  const auto rows = static_cast<std::int64_t>(step.additions.size()) / 3;
  kernels_under_test().step_results({.values = view_of(step.values),
                                     .additions = view_of(step.additions, Shape{rows, 3}),
                                     .units = view_of(step.units),
                                     .roots = view_of(step.roots),
                                     .ranks = step.ranks,
                                     .message = step.message,
                                     .micro_steps = step.micro_steps,
                                     .clip_norm = clip_norm,
                                     .results = view_of(results),
                                     .clip_factor = view_of(clip_factor)},
                                    stream);
  return {results[0], results[1], clip_factor[0]};
}

TEST(StepResults, FinishesRandomTreesWithTheBitsOfTheWhole) {
  for (const std::int64_t ranks : {1, 2, 3, 8}) {
    for (const std::int64_t units : {1, 2, 31, 33, 300}) {
      Step step(ranks, units, 1 + units % 3, static_cast<unsigned>(ranks * 1000 + units));
      const Results results = results_of(step, 0.0);
      EXPECT_EQ(results.losses, step.sum_of_losses()) << ranks << " ranks, " << units << " units";
      EXPECT_EQ(results.norm, step.norm()) << ranks << " ranks, " << units << " units";
      EXPECT_EQ(results.clip_factor, 1.0F);
    }
  }
}

TEST(StepResults, ClipsLargeGradientsOnly) {
  const Step step(3, 4, 2, 7);
  const double norm = step.norm();
  EXPECT_EQ(results_of(step, norm * 2).clip_factor, 1.0F);
  EXPECT_EQ(results_of(step, norm / 2).clip_factor, static_cast<float>(norm / 2 / (norm + 1e-6)));
}

TEST(StepResults, AreZeroWithoutUnits) {
  const Step step(2, 0, 2, 7);
  const Results results = results_of(step, 1.0);
  EXPECT_EQ(results.norm, 0.0);
  EXPECT_EQ(results.clip_factor, 1.0F);
}

TEST(StepResults, ShowNaN) {
  Step step(2, 3, 2, 7);
  step.values[static_cast<std::size_t>(step.additions[1])] = NAN;  // a summand
  const Results results = results_of(step, 1.0);
  EXPECT_TRUE(std::isnan(results.norm));
  EXPECT_TRUE(std::isnan(results.clip_factor));
  EXPECT_FALSE(std::isnan(results.losses));
  step.loss(1, 0) = NAN;
  EXPECT_TRUE(std::isnan(results_of(step, 1.0).losses));
}

}  // namespace
}  // namespace tessera
