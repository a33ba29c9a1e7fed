#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/cuda_device.h"
#include "tessera/core/dtype.h"
#include "tessera/kernels/kernel_table.h"

// How a GPU is to run each GEMM, as it was timed: GEMMs of a table run by the algorithm that it
// names, all others by the one that cuBLASLt's heuristic names first.
namespace tessera {

/// cuBLASLt does this to a product before it stores it. T_bias is C's dtype in all of them.
enum class GemmEpilogue : std::uint8_t {
  kNone,
  kBias,          ///< + vector (n)
  kGelu,          ///< gelu
  kGeluBias,      ///< gelu(. + vector (n))
  kGeluAux,       ///< gelu; its argument to aux (m, n)
  kGeluAuxBias,   ///< gelu(. + vector (n)); its argument to aux (m, n)
  kGeluBackward,  ///< . * gelu'(aux (m, n))
};
std::string_view to_string(GemmEpilogue epilogue);

/// All that the choice of an algorithm may depend on, in our row-major terms; see GemmArgs.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  std::int64_t residual_stride = 0;  ///< of what is added, if not C itself; 0 without
  std::int64_t aux_stride = 0;       ///< of aux; 0 without
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType dtype = DType::kFloat32, c_dtype = DType::kFloat32;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  /// Largest powers of two, up to kGemmAlignment, that divide the addresses; 0 without.
  std::uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0;
  std::uint32_t residual_alignment = 0, vector_alignment = 0, aux_alignment = 0;
  // Operands in fp8 have these formats, and uint8 as their dtype.
  Fp8Format a_format = Fp8Format::kE4M3, b_format = Fp8Format::kE4M3;
  bool fast_accumulation = false;

  auto operator<=>(const GemmProblem&) const = default;
};

/// No kernel loads or stores more than 16 bytes at once. Telling cuBLASLt of more would let the
/// choice of an algorithm, and with it the bits, depend on where a tensor happens to lie.
inline constexpr std::uint32_t kGemmAlignment = 16;

/// "C (64, 64) of bf16 = A B^T, K = 64, ..., epilogue gelu_bias".
std::string describe(const GemmProblem& problem);

/// The words of a cublasLtMatmulAlgo_t, which NVIDIA documents to be good for the same version of
/// the library.
using GemmAlgorithm = std::array<std::uint64_t, 8>;

/// How a problem runs fastest.
struct GemmChoice {
  /// In one call of cuBLASLt by `algorithm`, with its epilogue and residual. Else the product
  /// alone, which is a problem of its own, and what follows it by our kernels.
  bool fused = true;
  GemmAlgorithm algorithm{};  ///< zeros if it is not fused
  // Medians; 0 where there was nothing to time.
  double seconds = 0.0;
  double runner_up_seconds = 0.0;  ///< of the second fastest way
  double heuristic_seconds = 0.0;  ///< of the way that is taken without a table

  bool operator==(const GemmChoice&) const = default;
};

/// The machine that the choices hold for.
struct GemmMachine {
  std::string gpu{};         ///< as the driver names it
  int major = 0, minor = 0;  ///< compute capability
  std::string cublaslt{};    ///< version, "13.1.0"

  bool operator==(const GemmMachine&) const = default;
};
/// "NVIDIA H200 (compute capability 9.0) with cuBLASLt 13.1.0".
std::string describe(const GemmMachine& machine);

struct GemmTable {
  GemmMachine machine{};
  std::map<GemmProblem, GemmChoice> choices{};
};

/// The text of a file that holds it, in JSON.
std::string to_text(const GemmTable& table);
/// Throws Error{kConfig} that names `source`, where the text is from, and what is wrong with it.
GemmTable parse_gemm_table(const std::string& text, const std::string& source);
/// Throws Error{kNotFound} if the file cannot be read, and as parse_gemm_table does.
GemmTable read_gemm_table(const std::string& path);

/// The machine of a device.
GemmMachine gemm_machine(CudaDevice& device);
/// Throws Error{kConfig} that names both unless `table` was made on such a machine.
void require_made_on(const GemmTable& table, const GemmMachine& machine);

/// Times all ways to run GEMMs on a device: up to eight algorithms of cuBLASLt with the epilogue,
/// and our own kernels after the product alone.
class GemmCalibration {
 public:
  explicit GemmCalibration(CudaDevice& device);
  ~GemmCalibration();
  GemmCalibration(const GemmCalibration&) = delete;
  GemmCalibration& operator=(const GemmCalibration&) = delete;

  /// The calls of `gemms` whose problems are not in the table, one for each problem. Of addresses
  /// only the alignment counts.
  std::vector<GemmArgs> missing(const std::vector<GemmArgs>& gemms, const GemmTable& table);

  /// Adds the problem of the call, and that of the product alone if something follows it. The
  /// operands are the calibration's own, in several copies, so that they are not in the L2 cache
  /// from the call before. The ways first heat the GPU to the clock that it has in a long run, for
  /// 3 s at the first call and 0.25 s at later ones; then they take turns, and medians are
  /// compared. What cuBLASLt has no algorithm for is not added. Gives the call's problem.
  GemmProblem time(const GemmArgs& gemm, GemmTable& table);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
