#include "adapter/path_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "tessera/core/error.h"

namespace tessera {

PathPattern::PathPattern(const std::string& pattern) : code_(nullptr, pcre2_code_free) {
  int error = 0;
  PCRE2_SIZE place = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &place, nullptr));
  if (code_ != nullptr) return;
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  fail(ErrorCode::kConfig, "'", pattern,
       "' is no regular expression: ", reinterpret_cast<const char*>(text.data()), " at character ",
       place);
}

bool PathPattern::matches(std::string_view path) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
  return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(path.data()), path.size(), 0, 0,
                     match.get(), nullptr) >= 0;
}

}  // namespace tessera
