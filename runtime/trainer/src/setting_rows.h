#pragma once

#include <vector>

#include "tessera/trainer/trainer_settings.h"

namespace tessera {

using Row = BoundSetting<TrainerOptions>;

inline std::vector<Row> in_group(const char* group, std::vector<Row> rows) {
  for (Row& row : rows) row.setting.group = group;
  return rows;
}

// Parts of trainer_rows().
std::vector<Row> loss_scale_rows();
Row precision_row();
std::vector<Row> fp8_rows();
/// Throws Error{kConfig} if the command line gives a setting of fp8 that changes nothing, even if
/// its value is the usual one.
void check_typed_fp8(const Settings& settings);
std::vector<Row> optimizer_rows();

}  // namespace tessera
