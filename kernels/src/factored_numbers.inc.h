// Numbers of factored second moments (factored_moments.h), of a row, a column or a matrix at a
// time. No include guard: each kernel file includes it in a namespace of its own, after it has
// defined TESSERA_FACTORED_FUNCTION, what functions of its target are declared with. Math has mul,
// add, div and sqrt of fp64, each rounded once: so the CPU and CUDA give the same bits.

static_assert(kFactoredHighBits == 60 && kFactoredLowBits == 44);

/// 2^(60 - e), which squares are multiplied by to become words; 0 where all words are zero. A norm
/// below 2^-448, less than any fp32 number has, counts as zero, so that 2^(e - 104) is normal.
TESSERA_FACTORED_FUNCTION double factored_scale(double gradient_norm) {
  const double bound = gradient_norm * gradient_norm * (1.0 + 0x1p-20);
  std::uint64_t bits;
  memcpy(&bits, &bound, sizeof bits);
  const std::uint64_t exponent = bits >> 52 & 0x7ff;  // bound is below 2^(exponent - 1022)
  if (exponent < 128 || exponent == 0x7ff) return 0.0;
  bits = (1023 + 60 + 1022 - exponent) << 52;
  double scale;
  memcpy(&scale, &bits, sizeof scale);
  return scale;
}

/// The value of a sum's words; that of one without terms is 0. Multiplications by powers of two
/// round nothing.
template <typename Math>
TESSERA_FACTORED_FUNCTION double factored_sum(const std::int64_t* words, double scale) {
  if (scale == 0.0) return 0.0;
  const double unit = Math::div(1.0, scale);
  return Math::add(Math::mul(static_cast<double>(words[0]), unit),
                   Math::mul(static_cast<double>(words[1]), Math::mul(unit, 0x1p-44)));
}

TESSERA_FACTORED_FUNCTION double factored_scalar(const float* scalars, FactoredScalar scalar) {
  return static_cast<double>(scalars[static_cast<int>(scalar)]);
}

/// The new moment of a row or column of n elements. An infinite norm, or none, makes it NaN.
template <typename Math>
TESSERA_FACTORED_FUNCTION float factored_moment(float moment, double sum, std::int64_t n,
                                                double gradient_norm, const float* scalars) {
  const double decay = factored_scalar(scalars, FactoredScalar::kDecay);
  const double epsilon = factored_scalar(scalars, FactoredScalar::kEpsilon);
  const double mean = Math::add(Math::div(sum, static_cast<double>(n)), epsilon);
  const double updated = Math::add(Math::mul(decay, static_cast<double>(moment)),
                                   Math::mul(Math::add(1.0, -decay), mean));
  return static_cast<float>(Math::add(updated, Math::mul(0.0, gradient_norm)));
}

/// The factor of a column or of a vector's element (with a mean of 1), and of a row.
template <typename Math>
TESSERA_FACTORED_FUNCTION float factored_factor(float moment, double mean) {
  return static_cast<float>(
      Math::div(1.0, Math::sqrt(Math::div(static_cast<double>(moment), mean))));
}

/// Numbers that are the same for all elements of a matrix in a step.
struct FactoredRates {
  float keep;   ///< 1 - lr * weight_decay: multiplies the parameter
  float scale;  ///< multiplies u
};

/// Makes them of the sums of squares over all ranks; `parameter_squares` is null if rates do not
/// depend on the parameters' size.
template <typename Math>
TESSERA_FACTORED_FUNCTION FactoredRates factored_rates(const FactoredMatrix& matrix,
                                                       const float* scalars, double update_squares,
                                                       const double* parameter_squares) {
  const auto numel = static_cast<double>(matrix.rows * matrix.columns);
  double lr = Math::mul(static_cast<double>(matrix.rates.learning_rate_scale),
                        factored_scalar(scalars, FactoredScalar::kLearningRate));
  if (parameter_squares != nullptr) {
    const double least = factored_scalar(scalars, FactoredScalar::kParameterEpsilon);
    const double size = Math::sqrt(Math::div(*parameter_squares, numel));
    lr = Math::mul(lr, size <= least ? least : size);  // NaN stays NaN
  }
  const double excess = Math::div(Math::sqrt(Math::div(update_squares, numel)),
                                  factored_scalar(scalars, FactoredScalar::kClipThreshold));
  const double decay = Math::mul(lr, static_cast<double>(matrix.rates.weight_decay));
  return {.keep = static_cast<float>(Math::add(1.0, -decay)),
          .scale = static_cast<float>(excess <= 1.0 ? lr : Math::div(lr, excess))};
}
