#include "chat/jinja_render.h"

#include <algorithm>
#include <array>

#include "chat/jinja_functions.h"
#include "tessera/core/error.h"

namespace tessera::jinja {
namespace runner {

/// Names that a block has set. Loops, macros and generation blocks have scopes of their own.
struct Scope {
  const std::shared_ptr<Scope> outer{};
  Dict names{};
};

enum class Flow { kOn, kBreak, kContinue };

class Renderer {
 public:
  Renderer(const std::string& name, const Dict& variables, const std::tm& time)
      : name_(name), variables_(variables), time_(time), scope_(std::make_shared<Scope>()) {
    add_functions();
  }

  Rendering run(const Block& block) {
    run_block(block);
    return {std::move(out_), std::move(generated_)};
  }

 private:
  static constexpr int kDeepest = 100;
  static constexpr std::size_t kMostText = std::size_t{64} << 20;

  template <typename... Args>
  [[noreturn]] void refuse(int line, const Args&... what) const {
    fail(ErrorCode::kConfig, "line ", line, " of '", name_, "': ", what...);
  }

  /// Returns the result of `work`; its Problem is an Error at `line`.
  template <typename Work>
  auto guarded(int line, const Work& work) const {
    try {
      return work();
    } catch (const Problem& problem) {
      refuse(line, problem.what);
    }
  }

  void add_functions() {
    functions_.set(
        "raise_exception", Value::function([](const Arguments& arguments) -> Value {
          throw Problem{concat("the template refuses these messages: ",
                               string_argument(arguments.find(0, "message"), "raise_exception"))};
        }));
    functions_.set("strftime_now", Value::function([this](const Arguments& arguments) -> Value {
                     const std::string& format =
                         string_argument(arguments.find(0, "format"), "strftime_now");
                     std::array<char, 256> text{};
                     const std::size_t length =
                         std::strftime(text.data(), text.size(), format.c_str(), &time_);
                     return std::string(text.data(), length);
                   }));
    functions_.set("range", Value::function(range));
    functions_.set("namespace", Value::function([](const Arguments& arguments) -> Value {
                     auto made = std::make_shared<Namespace>();
                     for (const Value& value : arguments.values) {
                       if (value.dict() == nullptr)
                         throw Problem{"namespace takes a dict, or names"};
                       for (const auto& [key, member] : value.dict()->items)
                         made->members.set(key, member);
                     }
                     for (const auto& [key, value] : arguments.named) made->members.set(key, value);
                     return Value(Value::Content(std::move(made)));
                   }));
    functions_.set("dict", Value::function([](const Arguments& arguments) -> Value {
                     Dict made;
                     if (!arguments.values.empty()) {
                       if (arguments.values.front().dict() == nullptr)
                         throw Problem{"dict takes a dict, or names"};
                       made = *arguments.values.front().dict();
                     }
                     for (const auto& [key, value] : arguments.named) made.set(key, value);
                     return Value::dict(std::move(made));
                   }));
  }

  static Value range(const Arguments& arguments) {
    constexpr std::int64_t kMost = 100'000;  // as Jinja2's sandbox
    const auto number = [&](std::size_t i) {
      return integer_argument(&arguments.values[i], "range", 0);
    };
    const std::size_t count = arguments.values.size();
    if (count < 1 || count > 3) throw Problem{"range takes one to three integers"};
    const std::int64_t begin = count > 1 ? number(0) : 0, end = number(count > 1 ? 1 : 0);
    const std::int64_t step = count > 2 ? number(2) : 1;
    if (step == 0) throw Problem{"range has the step 0"};
    std::vector<Value> all;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      if (static_cast<std::int64_t>(all.size()) == kMost) throw Problem{"range is too long"};
      all.emplace_back(i);
    }
    return Value::list(std::move(all));
  }

  Value look_up(const std::string& name) const {
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
      if (const Value* found = scope->names.find(name)) return *found;
    }
    for (const Dict* names : {&variables_, &functions_}) {
      if (const Value* found = names->find(name)) return *found;
    }
    return Value::undefined(name);
  }

