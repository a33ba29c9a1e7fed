#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "fake_cublaslt.h"
#include "product.h"
#include "tessera/core/error.h"
#include "tessera/core/memory.h"
#include "tessera/kernels/cuda_options.h"
#include "tessera/kernels/gemm_table.h"

// Tables of GEMMs: their files, what makes them, and that GEMMs run as they say.
namespace tessera::gemm_table_test {
namespace {

using fake_cublaslt::number_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kSize = 16;
constexpr unsigned kHour = 3'600'000;  // in milliseconds
constexpr std::int64_t kDepth = 64;    // split, if the algorithm may

std::string message_of(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

GemmTable example() {
  GemmTable table{.machine = {.gpu = "a \"GPU\"", .major = 9, .minor = 0, .cublaslt = "13.1.0"}};
  const GemmProblem plain{.m = 3,
                          .n = 4,
                          .k = 5,
                          .a_stride = 6,
                          .b_stride = 7,
                          .c_stride = 8,
                          .transpose_b = true,
                          .accumulate = true,
                          .dtype = DType::kBFloat16,
                          .a_alignment = 16,
                          .b_alignment = 8,
                          .c_alignment = 4};
  GemmProblem gelu = plain;
  gelu.epilogue = GemmEpilogue::kGeluAuxBias;
  gelu.aux_stride = 8;
  gelu.vector_alignment = 2;
  gelu.aux_alignment = 16;
  GemmProblem codes = plain;
  codes.dtype = DType::kUInt8;
  codes.a_format = Fp8Format::kE5M2;
  codes.fast_accumulation = true;
  table.choices[codes] = {.algorithm = {1}, .seconds = 1e-3};
  table.choices[plain] = {.algorithm = {1, 0xfedcba9876543210U, 3, 4, 5, 6, 7, ~std::uint64_t{0}},
                          .seconds = 123e-6,
                          .runner_up_seconds = 124e-6,
                          .heuristic_seconds = 125e-6};
  table.choices[gelu] = {.fused = false, .seconds = 1e-3, .heuristic_seconds = 2e-3};
  return table;
}

TEST(GemmTable, ComesBackFromItsFile) {
  const GemmTable table = example();
  const std::string text = to_text(table);
  const GemmTable read = parse_gemm_table(text, "a test");
  EXPECT_EQ(read.machine, table.machine);
  ASSERT_EQ(read.choices.size(), table.choices.size());
  for (const auto& [problem, choice] : table.choices) {
    ASSERT_TRUE(read.choices.contains(problem)) << describe(problem);
    EXPECT_EQ(read.choices.at(problem).fused, choice.fused);
    EXPECT_EQ(read.choices.at(problem).algorithm, choice.algorithm);
    EXPECT_NEAR(read.choices.at(problem).heuristic_seconds, choice.heuristic_seconds, 1e-9);
  }
  EXPECT_EQ(to_text(read), text);
}

TEST(GemmTable, NamesWhatIsWrongWithAFile) {
  const std::string good = to_text(example());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto begin = text.find(from);
    EXPECT_NE(begin, text.npos) << from;
    return text.replace(begin, from.size(), to);
  };
  const auto refusal = [](const std::string& text) {
    return message_of(ErrorCode::kConfig, [&] { parse_gemm_table(text, "t.json"); });
  };
  EXPECT_THAT(refusal("{"), AllOf(HasSubstr("t.json"), HasSubstr("tessera calibrate")));
  EXPECT_THAT(refusal("[1]"), HasSubstr("no table of GEMMs"));
  EXPECT_THAT(refusal(with("gemm-table", "run")), HasSubstr("no table of GEMMs"));
  EXPECT_THAT(refusal(with("\"cublaslt\"", "\"cublas\"")), HasSubstr("cublaslt"));
  EXPECT_THAT(refusal(with("\"k\"", "\"q\"")), HasSubstr("'k'"));
  EXPECT_THAT(refusal(with("gelu_aux_bias", "relu")), HasSubstr("'relu'"));
  EXPECT_THAT(refusal(with("\"e5m2\"", "\"e3m4\"")), HasSubstr("'e3m4'"));
  EXPECT_THAT(refusal(with("fast_accumulation", "fast")), HasSubstr("fast_accumulation"));
  EXPECT_THAT(refusal(with("\"fused\"", "\"separate\"")), HasSubstr("separate"));
  EXPECT_THAT(refusal(with("fedcba9876543210", "")), HasSubstr("eight words"));
  EXPECT_THAT(message_of(ErrorCode::kNotFound, [] { read_gemm_table("/nowhere/t.json"); }),
              HasSubstr("calibrate writes one"));
}

/// Square products on an emulated GPU.
class CalibratedGemms : public testing::Test {
 protected:
  ~CalibratedGemms() override { fake_cublaslt::set_durations({}); }

