#include <algorithm>

#include "adapter/adapter_kind.h"
#include "adapter/adapter_settings.h"
#include "adapter/path_pattern.h"
#include "tessera/core/error.h"

// IA3: its settings as texts, and what it does to a module. Rules of PEFT's
// _check_target_module_feedforward and _prepare_adapter_config.
namespace tessera::adapter {
namespace ia3 {
namespace {

using nlohmann::json;

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Feed-forward modules that PEFT takes for a family, where none are given. PEFT reads back only
/// those that are targets, too: one that a target covers becomes a target, a target that it covers
/// becomes a feed-forward module, and no other matters.
void fill_feedforward(AdapterConfig& adapter, Ia3Options& ia3, const GptConfig& config) {
  const std::string name(family_of(config).ia3_feedforward);
  require(!name.empty(), ErrorCode::kConfig, "IA3: a ", family_of(config).name,
          " has no modules that are feed-forward unless told; name them, feedforward=down_proj, or "
          "give feedforward=none");
  if (adapter.targets.empty()) {
    ia3.feedforward = {name};
    return;
  }
  for (const std::string& target : adapter.targets) {
    if (target.ends_with(name)) ia3.feedforward.push_back(target);
  }
  if (has(ia3.feedforward, name) || !ends_with_one_of(name, adapter.targets)) return;
  adapter.targets.push_back(name);
  ia3.feedforward.push_back(name);
}

AdapterConfig parse(std::string_view text, const GptConfig& config) {
  AdapterConfig adapter;
  Ia3Options ia3;
  bool is_given = false;
  std::vector<SettingKey> keys = target_keys(adapter);
  keys.push_back({"feedforward",
                  [&](const std::vector<std::string>& values) {
                    is_given = true;
                    if (values != std::vector<std::string>{"none"}) ia3.feedforward = values;
                  },
                  true});
  read_settings(text, kIa3.shown.name, keys);
  fill_targets(adapter, family_of(config).ia3_targets);
  if (!is_given) fill_feedforward(adapter, ia3, config);
  std::ranges::sort(ia3.feedforward);
  adapter.kind = std::move(ia3);
  return adapter;
}

json write(const AdapterConfig& adapter, const GptConfig& config) {
  const Ia3Options& ia3 = *adapter.ia3();
  json object = targets_json(adapter, config);
  object["feedforward_modules"] =
      ia3.feedforward_pattern.empty() ? json(ia3.feedforward) : json(ia3.feedforward_pattern);
  object["init_ia3_weights"] = ia3.begins_as_ones;
  return object;
}

void read(const JsonReader& reader, const GptConfig& config, AdapterConfig& adapter) {
  constexpr const char* kFeedforward = "feedforward_modules";
  Ia3Options ia3;
  ia3.begins_as_ones = reader.flag("init_ia3_weights", true);
  read_targets(reader, adapter);
  fill_targets(adapter, family_of(config).ia3_targets);
  ia3.feedforward = reader.names(kFeedforward, &ia3.feedforward_pattern);
  if (reader.value(kFeedforward).is_null()) fill_feedforward(adapter, ia3, config);
  std::ranges::sort(ia3.feedforward);
  adapter.kind = std::move(ia3);
}

void check(const AdapterConfig& adapter, const GptConfig& config) {
  check_targets(adapter, config);
  if (adapter.targets.empty()) return;
  for (const std::string& name : adapter.ia3()->feedforward) {
    require(has(adapter.targets, name), ErrorCode::kConfig, "IA3: feed-forward module '", name,
            "' is not among the targets; name it there, too, or leave it out");
  }
}

/// PEFT's rule is another one than that of targets: any end of the path.
bool is_feedforward(const Ia3Options& ia3, const std::string& path) {
  if (!ia3.feedforward_pattern.empty()) return PathPattern(ia3.feedforward_pattern).matches(path);
  return std::ranges::any_of(ia3.feedforward,
                             [&](const std::string& end) { return path.ends_with(end); });
}

std::optional<ModuleAdapter> at(const AdapterConfig& adapter, const Module& module) {
  const Ia3Options& ia3 = *adapter.ia3();
  const bool scales_input = is_feedforward(ia3, module.path);
  require(!scales_input || !module.shares_input, ErrorCode::kConfig, "IA3: feed-forward module '",
          module.path,
          "' is one matrix here with the modules beside it, so that its input is theirs, too; "
          "leave it out of feedforward: then its output is scaled");
  using Place = ModuleAdapter::Place;
  return ModuleAdapter{
      .module = module,
      .place = scales_input ? Place::kInput : Place::kOutput,
      .parameters = {
          {.name = module.name + ".ia3_l",
           .shape = scales_input ? Shape{1, module.inputs} : Shape{module.rows, 1},
           .initializer = ia3.begins_as_ones ? Initializer::constant(1) : Initializer::normal(1),
           .weight_decay_scale = 0.0F}}};
}

}  // namespace
}  // namespace ia3

constinit const Kind kIa3{
    .shown = {.setting = "ia3",
              .peft_type = "IA3",
              .name = "IA3",
              .help = "new IA3 vectors, which scale the outputs of modules or the inputs of "
                      "feed-forward modules: targets=k_proj,down_proj,"
                      "feedforward=down_proj; also targets=all-linear, pattern, exclude, save and "
                      "feedforward=none [targets and feedforward as PEFT has them]"},
    .parse = ia3::parse,
    .write = ia3::write,
    .read = ia3::read,
    .ignored = {},
    .refused = {},
    .check = ia3::check,
    .described = [](const AdapterConfig& /*adapter*/) -> std::string { return "IA3 vectors"; },
    .at = ia3::at};

}  // namespace tessera::adapter
