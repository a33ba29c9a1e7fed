#include "tessera/lab/hardware_profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "builtin_profiles.h"
#include "object_reader.h"
#include "profile_steps.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera-hardware-profile";
constexpr int kVersion = 3;

struct Field {
  const char* key;
  Quantity HardwareProfile::*member;
  bool may_be_zero = false;
  bool may_be_absent = false;
};
constexpr Field kQuantities[] = {
    {"memory_bandwidth", &HardwareProfile::memory_bandwidth},
    {"launch", &HardwareProfile::launch, true},
    {"handover", &HardwareProfile::handover, true},
    {"cores", &HardwareProfile::cores, true},
    {"memory_bytes", &HardwareProfile::memory_bytes},
    {"copy_out", &HardwareProfile::copy_out},
    {"host_bandwidth", &HardwareProfile::host_bandwidth},
    {"disk_bandwidth", &HardwareProfile::disk_bandwidth, false, true},
    {"under_gather", &HardwareProfile::under_gather},
    {"under_reduce", &HardwareProfile::under_reduce},
};
/// A file may leave them out.
constexpr std::pair<const char*, std::optional<Quantity> HardwareProfile::*> kOfMemory[] = {
    {"memory_under_gather", &HardwareProfile::memory_under_gather},
    {"memory_under_reduce", &HardwareProfile::memory_under_reduce}};
struct LinkField {
  const char* key;
  Quantity LinkProfile::*member;
  bool may_be_zero;
};
constexpr LinkField kOfLinks[] = {{"latency", &LinkProfile::latency, true},
                                  {"hop", &LinkProfile::hop, true},
                                  {"bandwidth", &LinkProfile::bandwidth, false}};
constexpr std::pair<const char*, LinkProfile HardwareProfile::*> kLinks[] = {
    {"process", &HardwareProfile::process},
    {"node", &HardwareProfile::node},
    {"network", &HardwareProfile::network}};

struct PowerField {
  const char* key;
  Quantity PowerProfile::*member;
};
constexpr PowerField kOfPower[] = {{"limit", &PowerProfile::limit},
                                   {"idle", &PowerProfile::idle},
                                   {"per_flop", &PowerProfile::per_flop},
                                   {"per_byte", &PowerProfile::per_byte}};

constexpr std::pair<const char*, double MeasurementNoise::*> kShares[] = {
    {"others", &MeasurementNoise::others},
    {"stolen", &MeasurementNoise::stolen},
    {"waiting", &MeasurementNoise::waiting},
    {"throttled", &MeasurementNoise::throttled},
    {"spread", &MeasurementNoise::spread}};
constexpr std::pair<const char*, std::int64_t MeasurementNoise::*> kCounts[] = {
    {"points", &MeasurementNoise::points},
    {"disturbed", &MeasurementNoise::disturbed},
    {"left_out", &MeasurementNoise::left_out}};

MeasurementNoise noise_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  MeasurementNoise noise;
  for (const auto& [key, member] : kShares) noise.*member = object.number(key, true);
  for (const auto& [key, member] : kCounts) noise.*member = object.count(key);
  object.finish();
  require(noise.disturbed <= noise.points, ErrorCode::kConfig, place, " has ", noise.disturbed,
          " points that were disturbed, of ", noise.points);
  return noise;
}

Json json_of(const MeasurementNoise& noise) {
  Json json = Json::object();
  for (const auto& [key, member] : kShares) json[key] = noise.*member;
  for (const auto& [key, member] : kCounts) json[key] = noise.*member;
  return json;
}

void require_dtype(const std::string& dtype, const std::string& place) {
  require(dtype == "fp32" || dtype == "bf16" || dtype == "fp16", ErrorCode::kConfig, place,
          " has a dtype '", dtype, "'; there are fp32, bf16 and fp16");
}

Quantity quantity_of(const Json& json, const std::string& place, bool may_be_zero) {
  ObjectReader object(json, place);
  Quantity quantity{object.number("value", may_be_zero), object.text("source")};
  object.finish();
  return quantity;
}

Json json_of(const Quantity& quantity) {
  return {{"value", quantity.value}, {"source", quantity.source}};
}