  TensorView tensor(DType dtype, float seed, const Shape& shape = {kSize, kSize}) {
    tensors_.push_back(Tensor::empty(memory_, shape, dtype, MemoryCategory::kData, "operand"));
    const TensorView& view = tensors_.back();
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      const float value = std::sin(seed * static_cast<float>(i + 1));
      if (dtype == DType::kFloat32) view.as<float>()[i] = value;
      if (dtype == DType::kBFloat16) view.as<bfloat16>()[i] = bfloat16(value);
    }
    return view;
  }
  GemmArgs product() {
    return {.a = tensor(DType::kFloat32, 1.0F, {kSize, kDepth}),
            .b = tensor(DType::kFloat32, 2.0F, {kDepth, kSize}),
            .c = tensor(DType::kFloat32, 3.0F)};
  }
  GemmArgs with_gelu() {
    return {.a = tensor(DType::kBFloat16, 1.0F),
            .b = tensor(DType::kBFloat16, 2.0F),
            .c = tensor(DType::kBFloat16, 3.0F),
            .bias = tensor(DType::kBFloat16, 4.0F, {kSize}),
            .gelu = true,
            .gelu_input = tensor(DType::kBFloat16, 5.0F)};
  }
  GemmArgs with_gelu_backward() {
    return {.a = tensor(DType::kBFloat16, 1.0F),
            .b = tensor(DType::kBFloat16, 2.0F),
            .c = tensor(DType::kBFloat16, 3.0F),
            .gelu_backward_input = tensor(DType::kBFloat16, 5.0F)};
  }

  GemmArgs of_codes() {
    amax_.assign(2, 0x3f800000);  // of 1.0
    GemmArgs args{.a = tensor(DType::kUInt8, 1.0F),
                  .b = tensor(DType::kUInt8, 2.0F),
                  .c = tensor(DType::kBFloat16, 3.0F),
                  .transpose_b = true,
                  .a_fp8 = {.format = Fp8Format::kE5M2}};
    args.a_fp8.amax = TensorView(amax_.data(), DType::kInt32, Shape{1});
    args.b_fp8.amax = TensorView(amax_.data() + 1, DType::kInt32, Shape{1});
    return args;
  }

  /// One algorithm of each kind takes an hour, and all others take ten.
  static void make_fast(int plain, int fused, unsigned fast_plain = kHour) {
    fake_cublaslt::Durations durations;
    durations.plain.fill(10 * kHour);
    durations.fused.fill(10 * kHour);
    durations.plain.at(static_cast<std::size_t>(plain)) = fast_plain;
    if (fused >= 0) durations.fused.at(static_cast<std::size_t>(fused)) = kHour;
    fake_cublaslt::set_durations(durations);
  }

  GemmTable calibrate(const std::vector<GemmArgs>& gemms) {
    GemmTable table{.machine = gemm_machine(*device_)};
    GemmCalibration calibration(*device_);
    for (const GemmArgs& gemm : calibration.missing(gemms, table)) calibration.time(gemm, table);
    EXPECT_TRUE(calibration.missing(gemms, table).empty());
    fake_cublaslt::set_durations({});
    return table;
  }

