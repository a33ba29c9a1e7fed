#include "tessera/lab/profile_trust.h"

#include <algorithm>

#include "tessera/lab/hardware_profile.h"

namespace tessera {
namespace {

constexpr const char* kPublished =
    "published steps on H100 reach 54 to 79 % of the speed that h100-sxm predicts";

}  // namespace

std::string trust_in(std::string_view profile) {
  const bool is_builtin = std::ranges::count(builtin_profiles(), std::string(profile)) > 0;
  if (is_builtin && profile == "h100-sxm") {
    return "a limit: published steps on H100 reach 54 to 79 % of this speed";
  }
  if (is_builtin && profile == "h200-sxm") {
    return std::string(
               "a limit: six steps of GPT-2 measured on one H200 took 2 to 11 % longer than "
               "predicted; ") +
           kPublished;
  }
  if (is_builtin) {
    return std::string("a limit: no step was measured on this GPU; ") + kPublished;
  }
  return "a calibration of that machine, which measured runs can check";
}

}  // namespace tessera