PowerProfile power_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  PowerProfile power;
  for (const auto& [key, member] : kOfPower) {
    power.*member = quantity_of(object.take(key), object.place_of(key), false);
  }
  object.finish();
  require(power.idle.value < power.limit.value, ErrorCode::kConfig, place, ": 'idle' (",
          power.idle.value, " W) must be below 'limit' (", power.limit.value, " W)");
  return power;
}

/// Each element of a list that has at least one.
template <class Read>
void for_each_in(const Json& list, const std::string& place, const Read& read) {
  require(list.is_array() && !list.empty(), ErrorCode::kConfig, place,
          " must be an array that is not empty");
  for (const Json& item : list) read(item);
}

/// An array of at least `count` numbers above 0.
std::vector<double> numbers_of(const Json& json, const std::string& place, std::size_t count) {
  const bool numbers =
      json.is_array() && json.size() >= count && std::ranges::all_of(json, [](const Json& number) {
        return number.is_number() && number.get<double>() > 0.0;
      });
  require(numbers, ErrorCode::kConfig, place, ": a point must be an array of ", count,
          " or more numbers above 0, not ", json.dump());
  return json.get<std::vector<double>>();
}

KernelRates kernel_rates_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  KernelRates rates{.kernel = object.text("kernel"),
                    .dtype = object.text("dtype"),
                    .threads = static_cast<int>(object.number("threads")),
                    .source = object.text("source"),
                    .points = {}};
  require_dtype(rates.dtype, place);
  for_each_in(object.take("points"), object.place_of("points"), [&](const Json& point) {
    std::vector<double> size = numbers_of(point, object.place_of("points"), 2);
    const double per_second = size.back();
    size.pop_back();
    require(rates.points.empty() || rates.points.front().size.size() == size.size(),
            ErrorCode::kConfig, object.place_of("points"), " have sizes of ", size.size(), " and ",
            rates.points.empty() ? 0 : rates.points.front().size.size(), " numbers");
    rates.points.push_back({std::move(size), per_second});
  });
  object.finish();
  return rates;
}

CollectiveTimes collective_times_of(const Json& json, const std::string& place) {
  ObjectReader object(json, place);
  CollectiveTimes times{.collective = object.text("collective"),
                        .ranks = static_cast<int>(object.number("ranks")),
                        .source = object.text("source"),
                        .points = {}};
  for_each_in(object.take("points"), object.place_of("points"), [&](const Json& point) {
    const std::vector<double> pair = numbers_of(point, object.place_of("points"), 2);
    require(pair.size() == 2 && (times.points.empty() || times.points.back().bytes < pair[0]),
            ErrorCode::kConfig, object.place_of("points"),
            " must be pairs of bytes, which ascend, and seconds");
    times.points.push_back({pair[0], pair[1]});
  });
  object.finish();
  return times;
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
  const std::string of_peak = object.place_of("peak");
  require(object.take("peak").is_object(), ErrorCode::kConfig, of_peak, " must be an object");
  for (const auto& [dtype, value] : object.take("peak").items()) {
    require_dtype(dtype, of_peak);
    profile.peak[dtype] = quantity_of(value, concat(of_peak, ", ", dtype), false);
  }
  for_each_in(object.take("kernels"), object.place_of("kernels"), [&](const Json& item) {
    profile.kernels.push_back(kernel_rates_of(item, object.place_of("kernels")));
  });
  for (const Field& field : kQuantities) {
    if (field.may_be_absent && !object.has(field.key)) continue;
    profile.*field.member =
        quantity_of(object.take(field.key), object.place_of(field.key), field.may_be_zero);
  }
  for (const auto& [key, member] : kOfMemory) {
    if (!object.has(key)) continue;
    profile.*member = quantity_of(object.take(key), object.place_of(key), false);
  }
  for (const auto& [key, link] : kLinks) {
    ObjectReader of_link(object.take(key), object.place_of(key));
    for (const LinkField& field : kOfLinks) {
      profile.*link.*field.member =
          quantity_of(of_link.take(field.key), of_link.place_of(field.key), field.may_be_zero);
    }
    if (of_link.has("measured")) {
      for_each_in(of_link.take("measured"), of_link.place_of("measured"), [&](const Json& item) {
        (profile.*link).measured.push_back(collective_times_of(item, of_link.place_of("measured")));
      });
    }
    of_link.finish();
  }
  if (object.has("noise")) {
    profile.noise = noise_of(object.take("noise"), object.place_of("noise"));
  }
  if (object.has("power")) {
    profile.power = power_of(object.take("power"), object.place_of("power"));
  }
  if (object.has("steps")) {
    for_each_in(object.take("steps"), object.place_of("steps"), [&](const Json& item) {
      profile.steps.push_back(step_times_of(item, object.place_of("steps")));
    });
  }
  if (object.has("residuals")) {
    for_each_in(object.take("residuals"), object.place_of("residuals"), [&](const Json& item) {
      profile.residuals.push_back(residual_of(item, object.place_of("residuals")));
    });
  }
  object.finish();
  for (const Quantity& factor : {profile.under_gather, profile.under_reduce,
                                 profile.memory_under_gather.value_or(profile.under_gather),
                                 profile.memory_under_reduce.value_or(profile.under_reduce)}) {
    require(
        factor.value >= 1.0, ErrorCode::kConfig, "the profile '", path,
        "': work is no faster while collectives run; 'under_gather', 'under_reduce' and the same "
        "of 'memory_' must be at least 1, not ",
        factor.value);
  }
  return profile;
}

