#include "tessera/checkpoint/state_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "chunk_reader.h"
#include "state_file_writer.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr const char* kValues = "parameter";
constexpr const char* kRounded = "rounded-parameter";

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// The flat parameters that have master weights.
std::set<FlatId> flats_with_master(const ModelLayout& layout, const StateOptions& options) {
  std::set<FlatId> flats;
  for (const ScheduleBuffer& buffer : state_buffers(layout, options)) {
    if (buffer.role == Role::kMaster) flats.insert({buffer.unit, buffer.flat});
  }
  return flats;
}

/// A quantised parameter is saved as its bytes.
Shape saved_shape(const FlatTensor& tensor) {
  return tensor.is_quantized() ? Shape{tensor.numel()} : tensor.spec.shape;
}

/// The state tensor in which a rank has a saved state of a unit's parameters.
std::string state_tensor(const Unit& unit, const FlatParameter& flat, const std::string& state,
                         bool has_master) {
  const std::string own = concat(unit.name, '.', flat.name);
  const std::string beside = flat.name == "parameter" ? unit.name : own;
  if (!flat.trainable || state == kRounded) return own;
  if (state != kValues) return concat(beside, '.', state);
  return has_master ? beside + ".master" : own;
}

/// The saved state that fills a state tensor, of those that a parameter has; -1: none does. States
/// of one name have one format.
int state_for(const SavedParameter& parameter, const StateTensor& tensor, LoadedState loaded) {
  const auto index_of = [&](const std::string& name) {
    const auto found = std::ranges::find(parameter.states, name, &SavedState::name);
    return found == parameter.states.end() ? -1
                                           : static_cast<int>(found - parameter.states.begin());
  };
  const bool all = loaded == LoadedState::kAll;
  if (tensor.role == Role::kOptimizer) {
    return all ? index_of(tensor.tensor) : -1;
  }
  if (all && tensor.role == Role::kParameter && tensor.format != DType::kFloat32) {
    if (const int rounded = index_of(kRounded); rounded >= 0) return rounded;
  }
  return index_of(kValues);
}

/// By the order in which saved_parameters() lists them. Mirrors have nothing of their own.
template <typename Visit>
void for_each_flat(const ModelLayout& layout, const Visit& visit) {
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    if (layout.units[static_cast<std::size_t>(u)].mirrors >= 0) continue;
    const std::vector<FlatParameter>& flats = layout.units[static_cast<std::size_t>(u)].flats;
    for (int f = 0; f < static_cast<int>(flats.size()); ++f) {
      visit(FlatId{u, f}, flats[static_cast<std::size_t>(f)]);
    }
  }
}

/// Where a parameter is kept.
struct Home {
  FlatId id;
  const FlatParameter* flat;
  const FlatTensor* tensor;
};

/// By parameter, in the order of saved_parameters().
std::vector<Home> homes_of(const ModelLayout& layout) {
  std::vector<Home> homes;
  for_each_flat(layout, [&](const FlatId& id, const FlatParameter& flat) {
    for (const FlatTensor& tensor : flat.tensors) homes.push_back({id, &flat, &tensor});
  });
  return homes;
}

/// Where the numbers of a tensor's rows and columns lie among those of its flat parameter.
std::int64_t numbers_before(const FlatParameter& flat, const FlatTensor& tensor) {
  std::int64_t numbers = 0;
  for (const FlatTensor& before : flat.tensors) {
    if (&before == &tensor) break;
    numbers += factored_counts(before.spec).numbers;
  }
  return numbers;
}

/// Bytes of a file that go to the state: elements that follow each other in both.
struct Run {
  std::int64_t begin;  ///< in the file
  std::int64_t bytes;
  DType dtype;
  const StateTensor* target;
  std::int64_t first;  ///< element of the flat parameter
};

/// Where in the state the elements of a parameter's state belong.
struct Target {
  const StateTensor* tensor;
  Range elements;      ///< of the parameter
  std::int64_t first;  ///< of the flat parameter: where the first one lies
};
using Targets = std::map<std::pair<int, int>, std::vector<Target>>;

Targets targets_in(const TrainingState& state, const Manifest& manifest, LoadedState loaded) {
  std::map<std::string, int> by_name;
  for (std::size_t p = 0; p < manifest.parameters.size(); ++p) {
    by_name[manifest.parameters[p].name] = static_cast<int>(p);
  }
  Targets targets;
  for (const StateTensor& tensor : state) {
    for (const StatePiece& piece : state.pieces(tensor)) {
      const int p = by_name.at(piece.parameter->name);
      const int s = state_for(manifest.parameters[static_cast<std::size_t>(p)], tensor, loaded);
      if (s >= 0) targets[{p, s}].push_back({&tensor, piece.elements, piece.first});
    }
  }
  return targets;
}

