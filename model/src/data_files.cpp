#include "data_files.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "arrow_module.h"
#include "foreign_format.h"
#include "mapped_file.h"
#include "tessera/core/error.h"
#include "token_file.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kProbeBytes = 4096;
constexpr std::size_t kNamesInMessage = 3;
constexpr const char* kMakeReadable = "; make it readable or move it away";

bool is_token_file_name(const fs::path& path) { return path.extension() == ".bin"; }

bool is_example_file(const fs::path& path) {
  return path.extension() == ".jsonl" || is_arrow_file(path.native());
}

/// Folders of data sets have such files beside the data.
bool is_about_data(const fs::path& path) {
  const std::string name = path.filename().native();
  return name.ends_with(".md") || name.starts_with("README") || name.starts_with("LICENSE") ||
         name.starts_with("dataset_info");
}

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

bool is_build_output(const fs::path& folder) {
  const std::string name = folder.filename().native();
  return name == "build" || name == "out" || name.starts_with("build-") ||
         name.starts_with("build_") || name.starts_with("cmake-build-");
}

[[noreturn]] void fail_to_read(const char* doing, const std::string& path, int error,
                               const char* remedy) {
  const bool no_descriptors = error == EMFILE || error == ENFILE;
  fail(ErrorCode::kIo, "cannot ", doing, " '", path, "': ", std::generic_category().message(error),
       no_descriptors ? kRaiseOpenFiles : remedy);
}

/// The first bytes of a regular file.
std::vector<std::byte> probe(const fs::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) fail_to_read("open", path.native(), errno, kMakeReadable);
  std::vector<std::byte> bytes(kProbeBytes);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(kProbeBytes));
  require(!file.bad(), ErrorCode::kIo, "cannot read '", path.native(), "'");
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

bool is_token_file(const fs::path& path) {
  return is_token_file_name(path) || has_token_header(probe(path));
}

/// "a, b, c and 4 more".
std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesInMessage); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesInMessage) {
    text += concat(" and ", names.size() - kNamesInMessage, " more");
  }
  return text;
}

/// The files that a search through a folder of text left out.
struct LeftOut {
  std::vector<std::string> binary, large, dangling, build;

  std::vector<std::string> notes(std::int64_t max_file_bytes) {
    std::vector<std::string> lines;
    const auto note = [&](std::vector<std::string>& names, const std::string& why) {
      std::sort(names.begin(), names.end());  // a folder is listed in no particular order
      if (!names.empty()) lines.push_back(concat("left out ", why, ": ", some_of(names)));
    };
    note(binary, "files that are not text");
    note(large, concat("files over ", max_file_bytes, " bytes"));
    note(dangling, "links that lead nowhere");
    note(build, "folders of build output");
    return lines;
  }
};

void consider_text(const fs::path& path, std::int64_t max_file_bytes, DataFiles& found,
                   LeftOut& left_out) {
  std::error_code error;
  const auto size = static_cast<std::int64_t>(fs::file_size(path, error));
  require(!error, ErrorCode::kIo, "cannot inspect '", path.native(), "': ", error.message());
  if (size == 0) return;
  if (size > max_file_bytes) {
    left_out.large.push_back(path.native());
  } else if (!looks_like_text(probe(path))) {
    left_out.binary.push_back(path.native());
  } else {
    found.paths.push_back(path.native());
  }
}

/// Links to files are followed; links to folders are not, so that a loop of them cannot trap us.
DataFiles find_text_in_folder(const std::string& folder, std::int64_t max_file_bytes) {
  DataFiles found{DataKind::kText, {}, {}};
  LeftOut left_out;
  std::error_code error;
  std::string entered = folder;  // what an error of the search is about
  auto entry = fs::recursive_directory_iterator(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    const fs::path& path = entry->path();
    entered = path.native();
    const bool folder_itself = entry->is_directory(ignored) && !entry->is_symlink(ignored);
    if (folder_itself && (is_hidden(path) || is_build_output(path))) {
      entry.disable_recursion_pending();
      if (!is_hidden(path)) left_out.build.push_back(path.native());
    } else if (is_hidden(path)) {
      continue;
    } else if (entry->is_regular_file(ignored)) {
      consider_text(path, max_file_bytes, found, left_out);
    } else if (entry->is_symlink(ignored) && !entry->exists(ignored)) {
      left_out.dangling.push_back(path.native());
    }
  }
  if (error) fail_to_read("search", entered, error.value(), kMakeReadable);
  found.notes = left_out.notes(max_file_bytes);
  require(!found.paths.empty(), ErrorCode::kNotFound, "no text in the folder '", folder, "' (",
          left_out.binary.size(), " files that are not text, ", left_out.large.size(),
          " that are too large); name a text file, a folder of them, or token files (*.bin)");
  return found;
}

