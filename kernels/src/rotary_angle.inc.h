// Sine and cosine of a rotation's angle. No include guard: each kernel includes it in a namespace
// of its own, after it has defined TESSERA_ROTARY_FUNCTION, what functions of its target are
// declared with. All run the same operations in the same order, so that the CPU and CUDA give the
// same bits.
//
// a = k pi/2 + r with k whole and |r| <= pi/4: in double, with a's distance to k pi/2 in one fused
// operation, r is right to fp32 for every a below 2^24. Then the polynomials of Cephes' sinf and
// cosf (S. L. Moshier) in fp32.

struct SineCosine {
  float sine, cosine;
};

/// Both within 2e-7, for 0 <= angle < 2^24.
TESSERA_ROTARY_FUNCTION SineCosine sine_cosine(float angle) {
  constexpr double kTwoOverPi = 0.63661977236758134308, kHalfPi = 1.57079632679489661923;
  const double a = angle;
  const double k = rint(a * kTwoOverPi);
  const auto r = static_cast<float>(fma(-k, kHalfPi, a));
  const float r2 = r * r;
  float s = fmaf(r2, -1.9515295891e-4F, 8.3321608736e-3F);
  s = fmaf(s, r2, -1.6666654611e-1F);
  s = fmaf(s * r2, r, r);
  float c = fmaf(r2, 2.443315711809948e-5F, -1.388731625493765e-3F);
  c = fmaf(c, r2, 4.166664568298827e-2F);
  c = fmaf(c * r2, r2, fmaf(r2, -0.5F, 1.0F));
  const int quarter = static_cast<int>(static_cast<long long>(k) & 3);
  const float sine = (quarter & 1) != 0 ? c : s;
  const float cosine = (quarter & 1) != 0 ? s : c;
  return {(quarter & 2) != 0 ? -sine : sine, quarter == 1 || quarter == 2 ? -cosine : cosine};
}