/// Runs that the state needs of a file, in the order of its bytes.
std::vector<Run> runs_of(const SavedFile& file, const Manifest& manifest, const Targets& targets) {
  std::vector<Run> runs;
  std::int64_t place = data_begin(manifest, file);
  for (const SavedPiece& piece : file.pieces) {
    const DType dtype = state_of(manifest.parameters, piece).dtype;
    if (const auto found = targets.find({piece.parameter, piece.state}); found != targets.end()) {
      for (const Target& target : found->second) {
        const std::int64_t begin = std::max(piece.elements.begin, target.elements.begin);
        const std::int64_t end = std::min(piece.elements.end(), target.elements.end());
        if (begin >= end) continue;
        runs.push_back({.begin = place + (begin - piece.elements.begin) * element_bytes(dtype),
                        .bytes = (end - begin) * element_bytes(dtype),
                        .dtype = dtype,
                        .target = target.tensor,
                        .first = target.first + begin - target.elements.begin});
      }
    }
    place += bytes_of(manifest.parameters, piece);
  }
  std::ranges::stable_sort(runs, {}, &Run::begin);
  return runs;
}

}  // namespace

std::vector<SavedParameter> saved_parameters(const ModelLayout& layout, const StateOptions& options,
                                             bool stochastic_rounding) {
  std::vector<SavedParameter> all;
  for_each_flat(layout, [&](const FlatId&, const FlatParameter& flat) {
    const DType kept =
        flat.quantized ? DType::kUInt8 : flat.dtype.value_or(options.parameter_dtype);
    for (const FlatTensor& tensor : flat.tensors) {
      SavedParameter parameter{tensor.spec.name, saved_shape(tensor), {}};
      parameter.states.push_back({kValues, flat.trainable ? DType::kFloat32 : kept});
      if (flat.trainable) {
        for (const OptimizerTensor& own : options.optimizer_tensors) {
          const std::int64_t numbers = own.is_factored() ? factored_counts(tensor.spec).numbers : 0;
          parameter.states.push_back({own.name, own.format, own.block, numbers});
        }
        if (stochastic_rounding && kept != DType::kFloat32) {
          parameter.states.push_back({kRounded, kept});
        }
      }
      all.push_back(std::move(parameter));
    }
  });
  return all;
}

std::vector<SavedPiece> pieces_of_rank(const std::vector<SavedParameter>& parameters,
                                       const ModelLayout& layout, const StateOptions& options,
                                       int rank) {
  const ShardNesting nesting(options.mesh, options.placement);
  const std::vector<ScheduleUnit> units = schedule_units(layout, options);
  const int pipeline_rank = options.mesh.index(Axis::kPipeline, rank);
  std::vector<SavedPiece> pieces;
  int parameter = 0;
  for_each_flat(layout, [&](const FlatId& id, const FlatParameter& flat) {
    if (units[static_cast<std::size_t>(id.unit)].rank != pipeline_rank) {
      parameter += static_cast<int>(flat.tensors.size());
      return;
    }
    const Range own = nesting.range(flat.padded_numel, nesting.state_axes(), rank);
    for (const FlatTensor& tensor : flat.tensors) {
      const int p = parameter++;
      const std::int64_t begin = std::max<std::int64_t>(own.begin - tensor.offset, 0);
      const std::int64_t end = std::min(own.end() - tensor.offset, tensor.numel());
      if (begin >= end) continue;
      const auto& states = parameters[static_cast<std::size_t>(p)].states;
      for (std::size_t s = 0; s < states.size(); ++s) {
        if (states[s].block == kFactoredBlock) {  // the rank of its first element has all
          if (begin == 0) pieces.push_back({p, static_cast<int>(s), {0, states[s].numbers}});
          continue;
        }
        const std::int64_t block = states[s].block, first = begin / block;
        pieces.push_back({p, static_cast<int>(s), {first, (end + block - 1) / block - first}});
      }
    }
  });
  // One state after the other, and wide elements first, so that each is aligned.
  std::ranges::stable_sort(pieces, {}, [&](const SavedPiece& piece) {
    return std::pair(-element_bytes(state_of(parameters, piece).dtype), piece.state);
  });
  return pieces;
}