  /// Runs `work` in a scope inside of `outer`.
  template <typename Work>
  auto in_scope(std::shared_ptr<Scope> outer, const Work& work) {
    struct Restore {
      Renderer& renderer;
      std::shared_ptr<Scope> scope;
      ~Restore() { renderer.scope_ = std::move(scope); }
    } restore{*this, scope_};
    scope_ = std::make_shared<Scope>(Scope{.outer = std::move(outer)});
    return work();
  }

  /// Returns the text that `work` writes, instead of writing it.
  template <typename Work>
  std::string captured(const Work& work) {
    std::string outside = std::exchange(out_, "");
    ++captures_;
    work();
    --captures_;
    return std::exchange(out_, std::move(outside));
  }

  Flow run_block(const Block& block) {
    for (const Statement& statement : block) {
      const Flow flow = run_statement(statement);
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Flow run_statement(const Statement& statement) {
    using Kind = Statement::Kind;
    switch (statement.kind) {
      case Kind::kText:
        out_ += statement.text;
        break;
      case Kind::kOutput:
        out_ += guarded(statement.line, [&] { return to_text(evaluate(*statement.expression)); });
        if (out_.size() > kMostText) refuse(statement.line, "the template writes too much");
        break;
      case Kind::kIf:
        return run_block(evaluate(*statement.expression).truth() ? statement.body
                                                                 : statement.otherwise);
      case Kind::kFor:
        return run_for(statement);
      case Kind::kSet:
        assign(statement, evaluate(*statement.expression));
        break;
      case Kind::kSetMember:
        set_member(statement);
        break;
      case Kind::kSetBlock: {
        // The body has a scope of its own.
        Value text = captured([&] { in_scope(scope_, [&] { run_block(statement.body); }); });
        scope_->names.set(statement.names.front(), std::move(text));
        break;
      }
      case Kind::kMacro:
        scope_->names.set(statement.text, macro_of(statement));
        break;
      case Kind::kGeneration:
        run_generation(statement);
        break;
      case Kind::kBreak:
        return Flow::kBreak;
      case Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kOn;
  }

  void assign(const Statement& statement, const Value& value) {
    if (statement.names.size() == 1) {
      scope_->names.set(statement.names.front(), value);
      return;
    }
    const std::vector<Value> items = guarded(statement.line, [&] { return items_of(value); });
    if (items.size() != statement.names.size()) {
      refuse(statement.line, statement.names.size(), " names for ", items.size(), " values");
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      scope_->names.set(statement.names[i], items[i]);
    }
  }

  void set_member(const Statement& statement) {
    const Value object = look_up(statement.names[0]);
    if (object.mutable_members() == nullptr) {
      refuse(statement.line, "'", statement.names[0], "' is no namespace, so '", statement.names[1],
             "' of it cannot be set");
    }
    Value value = evaluate(*statement.expression);
    object.mutable_members()->members.set(statement.names[1], std::move(value));
  }

  void run_generation(const Statement& statement) {
    if (captures_ > 0) {
      refuse(statement.line, "{% generation %} is inside of a macro or of a {% set %} with a body");
    }
    const std::size_t begin = out_.size();
    in_scope(scope_, [&] { run_block(statement.body); });
    generated_.emplace_back(begin, out_.size());
  }

  Flow run_for(const Statement& statement) {
    std::vector<Value> items =
        guarded(statement.line, [&] { return items_of(evaluate(*statement.expression)); });
    if (statement.condition != nullptr) {
      std::erase_if(items, [&](const Value& item) {
        return in_scope(scope_, [&] {
          assign(statement, item);
          return !evaluate(*statement.condition).truth();
        });
      });
    }
    if (items.empty()) return in_scope(scope_, [&] { return run_block(statement.otherwise); });
    ++loops_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Flow flow = in_scope(scope_, [&] {
        scope_->names.set("loop", loop_of(items, i));
        assign(statement, items[i]);
        return run_block(statement.body);
      });
      if (flow == Flow::kBreak) break;
    }
    --loops_;
    return Flow::kOn;
  }

  Value loop_of(const std::vector<Value>& items, std::size_t i) const {
    const auto at = static_cast<std::int64_t>(i), count = static_cast<std::int64_t>(items.size());
    Dict loop;
    loop.set("index", at + 1);
    loop.set("index0", at);
    loop.set("revindex", count - at);
    loop.set("revindex0", count - at - 1);
    loop.set("first", i == 0);
    loop.set("last", i + 1 == items.size());
    loop.set("length", count);
    loop.set("depth", std::int64_t{loops_});
    loop.set("depth0", std::int64_t{loops_ - 1});
    loop.set("previtem", i == 0 ? Value::undefined("previtem") : items[i - 1]);
    loop.set("nextitem", i + 1 == items.size() ? Value::undefined("nextitem") : items[i + 1]);
    loop.set("cycle", Value::function([i](const Arguments& arguments) -> Value {
               if (arguments.values.empty()) throw Problem{"cycle takes values"};
               return arguments.values[i % arguments.values.size()];
             }));
    return Value::dict(std::move(loop));
  }

  Value macro_of(const Statement& statement) {
    // A scope that holds the macro must not be held by it.
    return Value::function([this, &statement, weak = std::weak_ptr<Scope>(scope_)](
                               const Arguments& arguments) -> Value {
      const std::shared_ptr<Scope> defined_in = weak.lock();
      if (defined_in == nullptr) throw Problem{"a macro is called outside of its block"};
      if (++depth_ > kDeepest) throw Problem{"macros are nested too deeply"};
      Value text = captured([&] {
        in_scope(defined_in, [&] {
          bind(statement, arguments);
          const int outside = std::exchange(loops_, 0);
          run_block(statement.body);
          loops_ = outside;
        });
      });
      --depth_;
      return text;
    });
  }

  void bind(const Statement& macro, const Arguments& arguments) {
    if (arguments.values.size() > macro.names.size()) {
      throw Problem{
          concat("the macro '", macro.text, "' takes ", macro.names.size(), " arguments")};
    }
    for (const auto& [name, value] : arguments.named) {
      if (std::ranges::find(macro.names, name) == macro.names.end()) {
        throw Problem{concat("the macro '", macro.text, "' takes no argument '", name, "'")};
      }
    }
    const std::size_t without = macro.names.size() - macro.defaults.size();
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      const Value* const given = arguments.find(i, macro.names[i]);
      Value value = given != nullptr ? *given
                    : i >= without   ? evaluate(*macro.defaults[i - without])
                                     : Value::undefined(macro.names[i]);
      scope_->names.set(macro.names[i], std::move(value));
    }
  }

  Value evaluate(const Expression& expression) {
    return guarded(expression.line, [&] { return value_of(expression); });
  }

  Value value_of(const Expression& e) {
    using Kind = Expression::Kind;
    switch (e.kind) {
      case Kind::kLiteral:
        return e.value;
      case Kind::kName:
        return look_up(e.text);
      case Kind::kList:
        return Value::list(values_of(e, 0));
      case Kind::kTuple:
        return Value::list(values_of(e, 0), List::Kind::kTuple);
      case Kind::kDict:
        return dict_of(e);
      case Kind::kAttribute:
        return attribute_of(evaluate(*e.operands[0]), e.text);
      case Kind::kItem:
        return item_of(evaluate(*e.operands[0]), evaluate(*e.operands[1]));
      case Kind::kSlice:
        return slice(e);
      case Kind::kCall:
        return call(e);
      case Kind::kFilter:
        return apply_filter(e.text, evaluate(*e.operands[0]), arguments_of(e));
      case Kind::kTest:
        return apply_test(e.text, evaluate(*e.operands[0]), arguments_of(e));
      case Kind::kUnary:
        return unary(e);
      case Kind::kBinary:
        return combine(e);
      case Kind::kCompare:
        return compare(e);
      case Kind::kConditional:
        if (evaluate(*e.operands[1]).truth()) return evaluate(*e.operands[0]);
        return e.operands[2] == nullptr ? Value::undefined("else") : evaluate(*e.operands[2]);
    }
    return {};
  }

  std::vector<Value> values_of(const Expression& e, std::size_t first) {
    std::vector<Value> values;
    for (std::size_t i = first; i < e.operands.size(); ++i) {
      values.push_back(evaluate(*e.operands[i]));
    }
    return values;
  }

  Arguments arguments_of(const Expression& e) {
    Arguments arguments{.values = values_of(e, 1)};
    for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, evaluate(*value));
    return arguments;
  }

