#include "bench/peers/scripts.h"

#include "shared/base/format.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::bench {

Result<> write_peer_scripts(const std::string& directory) {
  for (const PeerScript& script : peer_scripts())
    WSYNC_TRY(trace::write_text_file(fmt::format("{}/{}", directory, script.name), script.text));
  return {};
}

}  // namespace wsync::bench
