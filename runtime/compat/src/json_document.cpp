#include <cstdlib>
#include <iterator>

#include "document.h"
#include "tessera/core/error.h"
#include "tessera/trainer/setting.h"

namespace tessera::compat {
namespace {

using nlohmann::json;

/// Reads a text and counts its lines on the way; nlohmann tells positions only in errors.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int* line_;
};

class JsonEvents : public nlohmann::json_sax<json> {
 public:
  JsonEvents(const std::string& path, const int& line) : builder_(path), path_(path), line_(line) {}

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return begin(Node::Kind::kMap); }
  bool start_array(std::size_t) override { return begin(Node::Kind::kList); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& text) override {
    key_line_ = line_;
    key_ = text;
    builder_.key(text, line_);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    // Its text begins with "[json.exception.parse_error.101] ".
    const std::string what = error.what();
    const std::size_t bracket = what.find("] ");
    // The parser has read on; its message says where the mistake is.
    const std::size_t at = what.find("at line ");
    const int line = at == std::string::npos ? line_ : std::atoi(what.c_str() + at + 8);
    constexpr int kOutOfRange = 406;
    require(error.id != kOutOfRange, ErrorCode::kConfig,
            at_line(path_, key_line_ > 0 ? key_line_ : line), key_,
            ": is a number beyond all that fp64 can hold; write a smaller one");
    fail(ErrorCode::kConfig, at_line(path_, line),
         "not valid JSON: ", bracket == std::string::npos ? what : what.substr(bracket + 2));
  }

  Node take() { return builder_.take(); }

 private:
  bool scalar(json value) {
    // A number is known to end only behind it, perhaps on the next line: its key's line is meant.
    std::string text = plain_text(value);
    builder_.scalar(std::move(value), std::move(text), key_line_ > 0 ? key_line_ : line_);
    return true;
  }
  bool begin(Node::Kind kind) {
    builder_.begin(kind, line_);
    return true;
  }
  bool end() {
    builder_.end();
    return true;
  }

  TreeBuilder builder_;
  const std::string& path_;
  const int& line_;
  int key_line_ = 0;
  std::string key_{};
};

}  // namespace

Node parse_json(const std::string& path, const std::string& text) {
  int line = 1;
  JsonEvents events(path, line);
  json::sax_parse(CountingIterator(text.data(), &line),
                  CountingIterator(text.data() + text.size(), &line), &events,
                  json::input_format_t::json, true, true);
  return events.take();
}

}  // namespace tessera::compat
