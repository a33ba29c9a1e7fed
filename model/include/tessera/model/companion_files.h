#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/core/dtype.h"
#include "tessera/core/named_text.h"

namespace tessera {

/// The files that a Hugging Face folder has beside its weights, by name, with their bytes:
/// config.json, generation_config.json, those of the tokenizer, the chat templates (the named ones
/// as additional_chat_templates/NAME.jinja) and the model's own Python code. A checkpoint has
/// copies of those of the model that its run began with.
using CompanionFiles = std::vector<NamedText>;

/// Those of a folder; none if it is none. Throws Error{kIo}.
CompanionFiles companion_files_of(const std::string& folder);

/// Those of the tokenizer `file` and beside it; `file` is called tokenizer.json. Throws Error{kIo}.
CompanionFiles tokenizer_files_of(const std::string& file);

/// Those of `files` that are of the tokenizer, with the chat templates: what a folder of adapters
/// has.
CompanionFiles tokenizer_files_in(CompanionFiles files);

/// Replaces the tokenizer of `files`, and takes over the other files that `tokenizer` has.
void replace_tokenizer(CompanionFiles& files, const CompanionFiles& tokenizer);

/// A file's bytes; null if there is none of that name.
const std::string* find_file(const CompanionFiles& files, std::string_view name);
/// Adds a file, or replaces the one of that name.
void set_file(CompanionFiles& files, const std::string& name, std::string bytes);

/// The dtype that config.json names; nothing if it names none.
std::optional<DType> named_dtype(const CompanionFiles& files);

/// Whether a config.json that names no dtype gets one.
enum class NewKey : bool { kLeftOut, kAdded };
/// Has config.json name `dtype`. A file that does already keeps its bytes.
void name_dtype(CompanionFiles& files, DType dtype, NewKey key = NewKey::kLeftOut);

}  // namespace tessera