  /// What a GEMM gives on a new stream with this table.
  std::vector<float> run(const GemmArgs& args, const GemmTable& table) {
    const auto stream = device_->create_stream(
        {.name = "test",
         .on_span = [this](const Work&, double begin, double end) { seconds_ = end - begin; }});
    auto& cuda = dynamic_cast<CudaStream&>(*stream);
    set_cuda_kernel_options(cuda, {.gemm_table = std::make_shared<GemmTable>(table)});
    cuda.submit({.name = "gemm"}, [&] { cuda.kernels().gemm(args, cuda); });
    cuda.synchronize();
    std::vector<float> result;
    for (std::int64_t i = 0; i < args.c.numel(); ++i) {
      result.push_back(args.c.dtype == DType::kFloat32
                           ? args.c.as<float>()[i]
                           : static_cast<float>(args.c.as<bfloat16>()[i]));
    }
    return result;
  }

  static const GemmChoice& choice(const GemmTable& table, GemmEpilogue epilogue) {
    const auto found = std::ranges::find_if(
        table.choices, [&](const auto& row) { return row.first.epilogue == epilogue; });
    if (found == table.choices.end()) throw std::runtime_error("no such row");
    return found->second;
  }

  const std::unique_ptr<CudaDevice> device_ = make_cuda_device();
  Memory memory_{*device_};
  std::vector<Tensor> tensors_;
  std::vector<std::int32_t> amax_;
  double seconds_ = 0;  ///< of the last GEMM that ran
};

TEST_F(CalibratedGemms, TakeTheFastestOfEightAlgorithms) {
  make_fast(6, -1);
  const GemmTable table = calibrate({product(), product()});
  ASSERT_EQ(table.choices.size(), 1U);
  const GemmChoice& row = choice(table, GemmEpilogue::kNone);
  EXPECT_TRUE(row.fused);
  EXPECT_EQ(number_of(row.algorithm), 6);
  EXPECT_LT(row.seconds, row.runner_up_seconds);
  EXPECT_LT(row.seconds, row.heuristic_seconds) << "which names number 0 first";
}

TEST_F(CalibratedGemms, OfCodesHaveRowsWithTheirFormats) {
  make_fast(3, -1);
  GemmArgs fast = of_codes();
  fast.fast_accumulation = true;
  const GemmTable table = calibrate({of_codes(), fast, of_codes()});
  ASSERT_EQ(table.choices.size(), 2U);
  for (const auto& [problem, row] : table.choices) {
    EXPECT_EQ(problem.dtype, DType::kUInt8);
    EXPECT_EQ(problem.a_format, Fp8Format::kE5M2);
    EXPECT_EQ(problem.b_format, Fp8Format::kE4M3);
    EXPECT_EQ(number_of(row.algorithm), 3);
  }
}

TEST_F(CalibratedGemms, AreFusedWhereThatIsFaster) {
  make_fast(2, 5, 4 * kHour);
  const GemmTable table = calibrate({with_gelu(), with_gelu_backward()});
  for (const GemmEpilogue epilogue : {GemmEpilogue::kGeluAuxBias, GemmEpilogue::kGeluBackward}) {
    EXPECT_TRUE(choice(table, epilogue).fused) << to_string(epilogue);
    EXPECT_EQ(number_of(choice(table, epilogue).algorithm), 5) << to_string(epilogue);
  }
  for (const GemmEpilogue epilogue : {GemmEpilogue::kBias, GemmEpilogue::kNone}) {
    EXPECT_EQ(number_of(choice(table, epilogue).algorithm), 2) << "alone: " << to_string(epilogue);
  }
}

/// Though cuBLASLt supports the epilogue.
TEST_F(CalibratedGemms, AreApartWhereThatIsFaster) {
  make_fast(2, -1);
  const GemmTable table = calibrate({with_gelu(), with_gelu_backward()});
  for (const GemmEpilogue epilogue : {GemmEpilogue::kGeluAuxBias, GemmEpilogue::kGeluBackward}) {
    EXPECT_FALSE(choice(table, epilogue).fused) << to_string(epilogue);
  }
  // And so they run: a call in one would show.
  fake_cublaslt::Durations durations;
  durations.fused.fill(kHour);
  fake_cublaslt::set_durations(durations);
  for (const GemmArgs& gemm : {with_gelu(), with_gelu_backward()}) {
    run(gemm, table);
    EXPECT_LT(seconds_, 1800);
  }
}

TEST_F(CalibratedGemms, RunByTheTableWithoutLookingForAlgorithms) {
  make_fast(3, 5);
  const GemmArgs args = product();
  GemmTable table = calibrate({args, with_gelu(), with_gelu_backward()});
  const std::int64_t before = fake_cublaslt::heuristics();
  const std::vector<float> by_three = run(args, table);
  run(with_gelu(), table);
  run(with_gelu_backward(), table);
  EXPECT_EQ(fake_cublaslt::heuristics(), before);
  EXPECT_EQ(run(args, table), by_three) << "the same table, the same bits";
  const std::vector<float> by_heuristic = run(args, {.machine = table.machine});
  EXPECT_NE(by_heuristic, by_three) << "algorithms differ in the order in which they add";
  EXPECT_EQ(fake_cublaslt::heuristics(), before + 1) << "what a table has not is looked for";
}

TEST_F(CalibratedGemms, RefuseATableOfAnotherMachine) {
  const GemmMachine here = gemm_machine(*device_);
  for (int i = 0; i < 3; ++i) {
    GemmTable table{.machine = here};
    if (i == 0) table.machine.gpu = "another GPU";
    if (i == 1) table.machine.minor = 7;
    if (i == 2) table.machine.cublaslt = "12.9.0";
    EXPECT_THAT(message_of(ErrorCode::kConfig, [&] { run(product(), table); }),
                AllOf(HasSubstr(describe(here)), HasSubstr(describe(table.machine))));
  }
}

TEST_F(CalibratedGemms, RefuseAnAlgorithmThatAddsInAnyOrder) {
  GemmTable table = calibrate({product()});
  FakeMatmulDesc desc;
  // Of product(), which is row-major: its operands are transposed, and change places.
  FakeMatrixLayout b{.type = CUDA_R_32F, .rows = kSize, .columns = kDepth, .ld = kSize};
  FakeMatrixLayout a{.type = CUDA_R_32F, .rows = kDepth, .columns = kSize, .ld = kDepth};
  FakeMatrixLayout c{.type = CUDA_R_32F, .rows = kSize, .columns = kSize, .ld = kSize};
  cublasLtHandle_t handle = nullptr;
  cublasLtCreate(&handle);
  cublasLtMatmulPreference_t preference = nullptr;  // allows every reduction
  cublasLtMatmulPreferenceCreate(&preference);
  const std::uint64_t workspace = 1 << 20;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace, sizeof(workspace));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  cublasLtMatmulAlgoGetHeuristic(handle, &desc, &b, &a, &c, &c, preference, 1, &found, &count);
  ASSERT_EQ(count, 1);
  table.choices.begin()->second.algorithm = std::to_array(found.algo.data);
  EXPECT_THAT(message_of(ErrorCode::kConfig, [&] { run(product(), table); }),
              AllOf(HasSubstr("reduction scheme 1"), HasSubstr("tessera calibrate")));
  table.choices.begin()->second.algorithm = {};  // of no problem
  EXPECT_THAT(message_of(ErrorCode::kConfig, [&] { run(product(), table); }),
              HasSubstr("cannot run C (16, 16)"));
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtDestroy(handle);
}

}  // namespace
}  // namespace tessera::gemm_table_test
