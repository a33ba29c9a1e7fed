#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tessera/model/chat_template.h"
#include "tessera/model/generate.h"
#include "tessera/model/tokenizer.h"

namespace tessera::cli {

/// The messages of a chat so far.
class Conversation {
 public:
  /// `system`: what its system message says; "": it has none.
  Conversation(const ChatTemplate& chat, const std::string& system);

  /// Adds what the user says; returns the whole as the text that an assistant goes on with.
  std::string ask(const std::string& text);
  /// Adds what the assistant has said.
  void answer(const std::string& text);
  /// Leaves the system message alone.
  void reset();

 private:
  const ChatTemplate& chat_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  std::size_t first_ = 0;  ///< messages in front of the user's first
};

struct ChatRequest {
  const ChatTemplate& chat;
  std::string system{};
  GenerateOptions sampling{};            ///< its tokens and context_length are those below
  std::int64_t tokens = 0;               ///< of an answer, at most
  std::int64_t window = 0;               ///< tokens of the conversation that the model sees
  const Tokenizer* tokenizer = nullptr;  ///< null where bytes are tokens
  std::span<const std::int32_t> ends{};  ///< tokens that end an answer
  NextLogits next_logits{};
  std::function<bool()> stopped{};  ///< the last pass was told to stop
};

/// A conversation: reads a line of the standard input, writes the answer to the standard output
/// with a line break behind it, and so on. "/reset" begins anew, "/exit" and the end of the input
/// end it. Ctrl-C ends an answer; while a line is awaited, the program. The n-th answer is drawn by
/// the seed plus n - 1. Returns the exit code.
int run_chat(const ChatRequest& request);

}  // namespace tessera::cli
