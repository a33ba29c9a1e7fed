#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// BPE as Hugging Face's tokenizer.json describes it: byte-level, behind splits by regular
/// expressions, digits and punctuation, as GPT-2, Llama 3, Qwen, SmolLM, DeepSeek and Tekken have
/// it, or of SentencePiece's pieces with bytes to fall back to, as Llama 2, Mistral, Yi and Phi-3;
/// and WordPiece, as BERT.
/// Gives the tokens that the package `tokenizers` gives, which leaves out bytes that have no token;
/// whatever would make them differ (another type of model, normaliser or option) is refused by name
/// when the file is read. Immutable; copies share the tables, and any thread may use them.
class Tokenizer {
 public:
  /// Reads a tokenizer.json of at most 128 MiB. Throws Error{kNotFound, kIo} if it cannot be read,
  /// and Error{kConfig} naming file, key and remedy if it is malformed or not supported.
  explicit Tokenizer(const std::string& path);
  /// Reads the text of a file; `name` stands for the file in errors.
  Tokenizer(std::string_view json, const std::string& name);

  /// The tokens of a UTF-8 text. Contents of added tokens, such as "<|endoftext|>", become those
  /// tokens. `special_tokens`: with what the file's post-processor puts around a text, such as
  /// Llama 3's "<|begin_of_text|>". Throws Error{kConfig} naming the offset if the text is not
  /// UTF-8.
  std::vector<std::int32_t> encode(std::string_view text, bool special_tokens = false) const;

  /// The tokens of `encode` without special ones, and where in the text each token's part ends, in
  /// bytes: those of white space that an added token takes are the token's. Of text that
  /// normalisation changes, the ends are those in the normal form, at most the text's end.
  struct Placed {
    std::vector<std::int32_t> tokens{};
    std::vector<std::size_t> ends{};
  };
  Placed encode_with_ends(std::string_view text) const;

  /// The text of tokens, always UTF-8: bytes that make up no character become U+FFFD.
  /// `special_tokens`: false leaves out those that the file marks as special. Ids outside of the
  /// vocabulary, which a model with a padded embedding may draw, have no text.
  std::string decode(std::span<const std::int32_t> tokens, bool special_tokens = true) const;

  /// How many ids there are, added tokens included; they are 0 to vocab_size() - 1.
  std::int64_t vocab_size() const;
  /// The id of a token in the spelling of the file, such as "<|im_start|>"; none if there is none.
  std::optional<std::int32_t> id_of(std::string_view token) const;
  /// The ids that the file marks as special, in ascending order.
  std::vector<std::int32_t> special_tokens() const;
  /// "<|endoftext|>", "<|end_of_text|>" or "</s>", if the file has such an added token.
  std::optional<std::int32_t> end_of_text() const;

  /// A hash of 16 digits of all that decides which tokens a text has, and which text tokens have:
  /// equal for files that differ only in spelling.
  std::string identity() const;

  struct Tables;

 private:
  friend class TokenEncoder;
  friend class TokenDecoder;
  std::shared_ptr<const Tables> tables_;
};

/// Encodes many texts, or a long one by pieces: remembers the tokens of words (2 MiB).
/// Used by one thread at a time.
class TokenEncoder {
 public:
  explicit TokenEncoder(const Tokenizer& tokenizer);
  ~TokenEncoder();
  TokenEncoder(const TokenEncoder&) = delete;
  TokenEncoder& operator=(const TokenEncoder&) = delete;

  /// Appends what Tokenizer::encode gives without special tokens. `offset`: of the text in its
  /// file, for the error; above 0 it goes on where last_cut() has cut.
  void encode(std::string_view text, std::vector<std::int32_t>& tokens, std::int64_t offset = 0);

  /// The last place at which a longer text that begins with `text` can be cut so that both sides,
  /// encoded by themselves, give the tokens of the whole; 0 if there is none.
  std::size_t last_cut(std::string_view text) const;

 private:
  friend class Tokenizer;
  struct State;
  std::unique_ptr<State> state_;
};

/// Decodes tokens as they come, for output that streams.
class TokenDecoder {
 public:
  explicit TokenDecoder(const Tokenizer& tokenizer, bool special_tokens = true);

  /// The text that `token` completes; bytes of a character that is not whole yet wait.
  std::string add(std::int32_t token);
  /// The rest: U+FFFD for a character that remained incomplete.
  std::string finish();

 private:
  std::string add_piece(std::size_t id);
  std::string take_bytes();
  std::string without_first_space(std::string text);

  std::shared_ptr<const Tokenizer::Tables> tables_;
  bool special_tokens_;
  std::string waiting_;
  bool begun_ = false;  ///< some text is out
};

}  // namespace tessera
