#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <arrow/util/byte_size.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "arrow_module.h"
#include "tessera/core/error.h"

// Tables of Parquet and Arrow as records, by Arrow's C++ library: a module of its own, for that
// library is not on every machine.
namespace tessera::data {
namespace {

using nlohmann::ordered_json;

constexpr const char* kColumns[] = {"text", "prompt", "completion", "messages", "tools"};
constexpr std::int64_t kMostDecoded = std::int64_t{4} << 30;
constexpr const char* kConvert =
    "; write it again with pyarrow, or as .jsonl, a line of JSON for each row";

void check(const arrow::Status& status, const std::string& path) {
  require(status.ok(), status.IsIOError() ? ErrorCode::kIo : ErrorCode::kConfig, "'", path,
          "' cannot be read: ", status.ToString(), kConvert);
}

template <typename T>
T checked(arrow::Result<T> result, const std::string& path) {
  check(result.status(), path);
  return std::move(result).ValueUnsafe();
}

/// The numbers of the columns that examples have.
std::vector<int> columns_of(const arrow::Schema& schema, const std::string& path) {
  std::vector<int> columns;
  for (const char* const name : kColumns) {
    const int column = schema.GetFieldIndex(name);
    if (column >= 0) columns.push_back(column);
  }
  std::string names;
  for (const std::string& name : schema.field_names()) names += (names.empty() ? "" : ", ") + name;
  require(!columns.empty(), ErrorCode::kConfig, "'", path, "' has the columns ", names,
          ", and none of examples; name them \"text\", \"prompt\" and \"completion\", or "
          "\"messages\"");
  return columns;
}

std::shared_ptr<arrow::Table> read_parquet(const std::shared_ptr<arrow::io::ReadableFile>& file,
                                           const std::string& path) {
  const auto reader = checked(parquet::arrow::OpenFile(file, arrow::default_memory_pool()), path);
  std::shared_ptr<arrow::Schema> schema;
  check(reader->GetSchema(&schema), path);
  std::vector<int> wanted = columns_of(*schema, path);
  // A nested column is several of the file's.
  const parquet::FileMetaData& metadata = *reader->parquet_reader()->metadata();
  std::vector<int> leaves;
  std::int64_t bytes = 0;
  for (int leaf = 0; leaf < metadata.num_columns(); ++leaf) {
    const std::string root = metadata.schema()->Column(leaf)->path()->ToDotVector().front();
    const bool is_wanted = std::ranges::any_of(
        wanted, [&](int column) { return schema->field(column)->name() == root; });
    if (!is_wanted) continue;
    leaves.push_back(leaf);
    for (int group = 0; group < metadata.num_row_groups(); ++group) {
      bytes += metadata.RowGroup(group)->ColumnChunk(leaf)->total_uncompressed_size();
    }
  }
  require(bytes <= kMostDecoded, ErrorCode::kConfig, "'", path, "' has ", bytes,
          " bytes of examples, and of Parquet, which is kept in memory, at most ", kMostDecoded,
          " are read; write it as .jsonl, or as .arrow without compression, which may be of any "
          "size");
  return checked(reader->ReadTable(leaves), path);
}

/// Buffers that are not compressed stay in the file.
std::shared_ptr<arrow::Table> read_arrow(const std::string& path) {
  const auto file =
      checked(arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ), path);
  const auto begin = checked(file->ReadAt(0, 6), path);
  arrow::RecordBatchVector batches;
  std::shared_ptr<arrow::Schema> schema;
  if (begin->ToString() == "ARROW1") {
    const auto reader = checked(arrow::ipc::RecordBatchFileReader::Open(file), path);
    schema = reader->schema();
    for (int i = 0; i < reader->num_record_batches(); ++i) {
      batches.push_back(checked(reader->ReadRecordBatch(i), path));
    }
  } else {
    const auto reader = checked(arrow::ipc::RecordBatchStreamReader::Open(file), path);
    schema = reader->schema();
    batches = checked(reader->ToRecordBatches(), path);
  }
  const std::vector<int> wanted = columns_of(*schema, path);
  const auto table = checked(arrow::Table::FromRecordBatches(schema, batches), path);
  return checked(table->SelectColumns(wanted), path);
}

ordered_json value_of(const arrow::Array& array, std::int64_t row);

template <typename List>
ordered_json list_of(const List& list, std::int64_t row) {
  ordered_json values = ordered_json::array();
  for (std::int64_t i = list.value_offset(row); i < list.value_offset(row + 1); ++i) {
    values.push_back(value_of(*list.values(), i));
  }
  return values;
}

ordered_json struct_of(const arrow::StructArray& array, std::int64_t row) {
  ordered_json value = ordered_json::object();
  for (int i = 0; i < array.num_fields(); ++i) {
    value[array.type()->field(i)->name()] = value_of(*array.field(i), row);
  }
  return value;
}

ordered_json value_of(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return nullptr;
  const auto as = [&]<typename T>(std::type_identity<T>) -> const T& {
    return static_cast<const T&>(array);
  };
  const auto number = [&]<typename T>(std::type_identity<T> type) -> ordered_json {
    return as(type).Value(row);
  };
  const auto text = [&]<typename T>(std::type_identity<T> type) -> ordered_json {
    return std::string(as(type).GetView(row));
  };
  switch (array.type_id()) {
    case arrow::Type::NA:
      return nullptr;
    case arrow::Type::BOOL:
      return number(std::type_identity<arrow::BooleanArray>());
    case arrow::Type::INT8:
      return number(std::type_identity<arrow::Int8Array>());
    case arrow::Type::INT16:
      return number(std::type_identity<arrow::Int16Array>());
    case arrow::Type::INT32:
      return number(std::type_identity<arrow::Int32Array>());
    case arrow::Type::INT64:
      return number(std::type_identity<arrow::Int64Array>());
    case arrow::Type::UINT8:
      return number(std::type_identity<arrow::UInt8Array>());
    case arrow::Type::UINT16:
      return number(std::type_identity<arrow::UInt16Array>());
    case arrow::Type::UINT32:
      return number(std::type_identity<arrow::UInt32Array>());
    case arrow::Type::UINT64:
      return number(std::type_identity<arrow::UInt64Array>());
    case arrow::Type::FLOAT:
      return number(std::type_identity<arrow::FloatArray>());
    case arrow::Type::DOUBLE:
      return number(std::type_identity<arrow::DoubleArray>());
    case arrow::Type::STRING:
      return text(std::type_identity<arrow::StringArray>());
    case arrow::Type::LARGE_STRING:
      return text(std::type_identity<arrow::LargeStringArray>());
    case arrow::Type::STRING_VIEW:
      return text(std::type_identity<arrow::StringViewArray>());
    case arrow::Type::STRUCT:
      return struct_of(as(std::type_identity<arrow::StructArray>()), row);
    case arrow::Type::LIST:
      return list_of(as(std::type_identity<arrow::ListArray>()), row);
    case arrow::Type::LARGE_LIST:
      return list_of(as(std::type_identity<arrow::LargeListArray>()), row);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_of(as(std::type_identity<arrow::FixedSizeListArray>()), row);
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = as(std::type_identity<arrow::DictionaryArray>());
      return value_of(*dictionary.dictionary(), dictionary.GetValueIndex(row));
    }
    default:
      fail(ErrorCode::kConfig, "has a value of the type ", array.type()->ToString(),
           ", which is not read; write texts, lists and structs");
  }
}

