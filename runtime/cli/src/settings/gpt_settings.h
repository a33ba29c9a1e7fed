#pragma once

#include <vector>

#include "tessera/compat/config.h"
#include "tessera/model/gpt.h"
#include "tessera/trainer/bound_setting.h"

namespace tessera::cli {

/// Settings of the model and of how it reads its data.
std::vector<Setting> model_settings();
/// Settings of where the data is.
std::vector<Setting> data_settings();

/// The sizes of the model, each of which can be given.
const std::vector<BoundSetting<GptConfig>>& size_rows();
BoundSetting<GptConfig> dropout_row();

bool has_setting(const Config& config, std::string_view name);

}  // namespace tessera::cli
