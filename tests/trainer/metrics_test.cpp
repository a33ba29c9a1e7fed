#include "tessera/trainer/metrics.h"

#include <gtest/gtest.h>

#include "tessera/trainer/parameter_hash.h"

namespace tessera {
namespace {

TEST(Metrics, MatmulRateIsThatOfARealMachine) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const double rate =
        measure_matmul_flops(resolved({.ranks = 2, .precision = dtype, .threads_per_rank = 1}));
    EXPECT_GT(rate, 1e6);
    EXPECT_LT(rate, 1e16);
  }
}

TEST(Metrics, MfuIsAsPaLMDefinesIt) {
  Model model;
  model.flops_per_item = 2e6;
  EXPECT_DOUBLE_EQ(model_flops_utilisation(model, 1000.0, 8e9), 0.25);
  EXPECT_EQ(model_flops_utilisation(model, 1000.0, 0.0), 0.0);
  model.flops_per_item = 0.0;
  EXPECT_EQ(model_flops_utilisation(model, 1000.0, 8e9), 0.0);
}

TEST(ParameterHash, IsSha256OfLittleEndianFloats) {
  // hashlib.sha256(struct.pack('<3f', 1.0, -2.5, 3e-8)), cut anywhere.
  const std::string expected = "c1cff5e6e5dc7e449f54d6fb68e48c04ce3a0a5fe05ed3caa12544511d62e9b3";
  EXPECT_EQ(parameters_sha256({{"a", {2}, {1.0F, -2.5F}}, {"b", {1}, {3e-8F}}}), expected);
  EXPECT_EQ(parameters_sha256({{"a", {3}, {1.0F, -2.5F, 3e-8F}}}), expected);
  EXPECT_EQ(parameters_sha256({}),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace tessera