class ArrowRecords : public RecordFile {
 public:
  ArrowRecords(std::string path, std::shared_ptr<arrow::Table> table)
      : path_(std::move(path)), table_(std::move(table)), starts_{0} {
    // So that the batches of all columns begin at the same rows.
    arrow::TableBatchReader reader(*table_);
    std::shared_ptr<arrow::RecordBatch> batch;
    for (check(reader.ReadNext(&batch), path_); batch; check(reader.ReadNext(&batch), path_)) {
      starts_.push_back(starts_.back() + batch->num_rows());
      batches_.push_back(std::move(batch));
    }
  }

  const std::string& path() const override { return path_; }
  std::int64_t records() const override { return starts_.back(); }
  std::int64_t bytes() const override { return arrow::util::TotalBufferSize(*table_); }

  void visit(std::int64_t first, std::int64_t count, const Use& use) const override {
    for (std::int64_t record = first; record < first + count; ++record) use(record, row(record));
  }
  std::string place(std::int64_t record) const override {
    return concat("row ", record + 1, " of '", path_, "'");
  }

 private:
  /// Columns without a value are no keys.
  ordered_json row(std::int64_t record) const {
    const auto after = std::ranges::upper_bound(starts_, record);
    const auto b = static_cast<std::size_t>(after - starts_.begin()) - 1;
    ordered_json object = ordered_json::object();
    for (int c = 0; c < batches_[b]->num_columns(); ++c) {
      try {
        ordered_json value = value_of(*batches_[b]->column(c), record - starts_[b]);
        if (!value.is_null()) object[batches_[b]->column_name(c)] = std::move(value);
      } catch (const Error& error) {
        fail(error.code(), "column '", batches_[b]->column_name(c), "' in ", place(record), " ",
             error.what());
      }
    }
    return object;
  }

  std::string path_;
  std::shared_ptr<arrow::Table> table_;
  arrow::RecordBatchVector batches_;
  std::vector<std::int64_t> starts_;  ///< the first record of each batch, and the end
};

RecordFile* open_records(const std::string& path) {
  try {
    if (!path.ends_with(".parquet")) return new ArrowRecords(path, read_arrow(path));
    const auto file = checked(arrow::io::ReadableFile::Open(path), path);
    return new ArrowRecords(path, read_parquet(file, path));
  } catch (const parquet::ParquetException& error) {
    fail(ErrorCode::kConfig, "'", path, "' cannot be read: ", error.what(), kConvert);
  }
}

}  // namespace
}  // namespace tessera::data

/// The library looks for this name in the module.
extern "C" tessera::data::RecordFile* tessera_open_arrow_records(const std::string& path) {
  return tessera::data::open_records(path);
}
