#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/compat/config_sources.h"
#include "tessera/core/error.h"

namespace tessera::compat {

/// Our settings as far as they are known before a file is translated.
class KnownSettings {
 public:
  explicit KnownSettings(const TranslationContext& context) : context_(context) {}

  /// The command line's value, if it has one.
  std::optional<std::int64_t> override_integer(std::string_view name) const {
    return override_value<std::int64_t>(name);
  }
  std::optional<double> override_number(std::string_view name) const {
    return override_value<double>(name);
  }
  std::optional<std::string> override_text(std::string_view name) const {
    return override_value<std::string>(name);
  }
  /// True if the command line says anything of it.
  bool is_overridden(std::string_view name) const {
    return context_.overrides.contains(std::string(name));
  }
  // The command line's value, else the default. Throws Error{kInternal} if there is none.
  std::int64_t integer(std::string_view name) const {
    return override_integer(name).value_or(fallback(name).get<std::int64_t>());
  }
  double number(std::string_view name) const {
    return override_number(name).value_or(fallback(name).get<double>());
  }
  /// True if the program has the setting.
  bool has(std::string_view name) const { return find_setting(context_.table, name) != nullptr; }
  /// The launcher of the run's processes.
  const LaunchFacts& launch() const { return context_.launch; }

 private:
  template <typename T>
  std::optional<T> override_value(std::string_view name) const {
    const auto found = context_.overrides.find(std::string(name));
    if (found == context_.overrides.end() || found->is_null()) return std::nullopt;
    return found->template get<T>();
  }
  const nlohmann::json& fallback(std::string_view name) const {
    const Setting* const found = find_setting(context_.table, name);
    require(found != nullptr, ErrorCode::kInternal, "no setting is called '", name, "'");
    return found->fallback;
  }

  const TranslationContext& context_;
};

}  // namespace tessera::compat
