#include "example_records.h"

#include <algorithm>

#include "arrow_module.h"
#include "file_identity.h"
#include "json_lines.h"
#include "mapped_file.h"
#include "tessera/core/error.h"

namespace tessera::data {

ExampleRecords::ExampleRecords(const std::vector<std::string>& paths) : starts_{0} {
  for (const std::string& path : paths) {
    if (is_arrow_file(path)) {
      files_.push_back(open_arrow_records(path));
    } else {
      files_.push_back(std::make_unique<const JsonLines>(path));
    }
    starts_.push_back(starts_.back() + files_.back()->records());
  }
}

std::int64_t ExampleRecords::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->bytes();
  return bytes;
}

std::size_t ExampleRecords::file_of(std::int64_t record) const {
  const auto after = std::ranges::upper_bound(starts_, record);
  return static_cast<std::size_t>(after - starts_.begin()) - 1;
}

void ExampleRecords::visit(std::int64_t first, std::int64_t count,
                           const RecordFile::Use& use) const {
  while (count > 0) {
    const std::size_t f = file_of(first);
    const std::int64_t here = std::min(count, starts_[f + 1] - first);
    files_[f]->visit(first - starts_[f], here,
                     [&](std::int64_t record, const nlohmann::ordered_json& value) {
                       use(starts_[f] + record, value);
                     });
    first += here;
    count -= here;
  }
}

std::string ExampleRecords::place(std::int64_t record) const {
  const std::size_t f = file_of(record);
  return files_[f]->place(record - starts_[f]);
}

std::vector<std::string> ExampleRecords::paths() const {
  std::vector<std::string> paths;
  for (const auto& file : files_) paths.push_back(file->path());
  return paths;
}

std::string ExampleRecords::name() const {
  const std::string first = concat("'", files_.front()->path(), "'");
  const std::size_t others = files_.size() - 1;
  if (others == 0) return first;
  return concat(first, " and ", others, others == 1 ? " more file" : " more files");
}

std::vector<NamedText> ExampleRecords::identity() const {
  std::vector<MappedFile> mapped;
  for (const auto& file : files_) mapped.emplace_back(file->path());
  std::vector<const MappedFile*> files;
  for (const MappedFile& file : mapped) files.push_back(&file);
  return identity_of(files);
}

}  // namespace tessera::data
