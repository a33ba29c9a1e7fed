#pragma once

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sharding/frozen_values.h"
#include "tessera/core/error.h"

// The values of frozen configurations as a file has them, and what has changed.
namespace tessera::test {

/// A value that is not as recorded.
struct FrozenDifference {
  std::string field;
  Json before, after;
  bool is_worse = true;  ///< false: of a value that may fall, and has
};

/// Fewer actions and less time are welcome; everything else stays.
inline bool may_fall(const std::string& field) {
  return field.find("seconds") != std::string::npos || field.find("actions") != std::string::npos;
}

/// Of numbers by name, in objects; one that is absent is 0.
inline std::vector<FrozenDifference> differences(const Json& before, const Json& after) {
  std::map<std::string, std::pair<Json, Json>> fields;
  const Json was_flat = before.flatten(), is_flat = after.flatten();
  const auto take = [&](const Json& flat, Json std::pair<Json, Json>::*side) {
    for (const auto& [field, value] : flat.items()) {
      auto& values = fields.try_emplace(field, Json(0), Json(0)).first->second;
      if (value.is_number()) values.*side = value;  // not an object without fields
    }
  };
  take(was_flat, &std::pair<Json, Json>::first);
  take(is_flat, &std::pair<Json, Json>::second);
  std::vector<FrozenDifference> found;
  for (const auto& [field, values] : fields) {
    const auto& [was, is] = values;
    if (was != is) found.push_back({field, was, is, is > was || !may_fall(field)});
  }
  return found;
}

/// Hashes of a run's parameters and results, by configuration.
using FrozenHashes = std::map<std::string, std::pair<std::string, std::string>>;

/// Which runs have equal bits: by configuration, the first of the list with the same hash.
inline std::map<std::string, std::string> groups_of(const std::vector<std::string>& names,
                                                    const FrozenHashes& hashes, bool results) {
  std::map<std::string, std::string> first, groups;
  for (const std::string& name : names) {
    const auto found = hashes.find(name);
    if (found == hashes.end()) continue;
    const auto& [of_parameters, of_results] = found->second;
    groups[name] = first.emplace(results ? of_results : of_parameters, name).first->second;
  }
  return groups;
}

/// The sections of the file: the list, and the mixtures.
inline constexpr const char* kConfigurations = "configurations";
inline constexpr const char* kMixtures = "mixtures";

class FrozenRecord {
 public:
  explicit FrozenRecord(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    if (file.good()) json_ = Json::parse(file);
  }

  std::vector<std::string> names(const char* section) const {
    std::vector<std::string> all;
    for (const auto& [name, values] : json_.at(section).items()) all.push_back(name);
    return all;
  }
  /// What planned_values() gave; empty: it is not there.
  Json planned(const char* section, const std::string& name) const {
    return json_.at(section).value(name, Json::object());
  }
  bool knows(const std::string& machine) const { return json_.at("machines").contains(machine); }
  FrozenHashes hashes(const std::string& machine) const {
    FrozenHashes all;
    if (!knows(machine)) return all;
    for (const auto& [name, pair] : json_.at("machines").at(machine).items()) {
      all[name] = {pair.at(0).get<std::string>(), pair.at(1).get<std::string>()};
    }
    return all;
  }
  /// Of any machine: groups are the same on all.
  FrozenHashes any_hashes() const {
    const Json& machines = json_.at("machines");
    return machines.empty() ? FrozenHashes{} : hashes(machines.begin().key());
  }

  /// Replaces a section's values, and its hashes for `machine`. Those of other machines go where
  /// those of this one were known and have changed.
  void update(const char* section, const Json& planned, const std::string& machine,
              const FrozenHashes& hashes) {
    const FrozenHashes before = this->hashes(machine);
    json_[section] = planned;
    Json machines = Json::object();
    for (const auto& [other, of_other] : json_["machines"].items()) {
      for (const auto& [name, pair] : of_other.items()) {
        if (!is_listed(name)) continue;
        const auto was = before.find(name), is = hashes.find(name);
        const bool stays = is == hashes.end() || was == before.end() || was->second == is->second;
        if (stays) machines[other][name] = pair;
      }
    }
    for (const auto& [name, values] : planned.items()) {
      const auto& [of_parameters, of_results] = hashes.at(name);
      machines[machine][name] = {of_parameters, of_results};
    }
    json_["machines"] = machines;
    write();
  }

 private:
  bool is_listed(const std::string& name) const {
    return json_.at(kConfigurations).contains(name) || json_.at(kMixtures).contains(name);
  }

  /// One line for each field of a configuration, and for each mixture, so that a change shows in a
  /// line.
  void write() const {
    std::ofstream file(path_);
    const auto write_object = [&](const Json& object, const std::string& indent,
                                  const auto& write_value) {
      file << "{";
      const char* before = "\n";
      for (const auto& [name, value] : object.items()) {
        file << before << indent << Json(name).dump() << ": ";
        write_value(value);
        before = ",\n";
      }
      file << "}";
    };
    const auto write_line = [&](const Json& value) { file << value.dump(); };
    const auto write_fields = [&](const Json& value) { write_object(value, "   ", write_line); };
    file << "{\n \"" << kConfigurations << "\": ";
    write_object(json_.at(kConfigurations), "  ", write_fields);
    file << ",\n \"" << kMixtures << "\": ";
    write_object(json_.at(kMixtures), "  ", write_line);
    file << ",\n \"machines\": ";
    write_object(json_.at("machines"), "  ", write_fields);
    file << "}\n";
    file.flush();
    require(file.good(), ErrorCode::kIo, "cannot write ", path_);
  }

  std::string path_;
  Json json_{
      {kConfigurations, Json::object()}, {kMixtures, Json::object()}, {"machines", Json::object()}};
};

}  // namespace tessera::test
