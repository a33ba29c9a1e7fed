#include "generate/chat.h"

#include <unistd.h>
#include <csignal>
#include <iostream>
#include <vector>

#include "commands.h"
#include "generate/sample.h"
#include "output/terminal.h"
#include "run/interrupt.h"

namespace tessera::cli {
namespace {

/// To whoever types; in a file of answers there are answers alone.
void tell(const std::string& text) {
  std::cerr << for_reader(inspect(stderr), text, 2) << std::endl;
}

/// The next line; false at the end of the input.
bool read_line(bool is_typed, std::string& line) {
  if (is_typed) std::cout << "> " << std::flush;
  if (!std::getline(std::cin, line)) {
    if (is_typed) std::cout << std::endl;  // behind the "> "
    return false;
  }
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

std::string text_of(std::span<const std::int32_t> tokens, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr) return tokenizer->decode(tokens, false);
  return printable(tokens);  // templates take UTF-8
}

}  // namespace

Conversation::Conversation(const ChatTemplate& chat, const std::string& system) : chat_(chat) {
  if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  first_ = messages_.size();
}

std::string Conversation::ask(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
  return chat_.render(messages_, true, nullptr);
}

void Conversation::answer(const std::string& text) {
  messages_.push_back({{"role", "assistant"}, {"content", text}});
}

void Conversation::reset() {
  messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(first_), messages_.end());
}

int run_chat(const ChatRequest& request) {
  const bool is_typed = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (is_typed) tell("/reset begins anew; /exit or Ctrl-D ends; Ctrl-C ends an answer");
  Conversation conversation(request.chat, request.system);
  GenerateOptions options = request.sampling;
  options.tokens = request.tokens;
  options.context_length = request.window;
  for (std::string line; read_line(is_typed, line) && line != "/exit";) {
    if (line.empty()) continue;
    if (line == "/reset") {
      conversation.reset();
      options.seed = request.sampling.seed;
      continue;
    }
    const std::string text = conversation.ask(line);
    const std::vector<std::int32_t> prompt =
        request.tokenizer != nullptr ? request.tokenizer->encode(text) : to_byte_tokens(text);
    const InterruptGuard interrupt;
    const Continuation answer =
        write_continuation(options, prompt, request.next_logits, request.tokenizer, request.ends,
                           std::cout, [&] { return !request.stopped(); });
    std::cout << std::endl;
    if (!std::cout.good()) return kExitGood;  // nobody reads any more
    const auto tokens = static_cast<std::int64_t>(answer.tokens.size());
    if (interrupt.signal() != 0 && interrupt.signal() != SIGINT) {
      return kExitSignal + interrupt.signal();
    }
    if (tokens == request.tokens) {
      tell(concat("note: the answer was cut off after ", counted(tokens, "token"),
                  "; --tokens N allows more"));
    }
    if (static_cast<std::int64_t>(prompt.size()) + tokens > request.window) {
      tell(concat("note: the conversation is longer than the ", request.window,
                  " tokens that the model sees: its beginning is dropped; /reset begins anew"));
    }
    conversation.answer(text_of(answer.tokens, request.tokenizer));
    ++options.seed;
  }
  return kExitGood;
}

}  // namespace tessera::cli
