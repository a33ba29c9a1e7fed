// AdamW whose moments are stored in 8 bits (Dettmers et al. 2022): a step decodes them, is that of
// AdamW (adamw.h) in fp32, and encodes them again, each block of 256 elements by its largest
// magnitude. So every step's update is of moments that have not been rounded yet.
// 16.06 bytes of traffic per element with fp32 gradients: 12 of gradient and master, and 2.03 for
// each moment.
//
// This is bitsandbytes' AdamW8bit, but every parameter is in 8 bits, however small it is, blocks go
// on over matrices that are one tensor here (query, key and value; gate and up), and what else
// dynamic_codes.h says. See update_rules.h, which includes this.
struct AdamW8bit : AdamW {
  static constexpr OptimizerState kStates[] = {
      {.name = "first-moment-codes", .dtype = DType::kUInt8},
      {.name = "first-moment-absmax", .block = kCodedBlock},
      {.name = "second-moment-codes", .dtype = DType::kUInt8},
      {.name = "second-moment-absmax", .block = kCodedBlock}};
  static constexpr std::string_view kOtherNames[] = {"adamw_8bit", "adamw_bnb_8bit"};
  static constexpr bool kIsCoded = true;
  static constexpr bool kIsSigned[kStateCount] = {true, false};

  static std::int64_t count_states(std::span<const double>) { return std::size(kStates); }
  static void check(std::span<const double> values) {
    require(
        values[2] > 0.0, ErrorCode::kConfig,
        "adamw8bit: epsilon is 0, expected a number above: a second moment that is small beside "
        "others is stored as 0");
  }

  static constexpr Optimizer kRow{.name = "adamw8bit",
                                  .title = "AdamW with moments of 8 bits (Dettmers et al. 2022)",
                                  .other_names = kOtherNames,
                                  .hyperparameters = kHyperparameters,
                                  .weight_decay = AdamW::kRow.weight_decay,
                                  .states = kStates,
                                  .count_states = count_states,
                                  .check = check,
                                  .make_scalars = make_scalars};
};
