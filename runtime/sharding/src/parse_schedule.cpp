#include <charconv>
#include <limits>
#include <map>
#include <set>

#include "schedule_words.h"
#include "tessera/core/error.h"
#include "tessera/sharding/schedule.h"

namespace tessera {
namespace {

constexpr std::string_view kBlanks = " \t\r";

using Words = std::vector<std::string_view>;

Words split(std::string_view line) {
  Words words;
  for (std::size_t begin = line.find_first_not_of(kBlanks); begin != line.npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

template <typename Number>
Number parse_number(std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  require(error == std::errc{} && end == word.data() + word.size() && value >= 0,
          ErrorCode::kConfig, "'", word, "' is not a number of at least 0");
  return value;
}

// "m3" with letter 'm' is 3.
int parse_numbered(char letter, std::string_view word) {
  require(word.size() > 1 && word.front() == letter, ErrorCode::kConfig, "'", word, "' is not '",
          letter, "' and a number");
  return parse_number<int>(word.substr(1));
}

// Takes the words of one line from the left.
class Line {
 public:
  explicit Line(Words words) : words_(std::move(words)) {}

  bool done() const { return next_ == words_.size(); }
  std::string_view take(std::string_view what) {
    require(!done(), ErrorCode::kConfig, what, " is missing at the end");
    return words_[next_++];
  }
  void expect(std::string_view word) {
    const std::string_view found = take(concat("'", word, "'"));
    require(found == word, ErrorCode::kConfig, "'", found, "' where '", word, "' belongs");
  }
  bool accept(std::string_view word) {
    if (done() || words_[next_] != word) return false;
    ++next_;
    return true;
  }
  // Whether the next word begins with `letter`; takes nothing.
  bool starts(char letter) const { return !done() && words_[next_].front() == letter; }
  template <typename Number = int>
  Number number(std::string_view what) {
    return parse_number<Number>(take(what));
  }
  void finish() const {
    require(done(), ErrorCode::kConfig, "'", done() ? std::string_view() : words_[next_],
            "' is one word too many");
  }

 private:
  Words words_;
  std::size_t next_ = 0;
};

ActionKind parse_kind(std::string_view word) {
  for (int i = 0; i < kActionKinds; ++i) {
    const auto kind = static_cast<ActionKind>(i);
    if (word == to_string(kind)) return kind;
  }
  fail(ErrorCode::kConfig, "unknown kind of action '", word, "'");
}

class Parser {
 public:
  Schedule parse(std::string_view text) {
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      ++number;
      try {
        parse_line(text.substr(begin, end - begin));
      } catch (const Error& error) {
        fail(ErrorCode::kConfig, "line ", number, " of the schedule: ", error.what());
      }
      begin = end + 1;
    }
    require(titled_, ErrorCode::kConfig, "line ", number + 1,
            " of the schedule: the text ends before '", kScheduleTitle, "'");
    for (std::string_view key : kHeaderKeys) {
      require(seen_.contains(key), ErrorCode::kConfig, "line ", number + 1,
              " of the schedule: the text ends without '", key, "'");
    }
    return std::move(schedule_);
  }

 private:
  static constexpr std::array<std::string_view, 9> kHeaderKeys{"mesh",
                                                               "parameter",
                                                               "gradient",
                                                               "optimizer",
                                                               "reduction_order",
                                                               "micro_steps",
                                                               "accumulate_unsharded",
                                                               "recompute",
                                                               "first_backward_layer"};

  void parse_line(std::string_view text) {
    Words words = split(text);
    if (words.empty() || words.front().front() == '#') return;
    Line line(std::move(words));
    if (!titled_) {
      for (std::string_view word : split(kScheduleTitle)) line.expect(word);
      titled_ = true;
    } else {
      const std::string_view key = line.take("a keyword");
      if (key.find_first_not_of("0123456789") == key.npos) {
        parse_action(parse_number<std::size_t>(key), line);
      } else if (!parse_item(key, line)) {
        parse_header(key, line);
      }
    }
    line.finish();
  }

  void parse_header(std::string_view key, Line& line) {
    Schedule& s = schedule_;
    if (key == "mesh") {
      line.expect("replicate");
      s.mesh.replicate = line.number("the number of replicas");
      line.expect("shard");
      s.mesh.shard = line.number("the number of shards");
      require(
          s.mesh.shard == 0 || s.mesh.replicate <= std::numeric_limits<int>::max() / s.mesh.shard,
          ErrorCode::kConfig, "a mesh of ", s.mesh.replicate, " x ", s.mesh.shard,
          " ranks is too large; there can be ", std::numeric_limits<int>::max());
    } else if (key == "parameter") {
      s.placement.parameter = parse_over(line);
      s.parameter_dtype = parse_in(line);
    } else if (key == "gradient") {
      s.placement.gradient = parse_over(line);
      s.reduce_dtype = parse_in(line);
    } else if (key == "optimizer") {
      s.placement.optimizer = parse_over(line);
    } else if (key == "reduction_order") {
      s.reduction_order = parse_reduction_order(line.take("an order"));
    } else if (key == "micro_steps") {
      s.micro_steps = line.number("a number");
    } else if (key == "accumulate_unsharded") {
      s.accumulate_unsharded = line.accept("yes");
      if (!s.accumulate_unsharded) line.expect("no");
    } else if (key == "recompute") {
      s.recompute = parse_recompute(line.take("none, selective or full"));
    } else if (key == "first_backward_layer") {
      s.first_backward_layer = line.number("an index");
    } else {
      fail(ErrorCode::kConfig, "unknown keyword '", key, "'");
    }
    require(seen_.emplace(key).second, ErrorCode::kConfig, "'", key, "' is given twice");
  }

  // Lines that may repeat. False if `key` starts none of them.
  bool parse_item(std::string_view key, Line& line) {
    if (key == "unit") {
      ScheduleUnit unit;
      unit.name = define(units_, line);
      unit.trainable_numel = line.number<std::int64_t>("the number of trainable elements");
      unit.frozen_numel = line.number<std::int64_t>("the number of frozen elements");
      schedule_.units.push_back(std::move(unit));
    } else if (key == "layer") {
      ScheduleLayer layer;
      layer.name = define(layers_, line);
      layer.forward_reads = parse_units(line);
      layer.backward_reads = parse_units(line);
      layer.gradients = parse_units(line);
      schedule_.layers.push_back(std::move(layer));
    } else if (key == "slot") {
      const std::string_view word = line.take("a slot");
      const bool parameters = word.front() == 'p';
      auto& slots = parameters ? schedule_.parameter_slots : schedule_.gradient_slots;
      const int index = parse_numbered(parameters ? 'p' : 'g', word);
      require(static_cast<std::size_t>(index) == slots.size(), ErrorCode::kConfig, "slot ", word,
              " is out of order: ", slots.size(), " is next");
      slots.push_back(line.number<std::int64_t>("the number of elements"));
    } else if (key == "target") {
      GradientTarget target;
      target.unit = find(units_, "unit", line);
      target.micro_step = parse_numbered('m', line.take("a micro-step"));
      line.expect("->");
      if (!line.accept("buffer")) target.slot = parse_numbered('g', line.take("a slot"));
      schedule_.gradient_targets.push_back(target);
    } else {
      return false;
    }
    return true;
  }

  void parse_action(std::size_t index, Line& line) {
    require(index == schedule_.actions.size(), ErrorCode::kConfig, "action ", index,
            " is out of order: ", schedule_.actions.size(), " is next");
    const std::string_view lane = line.take("a lane");
    Action action;
    action.kind = parse_kind(line.take("a kind of action"));
    require(lane == to_string(action.lane()), ErrorCode::kConfig, to_string(action.kind),
            " runs on lane ", to_string(action.lane()), ", not '", lane, "'");
    const ActionSubject subject = subject_of(action.kind);
    if (subject == ActionSubject::kUnit) action.unit = find(units_, "unit", line);
    if (subject == ActionSubject::kLayer) action.layer = find(layers_, "layer", line);
    if (line.starts('m')) action.micro_step = parse_numbered('m', line.take("a micro-step"));
    if (action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard) {
      if (line.accept(action.kind == ActionKind::kUnshard ? "->" : "free")) {
        action.slot = parse_numbered('p', line.take("a slot"));
      }
    } else if (action.kind == ActionKind::kRound) {
      if (line.accept("->")) action.slot = parse_numbered('g', line.take("a slot"));
    } else if (line.accept("<-") && !line.accept("buffer")) {
      action.slot = parse_numbered('g', line.take("a slot"));
    }
    if (line.accept("over")) action.axes = parse_axes(line.take("axes"));
    action.accumulate = line.accept("accumulate");
    if (line.accept("after")) {
      do {
        action.waits.push_back(line.number("an action"));
      } while (!line.done());
    }
    schedule_.actions.push_back(std::move(action));
  }

  static AxisSet parse_over(Line& line) {
    line.expect("over");
    return parse_axes(line.take("axes"));
  }
  static DType parse_in(Line& line) {
    line.expect("in");
    return parse_dtype(line.take("a dtype"));
  }

  // "|" and unit names up to the next one; "-" for none.
  std::vector<int> parse_units(Line& line) {
    line.expect("|");
    std::vector<int> units;
    if (line.accept("-")) return units;
    do {
      units.push_back(find(units_, "unit", line));
    } while (!line.done() && !line.starts('|'));
    return units;
  }

  using Names = std::map<std::string, int, std::less<>>;

  static std::string define(Names& names, Line& line) {
    std::string name = unquote_name(line.take("a name"));
    const int index = static_cast<int>(names.size());
    require(names.emplace(name, index).second, ErrorCode::kConfig, "the name '", name,
            "' is taken");
    return name;
  }
  static int find(const Names& names, std::string_view what, Line& line) {
    const std::string name = unquote_name(line.take(concat("the name of a ", what)));
    const auto found = names.find(name);
    require(found != names.end(), ErrorCode::kConfig, "there is no ", what, " '", name, "'");
    return found->second;
  }

  Schedule schedule_;
  Names units_;
  Names layers_;
  std::set<std::string, std::less<>> seen_;
  bool titled_ = false;
};

}  // namespace

Schedule parse_schedule(std::string_view text) { return Parser().parse(text); }

}  // namespace tessera
