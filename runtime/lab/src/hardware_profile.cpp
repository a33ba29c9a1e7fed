#include "tessera/lab/hardware_profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "builtin_profiles.h"
#include "object_reader.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera-hardware-profile";
constexpr int kVersion = 1;

struct Field {
  const char* key;
  Quantity HardwareProfile::*member;
  bool may_be_zero = false;
};
constexpr Field kQuantities[] = {
    {"attention_forward", &HardwareProfile::attention_forward},
    {"attention_backward", &HardwareProfile::attention_backward},
    {"memory_bandwidth", &HardwareProfile::memory_bandwidth},
    {"launch", &HardwareProfile::launch, true},
    {"memory_bytes", &HardwareProfile::memory_bytes},
    {"copy_out", &HardwareProfile::copy_out},
    {"under_gather", &HardwareProfile::under_gather},
    {"under_reduce", &HardwareProfile::under_reduce},
};
struct LinkField {
  const char* key;
  Quantity LinkProfile::*member;
  bool may_be_zero;
};
constexpr LinkField kOfLinks[] = {{"latency", &LinkProfile::latency, true},
                                  {"hop", &LinkProfile::hop, true},
                                  {"bandwidth", &LinkProfile::bandwidth, false}};
constexpr std::pair<const char*, LinkProfile HardwareProfile::*> kLinks[] = {
    {"node", &HardwareProfile::node}, {"network", &HardwareProfile::network}};

Quantity quantity_of(const Json& json, const std::string& place, bool may_be_zero) {
  ObjectReader object(json, place);
  Quantity quantity{object.number("value", may_be_zero), object.text("source")};
  object.finish();
  return quantity;
}

Json json_of(const Quantity& quantity) {
  return {{"value", quantity.value}, {"source", quantity.source}};
}

std::vector<GemmRate> rates_of(const Json& json, const std::string& place) {
  require(json.is_array() && !json.empty(), ErrorCode::kConfig, place,
          " must be an array of at least one rate");
  std::vector<GemmRate> rates;
  for (const Json& item : json) {
    ObjectReader object(item, place);
    rates.push_back(
        {object.number("flops"), object.number("flops_per_second"), object.text("source")});
    object.finish();
    require(rates.size() == 1 || rates[rates.size() - 2].flops < rates.back().flops,
            ErrorCode::kConfig, place, ": 'flops' must ascend");
  }
  return rates;
}

HardwareProfile profile_of(const Json& json, const std::string& path) {
  ObjectReader object(json, concat("the profile '", path, "'"));
  require(object.text("format") == kFormat, ErrorCode::kConfig, "'", path,
          "' is no hardware profile: its format is not '", kFormat, "'");
  const double version = object.number("version");
  require(version == kVersion, ErrorCode::kConfig, "the profile '", path, "' is of version ",
          version, ", and this program reads version ", kVersion);
  HardwareProfile profile;
  profile.name = object.text("name");
  profile.device = object.text("device");
  require(profile.device == "cuda" || profile.device == "cpu", ErrorCode::kConfig, "the profile '",
          path, "': 'device' must be 'cuda' or 'cpu', not '", profile.device, "'");
  const auto by_dtype = [&](const char* key, const auto& read) {
    const Json& dtypes = object.take(key);
    require(dtypes.is_object(), ErrorCode::kConfig, object.place_of(key), " must be an object");
    for (const auto& [dtype, value] : dtypes.items()) {
      require(dtype == "fp32" || dtype == "bf16", ErrorCode::kConfig, object.place_of(key),
              " has a dtype '", dtype, "'; there are fp32 and bf16");
      read(dtype, value, concat(object.place_of(key), ", ", dtype));
    }
  };
  by_dtype("peak", [&](const std::string& dtype, const Json& value, const std::string& place) {
    profile.peak[dtype] = quantity_of(value, place, false);
  });
  by_dtype("gemm", [&](const std::string& dtype, const Json& value, const std::string& place) {
    profile.gemm[dtype] = rates_of(value, place);
  });
  for (const Field& field : kQuantities) {
    profile.*field.member =
        quantity_of(object.take(field.key), object.place_of(field.key), field.may_be_zero);
  }
  for (const auto& [key, link] : kLinks) {
    ObjectReader of_link(object.take(key), object.place_of(key));
    for (const LinkField& field : kOfLinks) {
      profile.*link.*field.member =
          quantity_of(of_link.take(field.key), of_link.place_of(field.key), field.may_be_zero);
    }
    of_link.finish();
  }
  object.finish();
  for (const Quantity& factor : {profile.under_gather, profile.under_reduce}) {
    require(factor.value >= 1.0, ErrorCode::kConfig, "the profile '", path,
            "': work is no faster while collectives run; 'under_gather' and 'under_reduce' must be "
            "at least 1, not ",
            factor.value);
  }
  return profile;
}

}  // namespace

double HardwareProfile::gemm_rate(const std::string& dtype, double flops) const {
  const auto found = gemm.find(dtype);
  require(found != gemm.end(), ErrorCode::kConfig, "the profile '", name,
          "' has no rate of GEMMs in ", dtype, "; add one, or choose another --precision");
  const std::vector<GemmRate>& rates = found->second;
  const auto above = std::ranges::find_if(rates, [&](const auto& r) { return r.flops >= flops; });
  if (above == rates.begin()) return above->flops_per_second;
  if (above == rates.end()) return rates.back().flops_per_second;
  const GemmRate& below = *(above - 1);
  const double share = std::log(flops / below.flops) / std::log(above->flops / below.flops);
  return below.flops_per_second + share * (above->flops_per_second - below.flops_per_second);
}

HardwareProfile parse_profile(const std::string& text, const std::string& path) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kConfig, "the profile '", path, "' is not JSON: ", error.what());
  }
  return profile_of(json, path);
}

std::string to_text(const HardwareProfile& profile) {
  Json json{{"format", kFormat},        {"version", kVersion},    {"name", profile.name},
            {"device", profile.device}, {"peak", Json::object()}, {"gemm", Json::object()}};
  for (const auto& [dtype, peak] : profile.peak) json["peak"][dtype] = json_of(peak);
  for (const auto& [dtype, rates] : profile.gemm) {
    json["gemm"][dtype] = Json::array();
    for (const GemmRate& rate : rates) {
      json["gemm"][dtype].push_back({{"flops", rate.flops},
                                     {"flops_per_second", rate.flops_per_second},
                                     {"source", rate.source}});
    }
  }
  for (const Field& field : kQuantities) json[field.key] = json_of(profile.*field.member);
  for (const auto& [key, link] : kLinks) {
    for (const LinkField& field : kOfLinks) {
      json[key][field.key] = json_of(profile.*link.*field.member);
    }
  }
  return json.dump(1) + "\n";
}

HardwareProfile find_profile(const std::string& name_or_path) {
  for (const HardwareProfile& profile : all_builtin_profiles()) {
    if (profile.name == name_or_path) return profile;
  }
  std::ifstream file(name_or_path);
  if (!file) {
    std::string known;
    for (const std::string& name : builtin_profiles()) known += (known.empty() ? "" : ", ") + name;
    fail(ErrorCode::kNotFound, "there is no profile '", name_or_path,
         "': it is neither a file nor one of ", known);
  }
  std::ostringstream text;
  text << file.rdbuf();
  return parse_profile(text.str(), name_or_path);
}

}  // namespace tessera
