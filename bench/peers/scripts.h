// The files of scripts/ and requirements.txt, which CMake puts into the program, so that it finds
// them wherever it is installed.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::bench {

struct PeerScript {
  std::string_view name;  // "member.py"
  std::string_view text;
};

[[nodiscard]] std::span<const PeerScript> peer_scripts();
// Writes all of them into a directory that exists. Errors as trace::write_text_file().
[[nodiscard]] Result<> write_peer_scripts(const std::string& directory);

}  // namespace wsync::bench
