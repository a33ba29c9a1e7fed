#include "foreign_commands.h"

#include <array>

#include "tessera/core/error.h"
#include "tessera/trainer/setting.h"

namespace tessera::cli {

std::string about_foreign_command(const std::string& word) {
  struct Row {
    const char* name;
    const char* answer;
  };
  constexpr std::array kRows{
      Row{"merge_weights",
          "there are no checkpoints to merge: saving is not built yet, and no run writes any"},
      Row{"to_fsdp2",
          "there is nothing to convert: files of FSDP 1 and 2 are both read; 'tessera explain "
          "FILE' "
          "says what each key means here"},
      Row{"tpu_config", "TPUs are not supported; CPUs and NVIDIA GPUs are"},
  };
  for (const Row& row : kRows) {
    if (setting_name(word) == row.name) return concat("'", word, "': ", row.answer);
  }
  return "";
}

}  // namespace tessera::cli
