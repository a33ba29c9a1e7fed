#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/autograd/layer.h"
#include "tessera/collectives/world.h"
#include "tessera/core/named_text.h"
#include "tessera/trainer/settings.h"
#include "tessera/trainer/trainer_options.h"

namespace tessera {

// Processes that were started with different settings, data or programs would train to the end and
// give wrong parameters, or wait for each other until the timeout. So they compare, before anything
// is allocated: the program its settings, and every Trainer its options, model and data.

/// Throws in all processes, soon and with the same text, unless all have said the same:
/// Error{kConfig} that names what differs, the values, and the ranks that have them. Every process
/// must call it. It exchanges a hash, and the texts only if hashes differ.
void require_agreement(World& world, const std::vector<NamedText>& own);

/// The texts of all processes, by process. Every process must call it.
std::vector<std::string> gather_texts(const World& world, const std::string& own);

// Settings that must be the same, in words.

/// The build: hashes of this program's file, and of those of Tessera's modules that are loaded. Not
/// a build id: not every linker writes one, and it says nothing of a file that was damaged since.
NamedText identity_of_program();
/// The effective values of all settings of which Setting::must_agree says so, by flag.
std::vector<NamedText> identity_of_settings(const Settings& settings);
/// The identity of a Trainer's options, whose device is decided, by the name of the setting.
/// `options` are resolved.
std::vector<NamedText> identity_of_options(const TrainerOptions& options);
/// Layers and parameters.
NamedText identity_of_model(const Model& model);
/// BatchSource::identity, or else a hash of a few of the run's micro-batches.
std::vector<NamedText> identity_of_data(const BatchSource& source, const TrainerOptions& options);

}  // namespace tessera
