// Parses a YAML text into a flat list of "a.b" keys with values and line numbers. Supports only
// what a configuration needs: one document, nested maps, scalars, and lists of scalars for keys
// that accept them. This is the only user of yaml-cpp.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::config {

struct Entry {
  std::string key;       // "devices.count"
  std::string value;     // without quotes; the values of a list are joined with ", "
  std::string where;     // "sidecar.yaml:12", for error sentences
  bool section = false;  // "key: {}": an empty map, which has no value
  friend bool operator==(const Entry&, const Entry&) = default;
};

// Returns the entries in the order of the text. `name` is the file name in error messages. `lists`
// names the keys that accept a list. An empty text yields no entries.
// Returns kInvalidInput, with file and line, for: invalid YAML; more than one document; a list of
// any other key; a list that contains anything but scalars; an anchor, alias or tag; a duplicate
// key; a key without a value ("a:"); nesting deeper than kConfigDepthMax; a text longer than
// kConfigBytesMax.
[[nodiscard]] Result<std::vector<Entry>> parse_document(std::string_view text,
                                                        std::string_view name,
                                                        const std::set<std::string>& lists = {});

}  // namespace wsync::config
