// A YAML text as a flat list of "a.b" keys with their values and lines. Only what a config needs of
// YAML: one document, nested maps, scalars, and a list of scalars where a key takes several. The
// only user of yaml-cpp.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::config {

struct Entry {
  std::string key;       // "devices.count"
  std::string value;     // as written, without quotes; a list with ", " between its values
  std::string where;     // "sidecar.yaml:12", for error sentences
  bool section = false;  // "key: {}": a map with nothing in it, and so no value
  friend bool operator==(const Entry&, const Entry&) = default;
};

// Entries in the order of the text. `name` is the file's name in error sentences, `lists` the keys
// that may have a list. kInvalidInput, with file and line: no YAML, more than one document, any
// other list, a list with anything but single values in it, an anchor, alias or tag, a key twice,
// deeper than kConfigDepthMax, longer than kConfigBytesMax. A key with no value
// ("a:") has none here: it is refused too. An empty text gives no entries.
[[nodiscard]] Result<std::vector<Entry>> parse_document(std::string_view text,
                                                        std::string_view name,
                                                        const std::set<std::string>& lists = {});

}  // namespace wsync::config
