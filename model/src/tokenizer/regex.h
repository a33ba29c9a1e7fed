#pragma once

#include <string>
#include <string_view>

namespace tessera::data {

/// A regular expression of a tokenizer.json, which the package `tokenizers` searches with Oniguruma
/// and its tables of Unicode 16, as PCRE2 finds the same with PCRE2_UTF and PCRE2_UCP: classes are
/// spelt out. Throws Error{kConfig} that names what is not known here.
std::string in_pcre2(std::string_view pattern);

}  // namespace tessera::data
