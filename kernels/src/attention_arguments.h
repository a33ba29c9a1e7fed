#pragma once

#include "tessera/kernels/kernel_table.h"

// Conditions that attention's arguments must satisfy on every device.
namespace tessera {

/// Throws Error{kInvalidArgument} unless shapes and dtypes fit.
void check_attention(const AttentionForwardArgs& args);
void check_attention(const AttentionBackwardArgs& args);
void check_scores(const char* kernel, const AttentionScores& scores);

}  // namespace tessera
