// Adafactor (Shazeer and Stern 2018) as transformers.optimization.Adafactor computes it without a
// first moment: factored_moments.h has its formulas. The defaults are those with which
// transformers' Trainer runs it: the learning rate of the run, whatever the parameters' size.
struct Adafactor {
  static constexpr Hyperparameter kHyperparameters[] = {
      {.name = "epsilon1", .value = 1e-30, .meaning = "added to squared gradients"},
      {.name = "epsilon2",
       .value = 1e-3,
       .meaning = "least root mean square of a parameter, with scale_parameter"},
      {.name = "clip_threshold",
       .value = 1.0,
       .meaning = "largest root mean square of a matrix's update"},
      {.name = "decay_rate",
       .value = 0.8,
       .meaning = "moments decay by 1 - step^-decay_rate in a step"},
      {.name = "scale_parameter",
       .is_flag = true,
       .meaning = "learning rates times the root mean square of each parameter"},
      {.name = "relative_step",
       .is_flag = true,
       .meaning = "a learning rate of 1 / sqrt(step), at most 0.01, in place of the run's"},
      {.name = "warmup_init",
       .is_flag = true,
       .meaning = "with relative_step: at most 1e-6 * step instead"}};
  static constexpr OptimizerState kStates[] = {{.name = "moments", .block = kFactoredBlock}};
  static constexpr std::string_view kOtherNames[] = {"Adafactor"};

  static std::int64_t count_states(std::span<const double>) { return std::size(kStates); }
  static void check(std::span<const double> values) {
    require(values[2] > 0.0, ErrorCode::kConfig,
            "adafactor: clip_threshold is 0, expected a number above");
    require(values[6] == 0.0 || values[5] != 0.0, ErrorCode::kConfig,
            "adafactor: warmup_init needs relative_step");
  }
  static OptimizerScalars make_scalars(std::span<const double> values, float learning_rate,
                                       std::int64_t step) {
    const auto t = static_cast<double>(step);
    const auto at = [](FactoredScalar scalar) { return static_cast<std::size_t>(scalar); };
    OptimizerScalars scalars{};
    scalars[at(FactoredScalar::kLearningRate)] = learning_rate;
    if (values[5] != 0.0) {
      const double most = values[6] != 0.0 ? 1e-6 * t : 1e-2;
      scalars[at(FactoredScalar::kLearningRate)] =
          static_cast<float>(std::min(most, 1.0 / std::sqrt(t)));
    }
    scalars[at(FactoredScalar::kDecay)] = static_cast<float>(1.0 - std::pow(t, -values[3]));
    scalars[at(FactoredScalar::kEpsilon)] = static_cast<float>(values[0]);
    scalars[at(FactoredScalar::kParameterEpsilon)] = static_cast<float>(values[1]);
    scalars[at(FactoredScalar::kClipThreshold)] = static_cast<float>(values[2]);
    return scalars;
  }

  static constexpr Optimizer kRow{.name = "adafactor",
                                  .title = "Adafactor (Shazeer and Stern 2018)",
                                  .other_names = kOtherNames,
                                  .hyperparameters = kHyperparameters,
                                  .weight_decay = 0.0,
                                  .states = kStates,
                                  .count_states = count_states,
                                  .check = check,
                                  .make_scalars = make_scalars};
};
