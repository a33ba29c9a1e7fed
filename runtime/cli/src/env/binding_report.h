#pragma once

#include <optional>
#include <string>

#include "env/report_part.h"
#include "output/text_table.h"
#include "tessera/core/cuda_device.h"

namespace tessera::cli {

/// The flags `--ranks`, `--bind` and `--bind-core-list`; 0 ranks: nothing is asked.
struct BindingQuestion {
  int ranks = 0;
  std::string bind = "auto";
  std::string bind_core_list{};
};

/// The cores that ranks of one process started here would get.
struct BindingReport {
  ReportPart part{};
  std::optional<TextTable> map{};  ///< a row per rank, if it was asked for
};
BindingReport binding_report(const BindingQuestion& question, const CudaStatus& cuda);

}  // namespace tessera::cli
