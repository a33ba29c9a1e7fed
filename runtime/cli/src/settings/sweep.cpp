#include "settings/sweep.h"

#include <algorithm>
#include <utility>

#include "output/terminal.h"
#include "tessera/core/error.h"
#include "tessera/core/text.h"

namespace tessera::cli {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts = split_text(text, at);
  std::erase(parts, "");
  return parts;
}

std::vector<Swept> parse_sweep(const std::string& text, const std::vector<Setting>& table,
                               std::string_view command) {
  std::vector<Swept> all;
  for (const std::string& entry : split(text, ' ')) {
    const std::size_t equals = entry.find('=');
    Swept swept{.name = setting_name(entry.substr(0, equals)), .values = {}, .of_pipeline = false};
    if (equals != entry.npos) swept.values = split(entry.substr(equals + 1), ',');
    require(!swept.values.empty(), ErrorCode::kConfig, "--sweep: '", entry,
            "' names no values; write it like strategy=zero2,full_shard");
    require(find_setting(table, swept.name) != nullptr, ErrorCode::kConfig,
            "--sweep: there is no setting '", swept.name, "'; 'tessera ", command,
            " --help' lists them");
    all.push_back(std::move(swept));
  }
  return all;
}

std::vector<std::vector<std::string>> combinations(const std::vector<Swept>& sweep) {
  std::vector<std::vector<std::string>> all{{}};
  for (const Swept& swept : sweep) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& combination : all) {
      for (const std::string& value : swept.values) {
        longer.push_back(combination);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

void note_left_out(const std::vector<LeftOut>& left_out, bool all, std::string_view done) {
  std::vector<std::pair<std::string, std::string>> reasons;  // with the combinations
  for (const LeftOut& one : left_out) {
    const auto known =
        std::ranges::find(reasons, one.why, &std::pair<std::string, std::string>::first);
    const std::string values = tessera::joined(one.values);
    if (known == reasons.end()) {
      reasons.emplace_back(one.why, values);
    } else {
      known->second += "; " + values;
    }
  }
  for (const auto& [why, which] : reasons) {
    print_note(concat("left out ", which, ": ", why));
  }
  require(!all, ErrorCode::kConfig, "--sweep: no combination can be ", done);
}

}  // namespace tessera::cli
