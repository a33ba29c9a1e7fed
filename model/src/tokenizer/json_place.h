#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tessera/core/error.h"

namespace tessera::data {

inline constexpr const char* kOtherTokenizer =
    "; tokens would differ from those that the file's model knows, so it is refused: use a "
    "tokenizer of GPT-2, Llama, Mistral, Qwen, Phi-3 or BERT";

/// A value of a tokenizer.json with its place, for errors.
struct Place {
  const std::string& file;
  std::string key;
  const nlohmann::json& value;

  template <typename... Args>
  [[noreturn]] void refuse(const Args&... args) const {
    fail(ErrorCode::kConfig, "'", file, "': ", key.empty() ? "the file" : key, " ", args...);
  }
  Place at(const std::string& name) const {
    return {file, key.empty() ? name : key + "." + name, value.at(name)};
  }
  Place at(std::size_t index) const {
    return {file, key + "[" + std::to_string(index) + "]", value[index]};
  }

  bool has(const char* name) const { return value.contains(name) && !value[name].is_null(); }
  /// The value in short, for errors.
  std::string shown() const {
    constexpr std::size_t kShown = 80;
    const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
  }

  const Place& object(std::initializer_list<std::string_view> keys) const {
    if (!value.is_object()) refuse("is ", shown(), ", not an object; download the file again");
    for (const auto& item : value.items()) {
      if (std::ranges::find(keys, item.key()) == keys.end()) {
        refuse("has '", item.key(), "', which is not known here", kOtherTokenizer);
      }
    }
    return *this;
  }
  const Place& array() const {
    if (!value.is_array()) refuse("is ", shown(), ", not a list; download the file again");
    return *this;
  }
  Place need(const char* name) const {
    if (!value.contains(name)) refuse("has no '", name, "'; download the file again");
    return at(name);
  }
  const std::string& text() const {
    if (!value.is_string()) refuse("is ", shown(), ", not a text; download the file again");
    return value.get_ref<const std::string&>();
  }
  bool boolean() const {
    if (!value.is_boolean()) refuse("is ", shown(), ", not true or false; download the file again");
    return value.get<bool>();
  }
  bool boolean(const char* name, bool absent) const {
    return has(name) ? at(name).boolean() : absent;
  }
  std::int32_t id() const {
    const bool whole = value.is_number_unsigned();
    if (!whole || value.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
      refuse("is ", shown(), ", not a token id; download the file again");
    }
    return value.get<std::int32_t>();
  }
  const std::string& type() const { return need("type").text(); }
  void refuse_type(const char* known) const {
    at("type").refuse("is '", type(), "', and only ", known, " is known here", kOtherTokenizer);
  }
  /// For options of which one value alone is known here.
  void must_be(const char* name, const nlohmann::json& only) const {
    if (has(name) && value[name] != only) {
      at(name).refuse("is ", at(name).shown(), ", and only ", only.dump(), " is known here",
                      kOtherTokenizer);
    }
  }
  void must_be_null(const char* name) const {
    if (has(name)) {
      at(name).refuse("is ", at(name).shown(), ", which would change tokens; set it to null");
    }
  }
};

}  // namespace tessera::data