  Value dict_of(const Expression& e) {
    Dict made;
    for (std::size_t i = 0; i < e.operands.size(); i += 2) {
      const Value key = evaluate(*e.operands[i]);
      made.set(string_argument(&key, "a key of a dict"), evaluate(*e.operands[i + 1]));
    }
    return Value::dict(std::move(made));
  }

  Value slice(const Expression& e) {
    std::array<Value, 3> bounds;
    std::array<const Value*, 3> given{};
    for (std::size_t i = 0; i < 3; ++i) {
      if (e.operands[i + 1] == nullptr) continue;
      bounds[i] = evaluate(*e.operands[i + 1]);
      given[i] = &bounds[i];
    }
    return slice_of(evaluate(*e.operands[0]), given[0], given[1], given[2]);
  }

  Value call(const Expression& e) {
    const Value callee = evaluate(*e.operands[0]);
    if (const Function* function = callee.function()) {
      const Value held = callee;  // a macro may redefine its own name
      return (*function)(arguments_of(e));
    }
    const std::string& name = e.operands[0]->text;
    throw Problem{concat("'", name, "' is ",
                         callee.is_undefined() ? "no function, macro or method that is supported"
                                               : "not a function")};
  }

  Value unary(const Expression& e) {
    const Value value = evaluate(*e.operands[0]);
    if (e.text == "not") return !value.truth();
    return binary(e.text == "-" ? "-" : "+", Value(std::int64_t{0}), value);
  }

