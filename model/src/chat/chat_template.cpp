#include "tessera/model/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "chat/jinja_parser.h"
#include "chat/jinja_render.h"
#include "strict_json.h"
#include "tessera/core/digest.h"
#include "tessera/core/error.h"
#include "tessera/core/input_file.h"
#include "tokenizer/special_tokens.h"

namespace tessera {
namespace chat {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::int64_t kMostBytes = data::kMostBytesOfTokenizerConfig;
constexpr const char* kConfigFile = "tokenizer_config.json";

bool exists(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string read_text(const std::string& path) {
  const InputFile file(path);
  require(file.size() <= kMostBytes, ErrorCode::kConfig, "'", path, "' has ", file.size(),
          " bytes; a chat template may have ", kMostBytes);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// "chat_template" of a tokenizer_config.json: a text, or a list of named ones; "" if there is
/// none.
std::string template_in(const nlohmann::json& config, const std::string& path) {
  if (!config.is_object() || !config.contains("chat_template")) return "";
  const nlohmann::json& all = config.at("chat_template");
  if (all.is_string()) return all.get<std::string>();
  if (all.is_array()) {
    for (const nlohmann::json& one : all) {
      if (one.is_object() && one.value("name", "") == "default" && one.contains("template") &&
          one.at("template").is_string()) {
        return one.at("template").get<std::string>();
      }
    }
  }
  fail(ErrorCode::kConfig, "'", path,
       "': \"chat_template\" is neither a text nor a list with one named \"default\"");
}

bool has_generation(const jinja::Block& block) {
  return std::ranges::any_of(block, [](const jinja::Statement& statement) {
    return statement.kind == jinja::Statement::Kind::kGeneration ||
           has_generation(statement.body) || has_generation(statement.otherwise);
  });
}

std::tm time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

}  // namespace chat

struct ChatTemplate::Parts {
  std::string path, source;
  std::map<std::string, std::string> tokens;
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::tm time{};
  jinja::Block block;
  bool has_generation = false;

  jinja::Rendering render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                          const nlohmann::ordered_json& tools) const {
    jinja::Dict all;
    all.set("messages", jinja::Value::of_json(messages));
    all.set("tools", jinja::Value::of_json(tools));
    all.set("documents", jinja::Value::none());
    all.set("add_generation_prompt", jinja::Value(add_generation_prompt));
    for (const auto& [name, text] : tokens) all.set(name, jinja::Value(text));
    for (const auto& [name, value] : variables.items()) {
      all.set(name, jinja::Value::of_json(value));
    }
    return jinja::render(block, path, all, time);
  }
};

ChatTemplate::ChatTemplate(const ChatTemplateOptions& options) {
  auto parts = std::make_shared<Parts>();
  parts->path = options.path;
  parts->source = chat::read_text(options.path);
  if (options.path.ends_with(".json")) {
    parts->source =
        chat::template_in(data::parse_strict_json(parts->source, options.path), options.path);
    require(!parts->source.empty(), ErrorCode::kConfig, "'", options.path,
            "' has no \"chat_template\"; give a file with a template of Jinja2");
  }
  std::string tokens = options.tokens_path;
  for (const char* const name : data::kSpecialTokenFiles) {
    const chat::fs::path beside = chat::fs::path(options.path).parent_path() / name;
    if (tokens.empty() && chat::exists(beside)) tokens = beside.string();
  }
  if (!tokens.empty()) {
    parts->tokens = data::special_tokens_in(data::read_strict_json(tokens, chat::kMostBytes));
  }
  if (!options.variables.empty()) {
    try {
      parts->variables = nlohmann::ordered_json::parse(options.variables);
    } catch (const nlohmann::json::parse_error&) {
      parts->variables = nullptr;
    }
    require(parts->variables.is_object(), ErrorCode::kConfig, "the variables of a chat template '",
            options.variables, "' are no JSON object; write {\"name\": value}");
  }
  parts->time = options.time ? *options.time : chat::time_now();
  parts->block = jinja::parse(parts->source, options.path);
  parts->has_generation = chat::has_generation(parts->block);
  parts_ = std::move(parts);
}

std::string ChatTemplate::render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                 const nlohmann::ordered_json& tools) const {
  return parts_->render(messages, add_generation_prompt, tools).text;
}

ChatTemplate::Chat ChatTemplate::chat(const nlohmann::ordered_json& messages,
                                      const nlohmann::ordered_json& tools) const {
  jinja::Rendering whole = parts_->render(messages, false, tools);
  if (parts_->has_generation) return {std::move(whole.text), std::move(whole.generated)};
  Chat chat{.text = std::move(whole.text)};
  nlohmann::ordered_json before = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const nlohmann::ordered_json& message = messages[i];
    const bool is_assistant =
        message.is_object() && message.contains("role") && message.at("role") == "assistant";
    const std::string prompt = is_assistant ? render(before, true, tools) : "";
    before.push_back(message);
    if (!is_assistant) continue;
    const bool is_last = i + 1 == messages.size();
    const std::string through = is_last ? chat.text : render(before, false, tools);
    require(chat.text.starts_with(through) && through.starts_with(prompt), ErrorCode::kConfig, "'",
            path(), "' renders message ", i + 1,
            " in another way where others follow it, so what the assistant has written cannot be "
            "told apart; put {% generation %} and {% endgeneration %} around it in the template");
    chat.written.emplace_back(prompt.size(), through.size());
  }
  return chat;
}

ChatTemplate::Chat ChatTemplate::completed(const nlohmann::ordered_json& prompt,
                                           const nlohmann::ordered_json& completion,
                                           const nlohmann::ordered_json& tools) const {
  nlohmann::ordered_json all = prompt;
  for (const nlohmann::ordered_json& message : completion) all.push_back(message);
  Chat chat{.text = render(all, false, tools)};
  const std::string begin = render(prompt, true, tools);
  require(chat.text.starts_with(begin), ErrorCode::kConfig, "'", path(),
          "' renders the prompt in another way where a completion follows it");
  chat.written.emplace_back(begin.size(), chat.text.size());
  return chat;
}

std::string ChatTemplate::question(const std::string& text) const {
  return render({{{"role", "user"}, {"content", text}}}, true, nullptr);
}

std::string ChatTemplate::special_token(const std::string& name) const {
  const auto found = parts_->tokens.find(name);
  return found == parts_->tokens.end() ? "" : found->second;
}

std::string ChatTemplate::identity() const {
  Digest digest;
  digest.add(parts_->source);
  for (const auto& [name, text] : parts_->tokens) digest.add(concat(name, " ", text));
  digest.add(parts_->variables.dump());
  return digest.hex();
}

const std::string& ChatTemplate::path() const { return parts_->path; }

std::string find_chat_template(const std::string& folder) {
  const chat::fs::path file = chat::fs::path(folder) / "chat_template.jinja";
  if (chat::exists(file)) return file.string();
  const chat::fs::path config = chat::fs::path(folder) / chat::kConfigFile;
  if (!chat::exists(config)) return "";
  const nlohmann::json all = data::read_strict_json(config.string(), chat::kMostBytes);
  return chat::template_in(all, config.string()).empty() ? "" : config.string();
}

}  // namespace tessera
