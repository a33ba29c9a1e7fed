#include "env/machine_report.h"

#include "machine.h"
#include "tessera/kernels/cpu_libraries.h"
#include "tessera/trainer/byte_size.h"

namespace tessera::cli {

ReportPart machine_report() {
  const Machine machine = probe_machine();
  ReportPart part;
  part.rows = {
      {"system", machine.system + ", " + machine.kernel},
      {"host", machine.host},
      {"processor", machine.processor},
      {"cores", std::to_string(machine.logical_cores) + " usable here, " +
                    std::to_string(machine.physical_cores) + " physical"},
      {"vector units", listed(machine.vector_units) + " (kernels use " + vector_target() + ")"},
      {"NUMA nodes",
       std::to_string(machine.numa_nodes.size()) + ": " + listed(machine.numa_nodes, " | ")},
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
