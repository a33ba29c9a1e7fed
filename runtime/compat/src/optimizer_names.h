#pragma once

#include <string>

namespace tessera::compat {

/// The optimizer here for a name of Transformers' Trainer (`optim`); a name that is none of its is
/// returned as it is. Throws Error{kConfig} for an optimizer that does not exist here, naming the
/// nearest that does.
std::string optimizer_name(const std::string& theirs);
/// Says what is different from the optimizer of that name; "" if nothing is.
std::string optimizer_note(const std::string& theirs);

}  // namespace tessera::compat