/// The names of a folder's own files, split by whether they are called like token files.
struct FolderNames {
  std::vector<std::string> tokens;
  std::vector<std::string> others;
};

FolderNames list_folder(const std::string& folder) {
  FolderNames names;
  std::error_code error;
  auto entry = fs::directory_iterator(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (is_hidden(entry->path()) || !entry->is_regular_file(ignored)) continue;
    (is_token_file_name(entry->path()) ? names.tokens : names.others)
        .push_back(entry->path().native());
  }
  if (error) fail_to_read("list", folder, error.value(), kMakeReadable);
  std::sort(names.tokens.begin(), names.tokens.end());
  std::sort(names.others.begin(), names.others.end());
  return names;
}

/// A folder with train* beside val* is two data sets: read as one, a model would be trained
/// on what it is judged by.
void check_one_split(const std::string& folder, const std::vector<std::string>& paths) {
  std::string train;
  std::string validation;
  for (const std::string& path : paths) {
    const std::string name = fs::path(path).filename().native();
    if (train.empty() && name.find("train") != std::string::npos) train = path;
    if (validation.empty() && name.find("val") != std::string::npos) validation = path;
  }
  require(train.empty() || validation.empty(), ErrorCode::kConfig, "the folder '", folder,
          "' holds training and validation shards ('", train, "', '", validation,
          "'); name those to train on, e.g. '", folder, "/*train*",
          fs::path(train).extension().native(), "'");
}

DataFiles find_in_folder(const DatasetOptions& options) {
  if (options.kind == DataKind::kText) {
    return find_text_in_folder(options.path, options.max_file_bytes);
  }
  FolderNames names = list_folder(options.path);
  if (options.kind == DataKind::kAuto) {
    if (names.tokens.empty()) return find_text_in_folder(options.path, options.max_file_bytes);
    require(names.others.empty(), ErrorCode::kConfig, "the folder '", options.path,
            "' holds token files (", some_of(names.tokens), ") and others (", some_of(names.others),
            "); say which with the data kind, 'tokens' or 'text'");
  }
  require(!names.tokens.empty(), ErrorCode::kNotFound, "no token files (*.bin) in the folder '",
          options.path, "'");
  check_one_split(options.path, names.tokens);
  return {DataKind::kTokens, std::move(names.tokens), {}};
}

