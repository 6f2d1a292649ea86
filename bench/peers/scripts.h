// The files of scripts/ and requirements.txt. CMake embeds them in the program, so that an
// installed program does not need to find them.
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
// Writes all of them into an existing directory. Errors as trace::write_text_file().
[[nodiscard]] Result<> write_peer_scripts(const std::string& directory);

}  // namespace wsync::bench
