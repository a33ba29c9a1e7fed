// All optimizers. This file has no include guard: it is included in a namespace of each way to
// compute (an instruction set of the CPU, CUDA) and of the table of rows, so that each compiles the
// same formulas for itself. Before it come "tessera/kernels/optimizer.h", "tessera/core/error.h",
// "dynamic_codes.h", <cmath>, and TESSERA_UPDATE_RULE, which is what that way puts before a
// function.
//
// An update rule has its row, kRow, and for a kernel:
//   kStateCount   numbers that it updates beside the master, for each element
//   kIsCoded      whether they are stored as codes of 8 bits: then its row has two states for each,
//                 the codes and the largest magnitudes of blocks of kCodedBlock elements, and
//                 kIsSigned says which map they are codes of (dynamic_codes.h)
//   factors(...)  what is the same for all elements of a segment; whatever the learning rate is a
//                 factor of, so is SegmentRates::learning_rate_scale
//   update<Math>  the new master and states of one Math::Value of elements, by the functions of
//                 Math; each rounds once, everywhere:
//                 mul(a, b), mul_add(a, b, c) = a b + c, div(a, b), sqrt(a), and
//                 sign(a): 1 above zero, -1 below, a itself if it is zero or NaN
// A function that an update needs beside these is added to VectorMath (optimizer_cpu.cpp) and to
// ElementMath (optimizer_cuda.h).

#include "optimizers/adamw.h"
#include "optimizers/adamw8bit.h"
#include "optimizers/lion.h"
#include "optimizers/sgd.h"

#undef TESSERA_UPDATE_RULE

template <typename... Rules>
struct UpdateRules {
  static constexpr int kCount = sizeof...(Rules);
  static constexpr std::array<Optimizer, kCount> rows() {
    std::array<Optimizer, kCount> rows{Rules::kRow...};
    for (int i = 0; i < kCount; ++i) rows[static_cast<std::size_t>(i)].rule = i;
    return rows;
  }
  /// Calls body(Rule()) for the rule of that place.
  template <typename Body>
  static void visit(int place, const Body& body) {
    int i = 0;
    ((i++ == place ? body(Rules()) : void()), ...);
  }
};
using AllRules = UpdateRules<AdamW, AdamW8bit, Lion, Sgd>;
