#pragma once

// Include before <hwy/foreach_target.h> and any other Highway header.
//
// A file compiled for each instruction set costs its compile time once per target, so only those
// that pay are kept: AVX2 with FMA, AVX-512 (as of Skylake), NEON, and the portable baseline that
// Highway requires. The kernels gain nothing from the sets between (SSSE3, SSE4) or beyond
// (AVX-512 DL, Zen 4): bf16 is widened by integer instructions, fp16 by F16C, GEMM is oneDNN's.
#ifdef TESSERA_NO_AVX512  // of sanitizer builds, which need only what the machine can run
#define TESSERA_AVX512 0
#else
#define TESSERA_AVX512 HWY_AVX3
#endif
#define HWY_DISABLED_TARGETS (~(HWY_AVX2 | TESSERA_AVX512 | HWY_NEON | HWY_EMU128 | HWY_SCALAR))
