#include "tessera/trainer/config_contents.h"

#include "foreign/dialect.h"
#include "foreign/document.h"

namespace tessera {

ConfigContents read_config(const std::string& path, const std::vector<Setting>& table) {
  const foreign::Document document = foreign::read_document(path);
  return {foreign::recognise(document, table).dialect, document.root.json()};
}

}  // namespace tessera
