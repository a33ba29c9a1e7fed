#include "tessera/checkpoint/parameter_checkpoint.h"

#include <filesystem>
#include <utility>

#include "state_file_writer.h"
#include "tessera/checkpoint/checkpoint_folder.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

/// Whole parameters in their order.
std::vector<SavedPiece> whole_pieces(const std::vector<SavedParameter>& parameters) {
  std::vector<SavedPiece> pieces;
  for (const SavedParameter& parameter : parameters) {
    pieces.push_back({.parameter = static_cast<int>(pieces.size()),
                      .state = 0,
                      .elements = {0, parameter.shape.numel()}});
  }
  return pieces;
}

std::vector<SavedParameter> values_of(const std::vector<ParameterSpec>& specs) {
  std::vector<SavedParameter> parameters;
  for (const ParameterSpec& spec : specs) {
    parameters.push_back({spec.name, spec.shape, {{"parameter", DType::kFloat32}}});
  }
  return parameters;
}

}  // namespace

class ParameterCheckpoint::Impl {
 public:
  Impl(std::string folder, std::vector<NamedText> model, const std::vector<ParameterSpec>& specs,
       Storage& storage)
      : storage_(storage), folder_(std::move(folder)) {
    manifest_.model = std::move(model);
    manifest_.parameters = values_of(specs);
    pieces_ = whole_pieces(manifest_.parameters);
    std::error_code error;
    require(!std::filesystem::exists(std::filesystem::symlink_status(folder_, error)),
            ErrorCode::kConfig, "'", folder_,
            "' exists already; remove it, or give the name of a new folder");
  }
  void begin(const std::vector<NamedText>& companions) {
    const std::string unfinished = begin_checkpoint(storage_, folder_, 0, companions);
    file_ = std::make_unique<StateFileWriter>(storage_, unfinished, state_file_name(0),
                                              state_file_header(manifest_.parameters, pieces_),
                                              bytes_of(manifest_.parameters, pieces_));
  }
  ~Impl() {
    if (finished_) return;
    file_.reset();
    try {
      storage_.remove(folder_);
    } catch (const Error&) {
      // The error that ended the writing is the one to tell.
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void write(std::span<const float> values) {
    require(written_ < pieces_.size(), ErrorCode::kInvalidArgument, "all ", written_,
            " parameters were written to '", folder_, "' already");
    const SavedParameter& parameter = manifest_.parameters[written_];
    require(std::cmp_equal(parameter.shape.numel(), values.size()), ErrorCode::kInvalidArgument,
            "parameter '", parameter.name, "' ", parameter.shape, " takes ",
            parameter.shape.numel(), " values, not ", values.size());
    file_->append(std::as_bytes(values));
    ++written_;
  }

  std::string finish() {
    require(written_ == pieces_.size(), ErrorCode::kInvalidArgument, "parameter '",
            written_ < pieces_.size() ? manifest_.parameters[written_].name : "",
            "' was not written to '", folder_, "'");
    manifest_.files = {file_->finish(std::move(pieces_))};
    std::string path = publish_checkpoint(storage_, folder_, manifest_);
    finished_ = true;
    return path;
  }

 private:
  Storage& storage_;
  std::string folder_;
  Manifest manifest_;
  std::vector<SavedPiece> pieces_;
  std::unique_ptr<StateFileWriter> file_;
  std::size_t written_ = 0;
  bool finished_ = false;
};

ParameterCheckpoint::ParameterCheckpoint(std::string folder, std::vector<NamedText> model,
                                         const std::vector<ParameterSpec>& parameters,
                                         Storage& storage, const std::vector<NamedText>& companions)
    : impl_(std::make_unique<Impl>(std::move(folder), std::move(model), parameters, storage)) {
  impl_->begin(companions);  // what it has made is removed again if it throws
}
ParameterCheckpoint::~ParameterCheckpoint() = default;
void ParameterCheckpoint::write(std::span<const float> values) { impl_->write(values); }
std::string ParameterCheckpoint::finish() { return impl_->finish(); }

}  // namespace tessera
