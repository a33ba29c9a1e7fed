#include "tessera/kernels/fp8_history.h"
#include "support/extent.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/support.h"
#include "tessera/kernels/fp8.h"

// Histories of delayed scaling, held to TransformerEngine's rule restated in fp32.
namespace tessera::fp8_history_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t word_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// One tensor of TransformerEngine's DelayedScaling: the step's magnitude is in the first place of
/// a history, and fmax() ignores NaN.
class Oracle {
 public:
  Oracle(std::size_t length, Fp8Format format) : history_(length), largest_(largest_of(format)) {}

  void roll(float newest, Fp8HistoryRule rule, int margin) {
    history_[0] = newest;
    float amax = newest;
    if (rule == Fp8HistoryRule::kMax) {
      amax = 0.0F;
      for (const float magnitude : history_) amax = std::fmax(amax, magnitude);
    }
    if (newest != 0.0F) {
      for (std::size_t i = 1; i < history_.size(); ++i) history_[i - 1] = history_[i];
      history_.back() = newest;
    }
    history_[0] = 0.0F;
    if (std::isfinite(amax) && amax > 0.0F) {
      scale_ = largest_ / amax / std::exp2(static_cast<float>(margin));
      if (std::isinf(scale_)) scale_ = std::numeric_limits<float>::max();
    }
  }
  float scale() const { return scale_; }

 private:
  std::vector<float> history_;
  float largest_;
  float scale_ = 1.0F;
};

/// A magnitude as training gives them, and now and then one that is not.
float magnitude(std::uint64_t i) {
  const std::uint64_t hash = (i + 1) * 0x9e3779b97f4a7c15U;
  switch ((hash >> 40) % 29) {
    case 0:
    case 1:
      return 0.0F;
    case 2:
      return kInfinity;
    case 3:
      return std::numeric_limits<float>::quiet_NaN();
    case 4:
      return 0x1p-140F;
    default:
      return std::exp2(static_cast<float>((hash >> 50) % 40) - 25.0F) *
             (1.0F + static_cast<float>((hash >> 20) & 255) / 256.0F);
  }
}

TEST(Fp8History, IsTransformerEnginesRuleOver2000Steps) {
  constexpr std::array kFormats{Fp8Format::kE4M3, Fp8Format::kE5M2, Fp8Format::kE4M3};
  constexpr std::size_t kTensors = kFormats.size();
  const int steps = test::kSanitized ? 20 : testing_cuda() ? 60 : 2000;
  for (const int length : {1, 2, 16, 300}) {
    for (const Fp8HistoryRule rule : {Fp8HistoryRule::kMax, Fp8HistoryRule::kMostRecent}) {
      for (const int margin : {0, 3}) {
        SCOPED_TRACE(testing::Message() << length << " steps, margin " << margin);
        std::vector<Oracle> oracles;
        std::vector<std::int32_t> words, newest(kTensors),
            history(kTensors * static_cast<std::size_t>(length - 1));
        for (const Fp8Format format : kFormats) {
          oracles.emplace_back(static_cast<std::size_t>(length), format);
          words.push_back(static_cast<std::int32_t>(word_of(largest_of(format))));
        }
        StreamUnderTest stream;
        for (int step = 0; step < steps; ++step) {
          for (std::size_t t = 0; t < kTensors; ++t) {
            const float m = magnitude(static_cast<std::uint64_t>(step) * kTensors + t);
            newest[t] = static_cast<std::int32_t>(word_of(m));
            oracles[t].roll(m, rule, margin);
          }
          const TensorView rows = view_of(history).reshape(Shape{kTensors, length - 1});
          kernels_under_test().roll_fp8_history({.newest = view_of(newest),
                                                 .history = rows,
                                                 .scale_words = view_of(words),
                                                 .rule = rule,
                                                 .margin = margin},
                                                stream);
          for (std::size_t t = 0; t < kTensors; ++t) {
            ASSERT_EQ(newest[t], 0);
            const float scale =
                fp8_scale(static_cast<std::uint32_t>(words[t]), kFormats[t], Fp8Scales::kExact);
            ASSERT_EQ(scale, std::min(oracles[t].scale(), kLargestFp8Scale)) << step << ' ' << t;
          }
        }
      }
    }
  }
}

TEST(Fp8History, AMarginNeverMakesAScaleThatIsNoNumber) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(fp8_scale_word(word_of(0x1p120F), 7, 64), word_of(kLargest));
  EXPECT_EQ(fp8_scale_word(word_of(kLargest), 7, 0), word_of(kLargest));
  EXPECT_EQ(fp8_scale_word(word_of(1.5F), 7, 2), word_of(6.0F));
  EXPECT_EQ(fp8_scale_word(0, 7, 2), 7U);
  EXPECT_EQ(fp8_scale_word(word_of(kInfinity), 7, 2), 7U);
}

TEST(Fp8History, AmaxAddsToWhatIsThere) {
  std::vector<float> x{0.5F, -2.0F};
  StreamUnderTest stream;
  std::vector<std::int32_t> amax{static_cast<std::int32_t>(word_of(1.0F))};
  const AmaxArgs args{.x = view_of(x), .amax = view_of(amax), .accumulate = true};
  kernels_under_test().amax(args, stream);
  EXPECT_EQ(amax.front(), static_cast<std::int32_t>(word_of(2.0F)));
  x[1] = 0.25F;
  kernels_under_test().amax(args, stream);
  EXPECT_EQ(amax.front(), static_cast<std::int32_t>(word_of(2.0F)));
}

}  // namespace
}  // namespace tessera::fp8_history_test
