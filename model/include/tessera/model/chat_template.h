#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct ChatTemplateOptions {
  /// A template of Jinja2, or a tokenizer_config.json with a "chat_template" (of several, the one
  /// named "default").
  std::string path;
  /// A tokenizer_config.json or special_tokens_map.json with the template's bos_token, eos_token,
  /// ...; "": beside `path`, and none if there is none.
  std::string tokens_path{};
  /// A JSON object of the template's variables, such as {"enable_thinking": false}.
  std::string variables{};
  /// The time that strftime_now takes for now; unset: now.
  std::optional<std::tm> time{};
};

/// Messages of a chat as the text that a model has been trained on, by a template as transformers
/// has them: Jinja2 with trim_blocks, lstrip_blocks, break and continue, raise_exception,
/// strftime_now, its own tojson and {% generation %}. The statements, filters, tests and methods
/// that the templates of Llama, Mistral, Qwen, Phi, Gemma and ChatML use are there; others are
/// refused by name, with the line, when they are read or reached. Immutable; safe to use from any
/// thread.
class ChatTemplate {
 public:
  /// Throws Error{kNotFound, kIo, kConfig} that names file and line.
  explicit ChatTemplate(const ChatTemplateOptions& options);

  /// A text, and where assistants have written it: bytes [first, second).
  struct Chat {
    std::string text;
    std::vector<std::pair<std::size_t, std::size_t>> written{};
  };

  /// Messages, a JSON array of {"role": ..., "content": ...}. `tools`: null if there are none.
  /// Throws Error{kConfig} if the template refuses them.
  std::string render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                     const nlohmann::ordered_json& tools) const;
  /// Renders and marks what assistants have written: what is inside of {% generation %}, as
  /// transformers' assistant mask and TRL's assistant_only_loss have it, or, of a template without
  /// it, for each message of the role "assistant" what the template adds to the rendering of those
  /// before it with add_generation_prompt, up to the rendering of those through it. Throws
  /// Error{kConfig} if those are not how the whole begins.
  Chat chat(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools) const;
  /// Messages of a prompt, of which nothing is `written`, and of its completion, all of which is:
  /// as TRL's completion_only_loss.
  Chat completed(const nlohmann::ordered_json& prompt, const nlohmann::ordered_json& completion,
                 const nlohmann::ordered_json& tools) const;

  /// A text of a user, and the beginning of the assistant's answer.
  std::string question(const std::string& text) const;

  /// bos_token, eos_token, ... of the tokenizer's configuration; empty if it has none.
  std::string special_token(const std::string& name) const;
  /// A hash of 16 digits of template, special tokens and variables.
  std::string identity() const;
  const std::string& path() const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

/// The template of a folder as transformers finds it: chat_template.jinja, or else a
/// tokenizer_config.json with a "chat_template"; "" if it has none.
std::string find_chat_template(const std::string& folder);

}  // namespace tessera
