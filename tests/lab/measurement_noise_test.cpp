#include "tessera/lab/measurement_noise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MeasurementNoise, OfAQuietMachineIsNoDisturbance) {
  EXPECT_THAT(disturbances(MachineLoad{}), IsEmpty());
  EXPECT_THAT(
      disturbances(MachineLoad{.others = 0.04, .stolen = 0.02, .waiting = 0.2, .throttled = 0.01}),
      IsEmpty());
  EXPECT_THAT(disturbances(MeasurementNoise{.others = 0.02,
                                            .stolen = 0.01,
                                            .spread = 0.05,
                                            .points = 4000,
                                            .disturbed = 100,
                                            .left_out = 300}),
              IsEmpty());
}

TEST(MeasurementNoise, EachReadingOverItsLimitIsNamed) {
  EXPECT_THAT(disturbances(MachineLoad{.others = 0.5}),
              ElementsAre("other programs had 50 % of the cores"));
  EXPECT_THAT(disturbances(MachineLoad{.stolen = 0.12}),
              ElementsAre(HasSubstr("12 % of the CPUs' time to other virtual machines")));
  EXPECT_THAT(disturbances(MachineLoad{.waiting = 0.5}),
              ElementsAre(HasSubstr("wanted 50 % of the cores at once")));
  EXPECT_THAT(disturbances(MachineLoad{.throttled = 0.3}),
              ElementsAre(HasSubstr("quota held this program back in 30 % of its periods")));
  EXPECT_THAT(disturbances(MeasurementNoise{.points = 100, .disturbed = 40}),
              ElementsAre("of 100 points, 40 were disturbed in each of their repeats"));
  EXPECT_THAT(disturbances(MeasurementNoise{.spread = 0.6}),
              ElementsAre(HasSubstr("repeats of a point were 60 % apart")));
  EXPECT_THAT(disturbances(MeasurementNoise{.others = 0.9, .stolen = 0.9}).size(), 2U);
}

}  // namespace
}  // namespace tessera
