#include "env/reports.h"

#include "tessera/kernels/cpu_libraries.h"
#include "tessera/trainer/byte_size.h"

namespace tessera::cli {
namespace {

std::string known(const std::string& text) { return text.empty() ? "not known" : text; }

std::string cores_of(const Machine& machine) {
  std::string text = std::to_string(machine.logical_cores) + " usable here";
  if (machine.physical_cores > 0)
    text += ", " + std::to_string(machine.physical_cores) + " physical";
  return text;
}

/// "2: cores 0-3 | 4-7".
std::string nodes_of(const Machine& machine) {
  if (machine.numa_nodes.empty()) return "not known";
  return std::to_string(machine.numa_nodes.size()) + ": cores " + listed(machine.numa_nodes, " | ");
}

}  // namespace

ReportPart machine_report() {
  const Machine machine = probe_machine();
  ReportPart part;
  part.rows = {
      {"system", known(machine.system) + ", " + known(machine.kernel)},
      {"host", known(machine.host)},
      {"processor", known(machine.processor)},
      {"cores", cores_of(machine)},
      {"vector units", listed(machine.vector_units) + " (kernels use " + vector_target() + ")"},
      {"NUMA nodes", nodes_of(machine)},
      {"memory", format_bytes(machine.memory_bytes) + ", " + format_bytes(machine.available_bytes) +
                     " available"}};
  part.fields = {{"system", or_null(machine.system)},
                 {"kernel", or_null(machine.kernel)},
                 {"host", or_null(machine.host)},
                 {"processor", or_null(machine.processor)},
                 {"usable_cores", known_or_null(machine.logical_cores)},
                 {"physical_cores", known_or_null(machine.physical_cores)},
                 {"vector_units", machine.vector_units},
                 {"kernels_use", vector_target()},
                 {"numa_nodes", machine.numa_nodes},
                 {"memory_bytes", known_or_null(machine.memory_bytes)},
                 {"available_bytes", machine.available_bytes}};
  return part;
}

}  // namespace tessera::cli
