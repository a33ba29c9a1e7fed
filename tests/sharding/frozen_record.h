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
  double before = 0.0, after = 0.0;
  bool is_worse = true;  ///< false: of a value that may fall, and has
};

/// Fewer actions and less time are welcome; everything else stays.
inline bool may_fall(const std::string& field) {
  return field.find("seconds") != std::string::npos || field.find("actions") != std::string::npos;
}

/// Of numbers by name, in objects; one that is absent is 0.
inline std::vector<FrozenDifference> differences(const Json& before, const Json& after) {
  const Json was_flat = before.flatten(), is_flat = after.flatten();
  std::map<std::string, std::pair<double, double>> fields;
  for (const auto& [field, value] : was_flat.items()) {
    if (value.is_number()) fields[field].first = value.get<double>();
  }
  for (const auto& [field, value] : is_flat.items()) {
    if (value.is_number()) fields[field].second = value.get<double>();
  }
  std::vector<FrozenDifference> found;
  for (const auto& [field, values] : fields) {
    const auto& [was, is] = values;
    if (was != is) found.push_back({field, was, is, is > was || !may_fall(field)});
  }
  return found;
}

/// SHA-256 of a run's parameters and results, by configuration.
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

class FrozenRecord {
 public:
  explicit FrozenRecord(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    if (!file.good()) return;
    json_ = Json::parse(file);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, values] : json_["configurations"].items()) all.push_back(name);
    return all;
  }
  /// What planned_values() gave; empty: it is not there.
  Json planned(const std::string& name) const {
    const Json& all = json_["configurations"];
    return all.contains(name) ? all[name] : Json::object();
  }
  bool knows(const std::string& machine) const { return json_["machines"].contains(machine); }
  FrozenHashes hashes(const std::string& machine) const {
    FrozenHashes all;
    if (!knows(machine)) return all;
    for (const auto& [name, pair] : json_["machines"][machine].items()) {
      all[name] = {pair.at(0).get<std::string>(), pair.at(1).get<std::string>()};
    }
    return all;
  }
  /// Of any machine: groups are the same on all.
  FrozenHashes any_hashes() const {
    return json_["machines"].empty() ? FrozenHashes{} : hashes(json_["machines"].begin().key());
  }

  /// Replaces the values of all configurations, and the hashes of `machine`. Those of other
  /// machines stay if those of this one are known and the same.
  void update(const Json& planned, const std::string& machine, const FrozenHashes& hashes) {
    const FrozenHashes before = this->hashes(machine);
    json_["configurations"] = planned;
    Json machines = Json::object();
    for (const auto& [other, of_other] : json_["machines"].items()) {
      for (const auto& [name, pair] : of_other.items()) {
        const auto is = hashes.find(name);
        if (is == hashes.end()) continue;
        const auto was = before.find(name);
        if (was == before.end() || was->second == is->second) machines[other][name] = pair;
      }
    }
    machines[machine] = Json::object();
    for (const auto& [name, values] : planned.items()) {
      const auto& [of_parameters, of_results] = hashes.at(name);
      machines[machine][name] = {of_parameters, of_results};
    }
    json_["machines"] = machines;
    write();
  }

 private:
  /// One line for each field, so that a change shows in a line.
  void write() const {
    std::ofstream file(path_);
    const auto write_object = [&](const char* title, const Json& object, const char* end) {
      file << " " << Json(title).dump() << ": {";
      const char* before = "\n";
      for (const auto& [name, fields] : object.items()) {
        file << before << "  " << Json(name).dump() << ": {";
        const char* separator = "\n";
        for (const auto& [field, value] : fields.items()) {
          file << separator << "   " << Json(field).dump() << ": " << value.dump();
          separator = ",\n";
        }
        file << "}";
        before = ",\n";
      }
      file << "\n }" << end << "\n";
    };
    file << "{\n";
    write_object("configurations", json_["configurations"], ",");
    write_object("machines", json_["machines"], "");
    file << "}\n";
    file.flush();
    require(file.good(), ErrorCode::kIo, "cannot write ", path_);
  }

  std::string path_;
  Json json_{{"configurations", Json::object()}, {"machines", Json::object()}};
};

}  // namespace tessera::test
