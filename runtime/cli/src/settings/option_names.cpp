#include "settings/option_names.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "tessera/trainer/trainer_settings.h"

namespace tessera::cli {
namespace {

/// Settings of programs that the library knows by name, and flags of other names than their fields.
constexpr std::array kSettings{"adapter",   "auto_batch",   "base_format", "chat_template",
                               "eval_data", "export_dtype", "help",        "labels",
                               "lora",      "overwrite",    "packing",     "sequence_length"};
constexpr std::pair<std::string_view, const char*> kFlags[] = {
    {"rendezvous.address", "--main-address"},
    {"rendezvous.port", "--main-port"},
    {"rendezvous.process", "--node-rank"},
    {"rendezvous.processes", "--processes"}};

/// The settings of a run, by the members of TrainerOptions and by their own names.
const std::map<std::string, std::string, std::less<>>& settings_by_field() {
  static const auto all = [] {
    std::map<std::string, std::string, std::less<>> names;
    for (const auto& row : trainer_rows()) {
      if (!row.field.empty()) names.emplace(row.field, row.setting.name);
      names.emplace(row.setting.name, row.setting.name);
    }
    for (const Setting& output : output_settings()) names.emplace(output.name, output.name);
    for (const char* const name : kSettings) names.emplace(name, name);
    return names;
  }();
  return all;
}

}  // namespace

std::string flag_of_field(std::string_view field) {
  const auto* const other =
      std::ranges::find(kFlags, field, &std::pair<std::string_view, const char*>::first);
  if (other != std::end(kFlags)) return other->second;
  const auto setting = settings_by_field().find(field);
  return setting == settings_by_field().end() ? "" : flag_name(setting->second);
}

std::string with_flags(std::string_view message) {
  std::string text;
  while (true) {
    const std::size_t begin = message.find('`');
    const std::size_t end = begin == message.npos ? begin : message.find('`', begin + 1);
    if (end == message.npos) return text.append(message);
    const std::string flag = flag_of_field(message.substr(begin + 1, end - begin - 1));
    if (flag.empty()) {  // the second one may begin a field
      text.append(message.substr(0, end));
      message.remove_prefix(end);
    } else {
      text.append(message.substr(0, begin)).append(flag);
      message.remove_prefix(end + 1);
    }
  }
}

}  // namespace tessera::cli