/// Members line by line, and of lists the elements.
std::string in_lines(const Json& json, int depth) {
  const std::string indent(static_cast<std::size_t>(depth), ' ');
  const bool of_objects = json.is_array() && !json.empty() && json.front().is_object();
  const bool nested = json.is_object() && !json.contains("value") && !json.contains("points") &&
                      !json.contains("size");
  if (!of_objects && !nested) return json.dump();
  std::string text = json.is_array() ? "[" : "{";
  const char* separator = "\n";
  for (const auto& [key, value] : json.items()) {
    text += separator + indent + " ";
    if (json.is_object()) text += Json(key).dump() + ": ";
    text += in_lines(value, depth + 1);
    separator = ",\n";
  }
  return text + "\n" + indent + (json.is_array() ? "]" : "}");
}

bool is_nearer(int candidate, int current, int wanted) {
  const auto distance = [wanted](int n) {
    return std::abs(std::log(static_cast<double>(n) / static_cast<double>(wanted)));
  };
  return distance(candidate) < distance(current);
}

/// A value at an offset from where it is wanted.
struct NearPoint {
  std::vector<double> offset;
  double value = 0.0;
};

/// Least squares of a linear function, weighted by the inverse fourth power of the distance and
/// drawn a little towards no slope (moving least squares); its value at no offset, within those of
/// the points.
double fitted_at_zero(const std::vector<NearPoint>& points) {
  const std::size_t n = points.front().offset.size() + 1;  // the value, then the slopes
  std::vector<std::vector<double>> rows(n, std::vector<double>(n + 1, 0.0));
  double weights = 0.0;
  for (const NearPoint& point : points) {
    double squared = 0.0;
    for (const double offset : point.offset) squared += offset * offset;
    const double weight = 1.0 / ((squared + 1e-3) * (squared + 1e-3));
    weights += weight;
    std::vector<double> terms{1.0};
    terms.insert(terms.end(), point.offset.begin(), point.offset.end());
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) rows[i][j] += weight * terms[i] * terms[j];
      rows[i][n] += weight * terms[i] * point.value;
    }
  }
  for (std::size_t i = 1; i < n; ++i) rows[i][i] += 0.01 * weights;
  // Positive definite: eliminated without a search for pivots, from the last row up, so that the
  // first is left with the value alone.
  for (std::size_t k = n; k-- > 1;) {
    for (std::size_t i = 0; i < k; ++i) {
      const double factor = rows[i][k] / rows[k][k];
      for (std::size_t j = 0; j <= n; ++j) rows[i][j] -= factor * rows[k][j];
    }
  }
  const auto [least, most] = std::ranges::minmax(points, {}, &NearPoint::value);
  return std::clamp(rows[0][n] / rows[0][0], least.value, most.value);
}

}  // namespace

