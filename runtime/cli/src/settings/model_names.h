#pragma once

#include <string>

#include "tessera/model/gpt.h"

namespace tessera::cli {

/// "gpt2-tiny, gpt2-124m (gpt2), ...".
std::string model_names();

/// Throws Error{kConfig} if no preset is called so: with the nearest name, or all of them and, if
/// the name has a number of parameters in it ("Llama-2-7b"), the flags of a GPT as large.
void check_model_name(const std::string& name);

bool is_folder(const std::string& path);
bool has_sizes_of(const GptConfig& a, const GptConfig& b);
/// The model of a preset's name or of a Hugging Face folder.
GptConfig named_model(const std::string& name);

/// The preset's name where the model has its sizes, else those: "GPT of 2 layers x 36, 2 heads".
std::string model_label(const std::string& preset, const GptConfig& config);

}  // namespace tessera::cli
