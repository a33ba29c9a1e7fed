#include "fp8_settings.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "setting_rows.h"
#include "tessera/core/cuda_device.h"
#include "tessera/core/error.h"
#include "tessera/sharding/scales.h"

namespace tessera {

// The values of the members' types; see bound_setting.h.
constexpr auto choices_of(Fp8Recipe) {
  return std::array{Fp8Recipe::kCurrent, Fp8Recipe::kDelayed};
}
constexpr auto choices_of(Fp8HistoryRule) {
  return std::array{Fp8HistoryRule::kMax, Fp8HistoryRule::kMostRecent};
}
constexpr auto choices_of(Fp8Formats) { return std::array{Fp8Formats::kHybrid, Fp8Formats::kE4M3}; }
constexpr auto choices_of(Fp8Scales) {
  return std::array{Fp8Scales::kPowerOfTwo, Fp8Scales::kExact};
}
constexpr auto choices_of(GatherFormat) {
  return std::array{GatherFormat::kE4M3, GatherFormat::kBf16};
}
static void parse_into(std::string_view text, Fp8ProductSet& products) {
  products = parse_fp8_products(text);
}
static void parse_into(std::string_view text, Fp8Bf16Blocks& blocks) {
  blocks = parse_fp8_bf16_blocks(text);
}

namespace {

constexpr int kOldestFp8 = 89;  // compute capability, as a number of two digits

using O = TrainerOptions;
using nlohmann::json;

void check_products(const json& value) { parse_fp8_products(value.get<std::string>()); }
void check_blocks(const json& value) { parse_fp8_bf16_blocks(value.get<std::string>()); }

/// A row that is absent where `means_something` says so, unless it has another value than usual.
Row absent_elsewhere(Row row, bool (*means_something)(const Fp8Options&)) {
  row.read = [read = row.read, usual = row.setting.fallback, means_something](const O& o) -> json {
    json value = read(o);
    if (!means_something(o.fp8) && value == usual) value = nullptr;
    return value;
  };
  row.setting.fallback = nullptr;
  return row;
}

/// A row that is absent in another precision.
Row in_fp8_only(Row row) {
  return absent_elsewhere(std::move(row), [](const Fp8Options& fp8) { return fp8.enabled; });
}

template <auto... members>
Row fp8_row(const char* name, const char* help, Setting more = {}) {
  return in_fp8_only(bound<&O::fp8, members...>(name, help, std::move(more)));
}

/// A row that is absent with another recipe.
template <auto... members>
Row history_row(const char* name, const char* help, Setting more = {}) {
  return absent_elsewhere(bound<&O::fp8, members...>(name, help, std::move(more)),
                          [](const Fp8Options& fp8) { return fp8.is_delayed(); });
}

std::vector<Row> history_rows() {
  return {
      history_row<&Fp8Options::history>(
          "fp8_history", "of delayed scaling: steps whose largest magnitudes decide a scale [1024]",
          {.minimum = 1}),
      history_row<&Fp8Options::history_rule>(
          "fp8_history_rule",
          "of delayed scaling: the magnitude of the history that decides, max or most-recent "
          "[max]"),
      history_row<&Fp8Options::margin>(
          "fp8_margin", "of delayed scaling: scales are smaller by so many powers of two [0]",
          {.minimum = 0, .maximum = 64})};
}

}  // namespace

Row precision_row() {
  Setting setting{.name = "precision",
                  .fallback = std::string(to_string(O{}.precision)),
                  .help =
                      "dtype of parameters and activations; fp8: bf16, where products of the "
                      "blocks' matrices take operands that are rounded to fp8",
                  .choices = {"fp32", "bf16", "fp16", "fp8"}};
  return {std::move(setting), [](const O& o) { return json(precision_name(o)); },
          [](O& o, const json& value) {
            const auto name = value.get<std::string>();
            o.fp8.enabled = name == "fp8";
            o.precision = o.fp8.enabled ? DType::kBFloat16 : parse_dtype(name);
          }};
}

std::vector<Row> fp8_rows() {
  std::vector<Row> rows = in_group(
      "Products in fp8",
      {
          fp8_row<&Fp8Options::recipe>(
              "fp8_recipe",
              "whose largest magnitude decides a tensor's scale: current (its own, now) or delayed "
              "(its own in earlier steps, over all micro-batches and ranks) [current]"),
          fp8_row<&Fp8Options::formats>(
              "fp8_format",
              "hybrid (E5M2 for gradients of outputs, E4M3 for inputs and weights) or e4m3 (for "
              "all) [hybrid]"),
          fp8_row<&Fp8Options::scales>(
              "fp8_scales",
              "power-of-two (the largest one that fits: products lose bits by the codes alone) or "
              "exact (as torchao and TransformerEngine have it; products are of fp32) "
              "[power-of-two]"),
          fp8_row<&Fp8Options::products>(
              "fp8_products",
              "products that take fp8, some of forward,input-gradient,weight-gradient; the others "
              "take bf16 [all]",
              {.check = check_products}),
          fp8_row<&Fp8Options::bf16_blocks>(
              "fp8_bf16_blocks",
              "first and last blocks that stay in bf16, like 1,1 for one at each end [0,0]",
              {.check = check_blocks}),
          in_fp8_only(bound<&O::fp8_fast_accumulation>(
              "fp8_fast_accumulation",
              "on a GPU, forward products keep their sums in the 14 bits of the tensor cores' "
              "accumulators: faster, and less exact [false]")),
          fp8_row<&Fp8Options::gather_format>(
              "gather_format",
              "how matrices of products in fp8 travel to ranks that have them in shards: e4m3 (as "
              "codes, half the bytes, with the same bits) or bf16 [e4m3]"),
          fp8_row<&Fp8Options::scale_units>(
              "fp8_scale_units",
              "units whose scales are joined by one message, with codes that travel [8]",
              {.minimum = 1}),
      });
  std::vector<Row> histories = in_group("Products in fp8", history_rows());
  rows.insert(rows.begin() + 1, std::make_move_iterator(histories.begin()),
              std::make_move_iterator(histories.end()));
  return rows;
}

std::string precision_name(const TrainerOptions& options) {
  return options.fp8.enabled ? "fp8" : std::string(to_string(options.precision));
}

static std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

[[noreturn]] static void refuse_without_fp8(const std::string& name, const json& value,
                                            const std::string& precision) {
  fail(ErrorCode::kConfig, name, " is ", text_of(value), ", but precision is ", precision,
       ", which has no products in fp8; use `precision` fp8, or leave `", name, "` out");
}

[[noreturn]] static void refuse_without_histories(const std::string& name, const json& value) {
  fail(
      ErrorCode::kConfig, name, " is ", text_of(value),
      ", but fp8_recipe is current, which keeps no histories; use `fp8_recipe` delayed, or leave `",
      name, "` out");
}

void check_typed_fp8(const Settings& settings) {
  const auto is_typed = [&](const Row& row) {
    return settings.is_typed(row.setting.name) && !settings.is_null(row.setting.name);
  };
  const auto precision = settings.get<std::string>("precision");
  for (const Row& row : fp8_rows()) {
    if (precision == "fp8" || !is_typed(row)) continue;
    refuse_without_fp8(row.setting.name, settings.value(row.setting.name), precision);
  }
  for (const Row& row : history_rows()) {
    if (settings.text("fp8_recipe") == "delayed" || !is_typed(row)) continue;
    refuse_without_histories(row.setting.name, settings.value(row.setting.name));
  }
}

void check_fp8(const TrainerOptions& options) {
  if (options.fp8.enabled) {
    require(options.precision == DType::kBFloat16, ErrorCode::kConfig,
            "fp8 is enabled, but the dtype is ", to_string(options.precision),
            ": all but the products in fp8 is in bf16; use `precision` bf16");
  }
  for (const Row& row : options.fp8.enabled ? history_rows() : fp8_rows()) {
    const json value = row.read(options);
    if (value.is_null() || options.fp8.is_delayed()) continue;
    if (options.fp8.enabled) refuse_without_histories(row.setting.name, value);
    refuse_without_fp8(row.setting.name, value, std::string(to_string(options.precision)));
  }
}

/// Says what a tensor's scale is made of.
static std::string scales_note(const Fp8Options& fp8) {
  if (!fp8.is_delayed()) {
    return "a scale is that of a micro-batch's tensor, so that the bits depend on `micro_batch`";
  }
  if (fp8.history_rule == Fp8HistoryRule::kMostRecent) {
    return "a scale is that of the largest magnitude in the step before, of all micro-batches and "
           "ranks, and 1 in the first step";
  }
  return concat("a scale is that of the largest magnitude in the last ", fp8.history,
                " steps, of all micro-batches and ranks, and 1 in the first step");
}

std::vector<std::string> fp8_notes(const TrainerOptions& options, const ModelLayout& layout,
                                   std::int64_t rows) {
  if (!options.fp8.enabled) return {};
  const std::vector<Fp8Products> products = fp8_products(layout, options.fp8);
  std::int64_t in_fp8 = 0, blocks = 0, narrowest = 0;
  for (std::size_t l = 0; l < products.size(); ++l) {
    bool is_block = false;
    for (const ParameterAddress& address : layout.layers[l].parameters) {
      const ParameterSpec& spec = layout.tensor_of(address).spec;
      if (!spec.fp8) continue;
      is_block = true;
      const std::int64_t inner = std::min(spec.shape[0], spec.shape[1]);
      if (products[l].any() && (narrowest == 0 || inner < narrowest)) narrowest = inner;
    }
    blocks += is_block ? 1 : 0;
    in_fp8 += products[l].any() ? 1 : 0;
  }
  require(in_fp8 > 0, ErrorCode::kConfig, "precision is fp8, but ",
          blocks == 0 ? concat("no layer of the model has matrices that can be multiplied in fp8")
                      : concat("all ", blocks, " blocks stay in bf16 by fp8_bf16_blocks ",
                               to_string(options.fp8.bf16_blocks)),
          "; use `precision` bf16", blocks == 0 ? "" : ", or fewer blocks in `fp8_bf16_blocks`");
  std::vector<std::string> notes{concat("products in fp8: ", to_string(options.fp8.products),
                                        " of ", in_fp8, " of ", blocks, " blocks; ",
                                        scales_note(options.fp8), "; evaluation is in bf16")};
  constexpr std::int64_t kNarrow = 1024, kFewRows = 4096;
  if (narrowest < kNarrow) {
    notes.push_back(concat("fp8 gains nothing here: matrices are as narrow as ", narrowest,
                           ", and below about ", kNarrow,
                           " the rounding of operands takes longer than their products save; "
                           "`precision` bf16 is as fast"));
  }
  if (rows > 0 && rows < kFewRows) {
    notes.push_back(concat("fp8 gains nothing here: a micro-batch has ", rows,
                           " rows of activations, and below about ", kFewRows,
                           " the rounding of weights takes longer than their products save; raise "
                           "`micro_batch`, or use `precision` bf16"));
  }
  return notes;
}

std::vector<std::string> fp8_gpu_notes(const TrainerOptions& options, const ModelLayout& layout,
                                       std::int64_t rows) {
  if (!options.fp8.enabled) return {};
  if (options.device != DeviceChoice::kCuda) {
    if (!options.fp8_fast_accumulation) return {};
    return {"`fp8_fast_accumulation` has no effect on the CPU"};
  }
  if (!gpus_multiply_fp8()) {
    return {
        "operands in fp8 are decoded and multiplied in bf16: a GPU here has no tensor cores for "
        "fp8, which come with compute capability 8.9"};
  }
  constexpr std::int64_t kMultiple = 16;
  const std::vector<Fp8Products> products = fp8_products(layout, options.fp8);
  std::int64_t matrices = 0, decoded = 0;
  for (std::size_t l = 0; l < products.size(); ++l) {
    for (const ParameterAddress& address : layout.layers[l].parameters) {
      const ParameterSpec& spec = layout.tensor_of(address).spec;
      if (!spec.fp8 || !products[l].any()) continue;
      ++matrices;
      const bool fits = spec.shape[0] % kMultiple == 0 && spec.shape[1] % kMultiple == 0;
      decoded += fits ? 0 : 1;
    }
  }
  std::vector<std::string> notes;
  if (decoded > 0) {
    notes.push_back(concat("operands of ", decoded, " of ", matrices,
                           " matrices in fp8 are decoded and multiplied in bf16: tensor cores take "
                           "codes of matrices whose sides are multiples of ",
                           kMultiple));
  }
  if (decoded < matrices && options.fp8.products.weight_gradient && rows % kMultiple != 0) {
    notes.push_back(
        concat("weight gradients in fp8 are of decoded operands, multiplied in bf16: a "
               "micro-batch has ",
               rows, " rows of activations, which is no multiple of ", kMultiple));
  }
  return notes;
}

bool gpus_multiply_fp8() {
  const std::vector<CudaGpu> gpus = cuda_status().gpus;
  return std::ranges::all_of(
      gpus, [](const CudaGpu& gpu) { return 10 * gpu.major + gpu.minor >= kOldestFp8; });
}

std::string gather_note(const TrainerOptions& options, const StepPlan& step) {
  if (!options.fp8.enabled || options.fp8.gather_format != GatherFormat::kE4M3) return "";
  std::size_t in_codes = 0, in_shards = 0;  // units, or flat parameters of them
  for (const Schedule& schedule : step.ranks) {
    in_codes += ScaleTable(schedule).entries().size();
    for (const ScheduleUnit& unit : schedule.units) {
      if (!schedule.is_here(unit) || unit.mirrors >= 0) continue;
      in_shards +=
          static_cast<std::size_t>(std::ranges::count_if(unit.flats, [&](const ScheduleFlat& flat) {
            return flat.has_codes() && !schedule.axes_of(flat).empty();
          }));
    }
  }
  const bool is_cut = !step.ranks.front().placement.parameter.empty();
  if (!reads_codes_only(options.fp8) && is_cut) {
    return concat(
        "matrices in fp8 are gathered in bf16, not as `gather_format` e4m3: with "
        "`fp8_products` ",
        to_string(options.fp8.products), ", layers read them in bf16 as well");
  }
  if (in_shards == 0) return "";
  if (in_codes == 0) {
    return "matrices in fp8 are gathered in bf16, not as `gather_format` e4m3: their parameters "
           "come from the host";
  }
  std::string note = concat("matrices in fp8 of ", in_codes, " units are gathered as codes, ",
                            options.fp8.is_delayed() ? std::string("by the scales of earlier steps")
                                                     : concat("scales of ", options.fp8.scale_units,
                                                              " units by one message"));
  if (in_codes < in_shards) {
    note += concat("; those of ", in_shards - in_codes,
                   " units, whose parameters come from the host, are gathered in bf16");
  }
  return note;
}

}  // namespace tessera