/// The files that a shell pattern names.
std::vector<std::string> expand_pattern(const std::string& pattern) {
  glob_t matches{};
  const int status = glob(pattern.c_str(), GLOB_ERR, nullptr, &matches);
  const int error = status == GLOB_NOSPACE ? ENOMEM : errno;
  std::vector<std::string> paths;
  for (std::size_t i = 0; status == 0 && i < matches.gl_pathc; ++i) {
    std::error_code ignored;
    if (!fs::is_directory(matches.gl_pathv[i], ignored)) paths.emplace_back(matches.gl_pathv[i]);
  }
  globfree(&matches);
  if (status != 0 && status != GLOB_NOMATCH) {
    fail_to_read("expand", pattern, error, "; make its folders readable or name files");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// A named pipe would hang whoever opens it.
void check_regular(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  require(!fs::exists(status) || fs::is_regular_file(status), ErrorCode::kConfig, "'", path,
          "' is not a regular file; copy its content to one, and name that");
}

/// A table would be read as text, separators, names of columns and all.
void check_no_table(const std::string& path) {
  require(!path.ends_with(".csv") && !path.ends_with(".tsv"), ErrorCode::kConfig, "'", path,
          "' is a table, of which it is not known what is to be learnt; write a .jsonl file whose "
          "lines are {\"prompt\": ..., \"completion\": ...}, {\"messages\": [...]} or "
          "{\"text\": ...}, or set the data kind to 'text' to read its bytes as they are");
}

/// Files that the user named one by one: all are read, whatever they look like.
DataFiles of_named_files(const DatasetOptions& options, std::vector<std::string> paths) {
  for (const std::string& path : paths) check_regular(path);
  if (options.kind == DataKind::kAuto) {
    for (const std::string& path : paths) check_no_table(path);
  }
  if (options.kind != DataKind::kAuto) return {options.kind, std::move(paths), {}};
  std::vector<std::string> tokens;
  std::vector<std::string> texts;
  for (const std::string& path : paths) (is_token_file(path) ? tokens : texts).push_back(path);
  require(tokens.empty() || texts.empty(), ErrorCode::kConfig, "'", options.path,
          "' names token files (", some_of(tokens), ") and text (", some_of(texts),
          "); name one sort of them");
  for (const std::string& path : texts) {
    const std::vector<std::byte> start = probe(path);
    if (looks_like_text(start)) continue;
    if (const auto foreign = find_foreign_format(start)) {
      fail(ErrorCode::kConfig, "'", path, "' is neither text nor tokens, but seems to be ",
           foreign->what, "; ", foreign->remedy);
    }
    fail(ErrorCode::kConfig, "'", path,
         "' is not text; set the data kind to 'tokens' if it holds token ids, or to 'text' to "
         "read its bytes all the same");
  }
  return {texts.empty() ? DataKind::kTokens : DataKind::kText, std::move(paths), {}};
}

/// A folder's own files of examples.
std::vector<std::string> find_examples_in_folder(const DatasetOptions& options) {
  const FolderNames names = list_folder(options.path);
  std::vector<std::string> examples, others;
  for (const std::string& path : names.others) {
    if (is_example_file(path)) {
      examples.push_back(path);
    } else if (!is_about_data(path)) {
      others.push_back(path);
    }
  }
  others.insert(others.end(), names.tokens.begin(), names.tokens.end());
  if (options.kind == DataKind::kAuto) {
    if (examples.empty()) return {};
    require(others.empty(), ErrorCode::kConfig, "the folder '", options.path, "' holds examples (",
            some_of(examples), ") and others (", some_of(others),
            "); say which with the data kind, 'examples', 'tokens' or 'text'");
  }
  require(!examples.empty(), ErrorCode::kNotFound,
          "no files of examples (*.jsonl, *.parquet, *.arrow, *.feather) in the folder '",
          options.path, "'");
  check_one_split(options.path, examples);
  return examples;
}

}  // namespace

std::vector<std::string> find_example_files(const DatasetOptions& options) {
  const bool is_auto = options.kind == DataKind::kAuto;
  if (options.path.empty() || (!is_auto && options.kind != DataKind::kExamples)) return {};
  std::error_code ignored;
  const fs::file_status status = fs::status(options.path, ignored);
  if (fs::is_directory(status)) return find_examples_in_folder(options);
  std::vector<std::string> paths{options.path};
  const bool is_pattern = options.path.find_first_of("*?[") != std::string::npos;
  if (!fs::exists(status) && is_pattern) {
    paths = expand_pattern(options.path);
    require(is_auto || !paths.empty(), ErrorCode::kNotFound, "there is no data at '", options.path,
            "': no file matches it as a pattern; check the path");
  }
  const auto others = std::ranges::partition(
      paths, [&](const std::string& path) { return !is_auto || is_example_file(path); });
  if (others.size() == paths.size()) return {};
  require(others.empty(), ErrorCode::kConfig, "'", options.path, "' names examples (",
          some_of({paths.begin(), others.begin()}), ") and others (",
          some_of({others.begin(), others.end()}), "); name one sort of them");
  for (const std::string& path : paths) check_regular(path);
  std::ranges::sort(paths);
  return paths;
}

bool looks_like_text(std::span<const std::byte> bytes) {
  // Text in any encoding that extends ASCII has next to none of these; compressed data has 10 %.
  constexpr std::size_t kControlsPerText = 50;
  std::size_t controls = 0;
  for (const std::byte byte : bytes) {
    const auto c = static_cast<unsigned char>(byte);
    if (c == 0) return false;
    const bool layout = (c >= '\t' && c <= '\r') || c == '\b' || c == 0x1b;
    if ((c < 0x20 && !layout) || c == 0x7f) ++controls;
  }
  return controls * kControlsPerText <= bytes.size();
}

DataFiles find_data_files(const DatasetOptions& options) {
  require(!options.path.empty(), ErrorCode::kConfig,
          "no data: name a text file, a folder of text, or token files (*.bin)");
  std::error_code error;
  const fs::file_status status = fs::status(options.path, error);
  DataFiles found;
  if (fs::is_directory(status)) {
    found = find_in_folder(options);
  } else if (fs::exists(status)) {
    found = of_named_files(options, {options.path});
  } else {
    require(status.type() == fs::file_type::not_found, ErrorCode::kIo, "cannot inspect '",
            options.path, "': ", error.message(), "; name another path to the data");
    std::vector<std::string> paths;
    if (options.path.find_first_of("*?[") != std::string::npos)
      paths = expand_pattern(options.path);
    require(!paths.empty(), ErrorCode::kNotFound, "there is no data at '", options.path,
            "': no such file or folder, and no file matches it as a pattern; check the path");
    found = of_named_files(options, std::move(paths));
  }
  std::sort(found.paths.begin(), found.paths.end());
  return found;
}

}  // namespace tessera::data
