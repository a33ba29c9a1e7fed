#include "tessera/sharding/sample_division.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support/grid.h"
#include "tessera/sharding/strategies.h"

namespace tessera::test::sample_division_test {
namespace {

const std::vector<Mesh>& meshes() {
  static const std::vector<Mesh> all{grid(1, 1), grid(1, 3), grid(2, 2), grid(3, 1), grid(2, 3)};
  return all;
}

// Two steps of every rank read each sample once, in the order of steps, micro-steps and places.
TEST(SampleDivision, EverySampleIsReadOnce) {
  for (const Mesh& mesh : meshes()) {
    SCOPED_TRACE(shape_of(mesh));
    const SampleDivision division = divide_samples(mesh, 3, 4);
    EXPECT_EQ(division.samples_per_step(), 12 * mesh.world_size());
    std::vector<std::int64_t> read;
    for (std::int64_t step = 0; step < 2; ++step) {
      for (std::int64_t micro_step = 0; micro_step < 3; ++micro_step) {
        for (std::int64_t place = 0; place < division.places; ++place) {
          for (std::int64_t i = 0; i < division.micro_batch; ++i) {
            read.push_back(division.first_sample_of(step, micro_step, place) + i);
          }
        }
      }
    }
    std::vector<std::int64_t> expected(static_cast<std::size_t>(2 * division.samples_per_step()));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(read, expected);
  }
}

// So a step of N ranks can be compared with one rank's of N micro-steps.
TEST(SampleDivision, AStepReadsTheSameSamplesHoweverTheyAreDivided) {
  EXPECT_EQ(divide_samples(grid(1, 6), 1, 2).samples_per_step(),
            divide_samples(grid(1, 1), 6, 2).samples_per_step());
  EXPECT_EQ(divide_samples(grid(1, 3), 2, 2).first_sample_of(5, 0, 0),
            divide_samples(grid(3, 2), 2, 1).first_sample_of(5, 0, 0));
}

TEST(SampleDivision, RanksAlongSampleAxesHavePlacesOfTheirOwn) {
  for (const Mesh& mesh : meshes()) {
    for (const Strategy& strategy : strategies()) {
      SCOPED_TRACE(shape_of(mesh) + " " + strategy.name);
      const ShardNesting nesting(mesh, strategy.placement);
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const int place = sample_place(nesting, rank);
        int distance = 0;
        for (const Axis axis : nesting.order(kSampleAxes)) {
          distance += mesh.index(axis, rank) * sample_stride(nesting, axis);
        }
        EXPECT_EQ(place, distance) << "rank " << rank;
      }
    }
  }
}

TEST(SampleDivision, PlacesAreNumberedInCuttingOrder) {
  const Placement by_shard = find_strategy("hybrid_shard").placement;
  const ShardNesting nesting(grid(2, 3), by_shard);  // shards are cut first, so they are apart
  std::vector<int> places;
  for (int rank = 0; rank < 6; ++rank) places.push_back(sample_place(nesting, rank));
  EXPECT_EQ(places, (std::vector<int>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(sample_stride(nesting, Axis::kShard), 2);
  EXPECT_EQ(sample_stride(nesting, Axis::kReplicate), 1);
}

TEST(SampleDivision, OtherRanksShareAStepOnlyEvenly) {
  const SampleDivision division = divide_samples(grid(1, 4), 3, 5);
  EXPECT_EQ(division.micro_steps_among(4), 3);
  EXPECT_EQ(division.micro_steps_among(2), 6);
  EXPECT_EQ(division.micro_steps_among(3), 4);
  EXPECT_EQ(division.micro_steps_among(5), std::nullopt);
  EXPECT_EQ(divide_samples(grid(2, 2), 1, 5).micro_steps_among(3), std::nullopt);
}

TEST(SampleDivision, StepsThatReadSoManySamples) {
  const SampleDivision division = divide_samples(grid(1, 2), 1, 3);
  EXPECT_EQ(division.steps_for(0), 0);
  EXPECT_EQ(division.steps_for(1), 1);
  EXPECT_EQ(division.steps_for(6), 1);
  EXPECT_EQ(division.steps_for(7), 2);
}

}  // namespace
}  // namespace tessera::test::sample_division_test