const KernelRates* HardwareProfile::find(std::string_view kernel, std::string_view dtype,
                                         int threads) const {
  const KernelRates* nearest = nullptr;
  for (const KernelRates& rates : kernels) {
    if (rates.kernel != kernel || rates.dtype != dtype) continue;
    if (nearest == nullptr || is_nearer(rates.threads, nearest->threads, threads)) nearest = &rates;
  }
  // "gemm nt, bias" is a "gemm nt", which is a "gemm".
  const std::size_t end = std::min(kernel.rfind(','), kernel.rfind(' '));
  if (nearest != nullptr || end == kernel.npos) return nearest;
  return find(kernel.substr(0, end), dtype, threads);
}

const CollectiveTimes* LinkProfile::find(std::string_view collective, int ranks) const {
  const CollectiveTimes* nearest = nullptr;
  for (const CollectiveTimes& times : measured) {
    if (times.collective != collective) continue;
    if (nearest == nullptr || is_nearer(times.ranks, nearest->ranks, ranks)) nearest = &times;
  }
  return nearest;
}

double CollectiveTimes::at(double bytes) const {
  const auto above = std::ranges::find_if(points, [&](const Point& p) { return p.bytes >= bytes; });
  if (above == points.begin()) return points.front().seconds;
  if (above == points.end()) return points.back().seconds * bytes / points.back().bytes;
  const Point& below = *(above - 1);
  const double share = std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return below.seconds * std::pow(above->seconds / below.seconds, share);
}

double KernelRates::at(const std::vector<double>& size) const {
  std::vector<NearPoint> near;
  std::vector<double> inside = size;
  for (std::size_t i = 0; i < size.size() && i < points.front().size.size(); ++i) {
    const auto of_dimension = [i](const Point& p) { return p.size[i]; };
    const auto [least, most] = std::ranges::minmax(points, {}, of_dimension);
    inside[i] = std::clamp(size[i], least.size[i], most.size[i]);
  }
  for (const Point& point : points) {
    NearPoint p{.offset = {}, .value = std::log(point.per_second)};
    for (std::size_t i = 0; i < point.size.size(); ++i) {
      p.offset.push_back(i < inside.size() ? std::log2(point.size[i] / inside[i]) : 0.0);
    }
    near.push_back(std::move(p));
  }
  return std::exp(fitted_at_zero(near));
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
            {"device", profile.device}, {"peak", Json::object()}, {"kernels", Json::array()}};
  for (const auto& [dtype, peak] : profile.peak) json["peak"][dtype] = json_of(peak);
  for (const KernelRates& rates : profile.kernels) {
    Json points = Json::array();
    for (const KernelRates::Point& point : rates.points) {
      points.push_back(point.size);
      points.back().push_back(point.per_second);
    }
    json["kernels"].push_back({{"kernel", rates.kernel},
                               {"dtype", rates.dtype},
                               {"threads", rates.threads},
                               {"source", rates.source},
                               {"points", std::move(points)}});
  }
  for (const Field& field : kQuantities) json[field.key] = json_of(profile.*field.member);
  for (const auto& [key, member] : kOfMemory) {
    if (profile.*member) json[key] = json_of(*(profile.*member));
  }
  for (const auto& [key, link] : kLinks) {
    for (const LinkField& field : kOfLinks) {
      json[key][field.key] = json_of(profile.*link.*field.member);
    }
    for (const CollectiveTimes& times : (profile.*link).measured) {
      Json points = Json::array();
      for (const auto& [bytes, seconds] : times.points) points.push_back({bytes, seconds});
      json[key]["measured"].push_back({{"collective", times.collective},
                                       {"ranks", times.ranks},
                                       {"source", times.source},
                                       {"points", std::move(points)}});
    }
  }
  if (profile.noise) json["noise"] = json_of(*profile.noise);
  if (profile.power) {
    for (const auto& [key, member] : kOfPower) {
      json["power"][key] = json_of(*profile.power.*member);
    }
  }
  for (const StepTimes& steps : profile.steps) json["steps"].push_back(json_of(steps));
  for (const Residual& one : profile.residuals) json["residuals"].push_back(json_of(one));
  return in_lines(json, 0) + "\n";
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
