// Says what a publish waits for while its round runs, for callers whose own wait ends before it.
#pragma once

#include <cstdint>
#include <string>

#include "shared/control/messages.h"
#include "shared/weights/version.h"

namespace wsync::plugin {

// Where a publish stands.
struct PublishPlace {
  Version version;  // none: it has no round yet
  control::ProgressPhase phase = control::ProgressPhase::kSnapshot;
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;
};

// Returns one sentence with the sidecars that have not staged the version, or the replicas that do
// not serve it; "" if nothing is known. `fleet`: the status of the coordinator. Pure.
[[nodiscard]] std::string awaited_text(const control::StatusReply& fleet,
                                       const PublishPlace& place);

}  // namespace wsync::plugin