  Value combine(const Expression& e) {
    Value left = evaluate(*e.operands[0]);
    if (e.text == "and") return left.truth() ? evaluate(*e.operands[1]) : left;
    if (e.text == "or") return left.truth() ? left : evaluate(*e.operands[1]);
    return binary(e.text, left, evaluate(*e.operands[1]));
  }

  static bool holds(const std::string& comparison, const Value& a, const Value& b) {
    if (comparison == "==") return a == b;
    if (comparison == "!=") return !(a == b);
    if (comparison == "in") return contains(b, a);
    if (comparison == "not in") return !contains(b, a);
    if (comparison == "<") return is_less(a, b);
    if (comparison == ">") return is_less(b, a);
    if (comparison == "<=") return is_less(a, b) || a == b;
    return is_less(b, a) || a == b;
  }

  Value compare(const Expression& e) {
    Value left = evaluate(*e.operands[0]);
    for (std::size_t i = 0; i < e.comparisons.size(); ++i) {
      Value right = evaluate(*e.operands[i + 1]);
      if (!holds(e.comparisons[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  const std::string& name_;
  const Dict& variables_;
  const std::tm& time_;
  Dict functions_;
  std::shared_ptr<Scope> scope_;
  std::string out_;
  std::vector<std::pair<std::size_t, std::size_t>> generated_;
  int captures_ = 0, depth_ = 0, loops_ = 0;
};

}  // namespace runner

Rendering render(const Block& block, const std::string& name, const Dict& variables,
                 const std::tm& time) {
  return runner::Renderer(name, variables, time).run(block);
}

}  // namespace tessera::jinja