SavedFile write_state(const std::vector<SavedParameter>& parameters, const ModelLayout& layout,
                      const StateOptions& options, int rank, const HostParts& parts,
                      Storage& storage, const std::string& folder) {
  std::vector<SavedPiece> pieces = pieces_of_rank(parameters, layout, options, rank);
  StateFileWriter file(storage, folder, state_file_name(rank),
                       state_file_header(parameters, pieces), bytes_of(parameters, pieces));
  const std::vector<Home> homes = homes_of(layout);
  const std::set<FlatId> with_master = flats_with_master(layout, options);
  const ShardNesting nesting(options.mesh, options.placement);
  for (const SavedPiece& piece : pieces) {
    const Home& home = homes[static_cast<std::size_t>(piece.parameter)];
    const SavedState& state = state_of(parameters, piece);
    const std::string name = state_tensor(layout.units[static_cast<std::size_t>(home.id.unit)],
                                          *home.flat, state.name, with_master.contains(home.id));
    const TensorView part = parts(name);
    require(part.dtype == state.dtype, ErrorCode::kInternal, "'", name, "' is not saved as it is");
    const Range own = nesting.range(home.flat->padded_numel, nesting.state_axes(), rank);
    const std::int64_t begin = state.block == kFactoredBlock
                                   ? numbers_before(*home.flat, *home.tensor)
                                   : (home.tensor->offset - own.begin) / state.block;
    const TensorView view = part.narrow(0, begin + piece.elements.begin, piece.elements.numel);
    file.append({static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.bytes())});
  }
  return file.finish(std::move(pieces));
}

SavedFile describe_file(const std::vector<SavedParameter>& parameters, const ModelLayout& layout,
                        const StateOptions& options, int rank) {
  SavedFile file{.name = state_file_name(rank),
                 .bytes = 0,
                 .chunk_hashes = {},
                 .pieces = pieces_of_rank(parameters, layout, options, rank)};
  file.bytes = bytes_of(parameters, file.pieces) +
               static_cast<std::int64_t>(state_file_header(parameters, file.pieces).size());
  file.chunk_hashes.resize(static_cast<std::size_t>((file.bytes + kChunkBytes - 1) / kChunkBytes));
  return file;
}

std::int64_t load_state(const Manifest& manifest, const std::string& folder, TrainingState& state,
                        Stream& stream, LoadedState loaded) {
  const Targets targets = targets_in(state, manifest, loaded);
  std::int64_t total = 0, wanted = 0;
  std::vector<float> copy;
  std::vector<std::vector<Run>> runs_by_file;
  for (const SavedFile& file : manifest.files) {
    runs_by_file.push_back(runs_of(file, manifest, targets));
    for (const Run& run : runs_by_file.back()) wanted += run.bytes;
  }
  begin_work(state.work(), HostTask::kLoad, wanted);
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const SavedFile& file = manifest.files[f];
    const std::vector<Run>& runs = runs_by_file[f];
    if (runs.empty()) continue;
    ChunkReader reader(manifest, file, folder);
    std::set<std::int64_t> chunks;
    for (const Run& run : runs) {
      for (std::int64_t c = run.begin / kChunkBytes; c * kChunkBytes < run.begin + run.bytes; ++c) {
        chunks.insert(c);
      }
    }
    for (const std::int64_t chunk : chunks) {
      const std::span<const std::byte> bytes = reader.read(chunk);
      total += static_cast<std::int64_t>(bytes.size());
      const std::int64_t chunk_begin = chunk * kChunkBytes;
      const std::int64_t chunk_end = chunk_begin + static_cast<std::int64_t>(bytes.size());
      for (const Run& run : runs) {
        const std::int64_t begin = std::max(run.begin, chunk_begin);
        const std::int64_t end = std::min(run.begin + run.bytes, chunk_end);
        if (begin >= end) continue;
        const auto part = bytes.subspan(static_cast<std::size_t>(begin - chunk_begin),
                                        static_cast<std::size_t>(end - begin));
        advance_work(state.work(), HostTask::kLoad, end - begin);
        if (run.dtype == DType::kUInt8) {
          state.write_bytes(run.target->name, run.first + begin - run.begin, part, stream);
          continue;
        }
        const auto values = as_floats(part, run.dtype, copy);
        state.write(run.target->name, run.first + (begin - run.begin) / element_bytes(run.dtype),
                    values, stream);
      }
    }
  }
  return total;
}

void require_same_parameters(const Manifest& manifest, const ModelLayout& layout,
                             const std::string& folder) {
  std::map<std::string, Shape> saved;
  for (const SavedParameter& parameter : manifest.parameters) {
    saved[parameter.name] = parameter.shape;
  }
  for_each_flat(layout, [&](const FlatId&, const FlatParameter& flat) {
    for (const FlatTensor& tensor : flat.tensors) {
      const auto found = saved.find(tensor.spec.name);
      require(found != saved.end(), ErrorCode::kConfig, "the checkpoint '", folder,
              "' has no parameter '", tensor.spec.name, "'; it is of another model");
      const std::string_view quantised =
          tensor.is_quantized() ? " as bytes of a quantised one" : "";
      require(found->second == saved_shape(tensor), ErrorCode::kConfig, "'", tensor.spec.name,
              "' has shape ", found->second, " in the checkpoint '", folder, "', and ",
              saved_shape(tensor), quantised, " in this model");
      saved.erase(found);
    }
  });
  require(saved.empty(), ErrorCode::kConfig, "the checkpoint '", folder, "' has a parameter '",
          saved.empty() ? "" : saved.begin()->first, "', which this model has not");
}

}  // namespace tessera
