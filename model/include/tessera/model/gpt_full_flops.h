#pragma once

#include "tessera/model/gpt.h"

namespace tessera {

/// gpt_flops_per_token() with all scores of attention counted, those above the diagonal and outside
/// of windows too: 12 * layers * context_length * heads * head width, as the PaLM paper and
/// torchtitan count.
double gpt_full_flops_per_token(const GptConfig& config);

}  // namespace tessera
