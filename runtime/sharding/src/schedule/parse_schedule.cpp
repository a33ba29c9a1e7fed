#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "schedule/schedule_policy.h"
#include "schedule/schedule_words.h"
#include "tessera/core/error.h"
#include "tessera/sharding/operation.h"
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
  // All that are left.
  std::span<const std::string_view> rest() {
    const std::span<const std::string_view> words = std::span(words_).subspan(next_);
    next_ = words_.size();
    return words;
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

template <typename Enum, std::size_t kCount>
Enum parse_name(std::string_view what, std::string_view word, const std::array<Enum, kCount>& all) {
  for (const Enum value : all) {
    if (word == to_string(value)) return value;
  }
  fail(ErrorCode::kConfig, "unknown ", what, " '", word, "'");
}

constexpr std::array kAllRoles{
    Role::kParameter, Role::kDecoded,  Role::kCode,    Role::kScales,     Role::kMaster,
    Role::kOptimizer, Role::kGradient, Role::kScalars, Role::kActivation, Role::kActivationGradient,
    Role::kBatch,     Role::kHistory,  Role::kMaxima,  Role::kStatistics};
constexpr std::array kAllTiers{Tier::kDevice, Tier::kHost, Tier::kDisk};
constexpr std::array kPurposes{Purpose::kTrain, Purpose::kEvaluate};

class Parser {
 public:
  explicit Parser(std::span<const Operation* const> operations) : operations_(operations) {}

  /// Errors count the lines before the text, too.
  Schedule parse(std::string_view text, std::size_t lines_before) {
    std::size_t number = lines_before;
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
  static constexpr std::array<std::string_view, 8> kHeaderKeys{
      "purpose",   "mesh",        "parameter", "gradient",
      "optimizer", "micro_steps", "recompute", "first_backward_layer"};

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
    if (key == "purpose") {
      s.purpose = parse_name("purpose", line.take("train or evaluate"), kPurposes);
    } else if (key == "mesh") {
      s.mesh = parse_mesh(line);
    } else if (key == "parameter") {
      s.placement.parameter = parse_over(line);
      s.parameter_dtype = parse_in(line);
    } else if (key == "frozen") {
      s.placement.frozen = parse_over(line);
    } else if (key == "gradient") {
      s.placement.gradient = parse_over(line);
      s.reduce_dtype = parse_in(line);
    } else if (key == "optimizer") {
      s.placement.optimizer = parse_over(line);
    } else if (key == "micro_steps") {
      s.micro_steps = line.number("a number");
    } else if (key == "recompute") {
      s.policy.recompute = parse_recompute(line.take("none, selective or full"));
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
      if (line.accept("rank")) unit.rank = line.number("a pipeline rank");
      if (line.accept("mirrors")) unit.mirrors = find(units_, "unit", line);
      schedule_.units.push_back(std::move(unit));
    } else if (key == "flat") {
      parse_flat(line);
    } else if (key == "layer") {
      ScheduleLayer layer;
      layer.name = define(layers_, line);
      layer.forward_reads = parse_units(line);
      layer.backward_reads = parse_units(line);
      layer.gradients = parse_gradients(line);
      line.expect("|");
      layer.reads_batch = line.accept("batch");
      layer.splits_backward = line.accept("split");
      bool has_more = layer.reads_batch || layer.splits_backward;
      if (line.accept("classes")) {
        layer.counted_classes = line.number<std::int64_t>("the number of classes");
        require(layer.counted_classes > 0, ErrorCode::kConfig, "layer '", layer.name,
                "' counts each of ", layer.counted_classes, " classes, not of 1 or more");
        has_more = true;
      }
      if (line.accept("histories")) {
        layer.fp8_histories = line.number("the number of matrices with histories");
        has_more = true;
      }
      if (!has_more) line.expect("-");
      schedule_.layers.push_back(std::move(layer));
    } else if (key == "part") {
      const FlatId id = parse_flat_name(line.take("the name of a unit"));
      GradientPart part;
      part.name = unquote_name(line.take("the name of a tensor"));
      part.tensors = line.number("the number of tensors");
      line.expect("|");
      while (!line.done()) part.layers.push_back(find(layers_, "layer", line));
      schedule_.units[static_cast<std::size_t>(id.unit)]
          .flats.at(static_cast<std::size_t>(id.flat))
          .parts.push_back(std::move(part));
    } else if (key == "policy") {
      const std::string_view name = line.take("an option of the policy");
      require(policy_.emplace(name).second, ErrorCode::kConfig, "'", name, "' is given twice");
      read_policy(schedule_, name, line.rest());
    } else if (key == "buffer") {
      parse_buffer(line);
    } else {
      return false;
    }
    return true;
  }

  void parse_flat(Line& line) {
    ScheduleUnit& unit = schedule_.units[static_cast<std::size_t>(find(units_, "unit", line))];
    require(schedule_.layers.empty() && schedule_.buffers.empty(), ErrorCode::kConfig,
            "flat parameters come before layers and buffers");
    ScheduleFlat flat;
    flat.name = unquote_name(line.take("the name of a flat parameter"));
    for (const ScheduleFlat& other : unit.flats) {
      require(other.name != flat.name, ErrorCode::kConfig, "the name '", flat.name, "' is taken");
    }
    require(std::ssize(unit.flats) < FlatSet::kMost, ErrorCode::kConfig, "a unit has at most ",
            FlatSet::kMost, " flat parameters");
    flat.format = parse_dtype(line.take("a format"));
    flat.numel = line.number<std::int64_t>("the number of elements");
    flat.trainable = line.accept("trained");
    if (!flat.trainable) line.expect("frozen");
    if (line.accept("e4m3")) flat.matrices = line.number<int>("the number of matrices");
    if (line.accept("factored")) {
      flat.factored_numbers = line.number<std::int64_t>("the number of rows and columns");
      flat.factored_matrices = line.number<int>("the number of matrices");
    }
    if (!line.done()) flat.decoded_numel = line.number<std::int64_t>("the number of elements");
    unit.flats.push_back(std::move(flat));
  }

  /// "h.1+frozen": a unit, and flat parameters of it.
  std::pair<int, FlatSet> parse_with_flats(std::string_view word) const {
    std::size_t plus = std::min(word.find('+'), word.size());
    const int unit = find(units_, "unit", unquote_name(word.substr(0, plus)));
    const std::vector<ScheduleFlat>& flats = schedule_.units[static_cast<std::size_t>(unit)].flats;
    FlatSet set;
    while (plus < word.size()) {
      const std::size_t end = std::min(word.find('+', plus + 1), word.size());
      const std::string name = unquote_name(word.substr(plus + 1, end - plus - 1));
      const auto found = std::ranges::find(flats, name, &ScheduleFlat::name);
      require(found != flats.end(), ErrorCode::kConfig, "unit '",
              schedule_.units[static_cast<std::size_t>(unit)].name, "' has no flat parameter '",
              name, "'");
      set.insert(static_cast<int>(found - flats.begin()));
      plus = end;
    }
    return {unit, set};
  }

  /// One of a unit that exists, the first if none is named.
  FlatId parse_flat_name(std::string_view word) const {
    const auto [unit, flats] = parse_with_flats(word);
    require(flats.size() <= 1, ErrorCode::kConfig, "'", word, "' names several flat parameters");
    require(!schedule_.units[static_cast<std::size_t>(unit)].flats.empty(), ErrorCode::kConfig,
            "unit '", schedule_.units[static_cast<std::size_t>(unit)].name,
            "' has no flat parameter");
    return {unit, flats.empty() ? 0 : flats.front()};
  }

  void parse_buffer(Line& line) {
    require(schedule_.actions.empty(), ErrorCode::kConfig, "buffers come before actions");
    ScheduleBuffer buffer;
    buffer.name = define(buffers_, line);
    buffer.kind = parse_name("kind", line.take("a kind"), kAllBufferKinds);
    const std::string_view role = line.take("a role");
    const std::size_t colon = std::min(role.find(':'), role.size());
    buffer.role = parse_name("role", role.substr(0, colon), kAllRoles);
    if (colon < role.size()) buffer.tensor = unquote_name(role.substr(colon + 1));
    if (buffer.kind == BufferKind::kInput || buffer.is_activation()) {
      buffer.layer = find(layers_, "layer", line);
    } else if (!line.accept("-")) {
      const FlatId id = parse_flat_name(line.take("the name of a unit"));
      buffer.unit = id.unit;
      buffer.flat = id.flat;
    }
    if (!line.accept("-")) buffer.micro_step = parse_numbered('m', line.take("a micro-step"));
    const std::string_view format = line.take("a format");
    const std::size_t slash = std::min(format.find('/'), format.size());
    buffer.format = parse_dtype(format.substr(0, slash));
    if (slash < format.size()) {
      buffer.block = parse_number<std::int64_t>(format.substr(slash + 1));
      require(buffer.block > 1 || buffer.is_factored(), ErrorCode::kConfig, "'", format,
              "' is no format");
    }
    buffer.sharded = parse_axes(line.take("axes"));
    buffer.numel = line.number<std::int64_t>("the number of elements");
    buffer.tier = parse_name("tier", line.take("a tier"), kAllTiers);
    buffer.persistent = line.accept("persistent");
    if (!buffer.persistent) line.expect("step");
    schedule_.buffers.push_back(std::move(buffer));
  }

  void parse_action(std::size_t index, Line& line) {
    require(index == schedule_.actions.size(), ErrorCode::kConfig, "action ", index,
            " is out of order: ", schedule_.actions.size(), " is next");
    Action action;
    action.lane = parse_name("lane", line.take("a lane"), kAllLanes);
    const std::string_view name = line.take("an operation");
    action.operation = find_operation(name, operations_);
    require(action.operation != nullptr, ErrorCode::kConfig, "unknown operation '", name, "'");
    if (action.operation->is_pass) {
      action.layer = find(layers_, "layer", line);
      action.micro_step = parse_numbered('m', line.take("a micro-step"));
    }
    if (action.operation->is_message) {
      if (!line.accept("-")) {
        action.layer = find(layers_, "layer", line);
        action.micro_step = parse_numbered('m', line.take("a micro-step"));
      }
      if (!line.accept("to")) line.expect("from");
      action.peer = line.number("a pipeline rank");
    }
    if (line.accept("over")) action.axes = parse_axes(line.take("axes"));
    while (!line.accept("->")) action.reads.push_back(parse_operand(line.take("'->'")));
    std::vector<int>* waits = nullptr;
    const auto begins_waits = [&] {
      if (line.accept("after")) return waits = &action.waits, true;
      if (line.accept("previous")) return waits = &action.previous_waits, true;
      return false;
    };
    while (!line.done() && !begins_waits()) {
      std::string_view word = line.take("an operand");
      const bool updated = word.starts_with('*');
      if (updated) word.remove_prefix(1);
      action.writes.push_back(parse_operand(word));
      if (updated) action.reads.push_back(action.writes.back());
    }
    while (waits != nullptr && (waits->empty() || !line.done())) {
      if (!waits->empty() && waits == &action.waits && line.accept("previous")) {
        waits = &action.previous_waits;
      }
      waits->push_back(line.number("an action"));
    }
    schedule_.actions.push_back(std::move(action));
  }

  // "+g1=h.3/shard": see describe.
  Operand parse_operand(std::string_view word) {
    Operand operand;
    operand.adds = word.starts_with('+');
    if (operand.adds) word.remove_prefix(1);
    const std::size_t slash = std::min(word.find('/'), word.size());
    const std::size_t equals = std::min(word.find('='), slash);
    operand.buffer = find(buffers_, "buffer", unquote_name(word.substr(0, equals)));
    operand.unit = schedule_.buffer(operand).unit;
    operand.sharded = schedule_.buffer(operand).sharded;
    if (equals < slash) {
      std::tie(operand.unit, operand.flats) =
          parse_with_flats(word.substr(equals + 1, slash - equals - 1));
    }
    if (slash < word.size()) operand.sharded = parse_axes(word.substr(slash + 1));
    return operand;
  }

  static Mesh parse_mesh(Line& line) {
    Mesh mesh;
    std::int64_t ranks = 1;
    bool fits = true;
    for (const AxisRow& row : kAxisTable) {
      if (is_always_written(row)) {
        line.expect(row.name);
      } else if (!line.accept(row.name)) {
        continue;
      }
      mesh.set_size(row.axis, line.number(concat("the size of axis ", row.name)));
      ranks *= std::max(mesh.size(row.axis), 1);
      fits = fits && ranks <= std::numeric_limits<int>::max();
      if (!fits) ranks = 1;
    }
    require(fits, ErrorCode::kConfig, "a mesh of ", to_string(mesh), " is too large; there can be ",
            std::numeric_limits<int>::max(), " ranks");
    return mesh;
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

  std::vector<FlatId> parse_gradients(Line& line) const {
    line.expect("|");
    std::vector<FlatId> flats;
    if (line.accept("-")) return flats;
    do {
      flats.push_back(parse_flat_name(line.take("the name of a unit")));
    } while (!line.done() && !line.starts('|'));
    return flats;
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
    return find(names, what, unquote_name(line.take(concat("the name of a ", what))));
  }
  static int find(const Names& names, std::string_view what, const std::string& name) {
    const auto found = names.find(name);
    require(found != names.end(), ErrorCode::kConfig, "there is no ", what, " '", name, "'");
    return found->second;
  }

  Schedule schedule_;
  Names units_;
  Names layers_;
  Names buffers_;
  std::span<const Operation* const> operations_;
  std::set<std::string, std::less<>> seen_;
  std::set<std::string, std::less<>> policy_;  ///< options given
  bool titled_ = false;
};

}  // namespace

Schedule parse_schedule(std::string_view text) { return parse_schedule(text, all_operations()); }

Schedule parse_schedule(std::string_view text, std::span<const Operation* const> operations) {
  return Parser(operations).parse(text, 0);
}

Schedule parse_schedule(std::string_view text, std::size_t lines_before) {
  return Parser(all_operations()).parse(text, lines_before);
}

}  // namespace tessera
