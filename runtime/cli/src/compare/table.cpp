#include "compare/compared_cells.h"

#include <algorithm>
#include <ostream>

#include "output/terminal.h"
#include "output/text_output.h"
#include "settings/sweep.h"
#include "tessera/core/error.h"
#include "tessera/core/format_bytes.h"
#include "tessera/lab/comparison_figures.h"

namespace tessera::cli {
namespace {

using Row = std::vector<std::string>;

std::string three_digits(double milliseconds) {
  return fixed(milliseconds, milliseconds < 1.0    ? 3
                             : milliseconds < 10.0 ? 2
                             : milliseconds < 1e3  ? 1
                                                   : 0);
}

/// "best", "best~", "failed", or how many of the repeats are done.
std::string state_of(const Comparison& results, const ComparedCell& cell, FrontPlace place) {
  if (cell.state == CellState::kMissing) return concat(cell.runs.size(), "/", results.repeats);
  if (cell.state == CellState::kDone || cell.state == CellState::kPredicted) {
    return concat(place.best ? "best" : "", place.open ? "~" : "");
  }
  return std::string(to_string(cell.state));
}

/// All but its label.
Row figures(const Comparison& results, const ComparedCell& cell, const std::string& group,
            FrontPlace place) {
  const std::optional<Estimate> time = shown_step_time(cell);
  const auto percents = [](const std::optional<double>& share) {
    return share ? fixed(100.0 * *share, 1) : "-";
  };
  const auto tokens = static_cast<double>(cell.tokens_per_step);
  return {time ? three_digits(time->value * 1e3) : "-",
          time && time->half_width ? three_digits(*time->half_width * 1e3) : "-",
          time ? with_prefix(tokens / time->value) : "-",
          format_bytes(shown_device_bytes(cell)),
          percents(exposed_share(cell)),
          percents(message_share(cell)),
          percents(bubble_share(cell)),
          group.empty() ? "-" : group,
          state_of(results, cell, place)};
}

/// Without the columns of which no row says anything; the first row is the heading.
void drop_empty_columns(std::vector<Row>& rows) {
  for (std::size_t column = rows.front().size(); column-- > 0;) {
    const bool is_empty = std::all_of(rows.begin() + 1, rows.end(), [&](const Row& row) {
      return row[column] == "-" || row[column].empty();
    });
    if (!is_empty) continue;
    for (Row& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
  }
}

/// The columns that a label may take beside the figures.
int room_for_labels(const std::vector<Row>& rows) {
  int room = kColumns;
  for (std::size_t column = 0; column < rows.front().size(); ++column) {
    std::size_t width = 0;
    for (const Row& row : rows) width = std::max(width, row[column].size());
    room -= 2 + static_cast<int>(width);
  }
  return room;
}

}  // namespace

void print_table(std::ostream& out, const Comparison& results) {
  const std::vector<std::string> groups = bit_groups(results);
  const std::vector<FrontPlace> places = front_places(results);
  std::vector<std::string> labels{"cell"};
  std::vector<Row> rows{
      {"ms/step", "+/-", "tokens/s", "memory", "exposed %", "messages %", "bubble %", "bits", ""}};
  for (std::size_t i = 0; i < results.cells.size(); ++i) {
    const ComparedCell& cell = results.cells[i];
    if (cell.state == CellState::kImpossible) continue;
    labels.push_back(cell_label(results, cell));
    rows.push_back(figures(results, cell, groups[i], places[i]));
  }
  drop_empty_columns(rows);
  const int room = room_for_labels(rows);
  rows.front().insert(rows.front().begin(), labels.front());
  TextTable table(rows.front());
  for (std::size_t i = 1; i < rows.size(); ++i) {
    // A label that is too long goes on in the rows below.
    const Row lines = split(wrapped(labels[i], room, 1), '\n');
    rows[i].insert(rows[i].begin(), lines.front());
    table.add(rows[i]);
    for (std::size_t more = 1; more < lines.size(); ++more) table.add({lines[more]});
  }
  table.print(out);
  out << "\n";
  print_paragraph(out, method_of(results));
  for (const MissingCells& missing : missing_cells(results)) {
    print_paragraph(out, concat(to_string(missing.state), ": ", missing.cells, ": ", missing.why),
                    2);
  }
}

}  // namespace tessera::cli
