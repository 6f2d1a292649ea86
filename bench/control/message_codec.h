// What encoding and decoding of control messages takes.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/rows.h"
#include "shared/base/error.h"
#include "shared/control/codec.h"

namespace wsync::bench {

// A message as it is seen where many sidecars are, and a name for it.
struct TypicalMessage {
  std::string name;  // "Stage"
  control::Decoded decoded;
};
// Stage; the Hello of a sidecar with 64 replicas; the Announce of Qwen3-30B-A3B with its layout;
// the StatusReply about 1000 sidecars. Errors of Manifest::create().
[[nodiscard]] Result<std::vector<TypicalMessage>> typical_messages();

// For each message rows of encode(), decode() and memcpy of its bytes: nanoseconds, and MiB/s.
// kInternal when a message is not the same after both.
[[nodiscard]] Result<> add_message_rows(const std::vector<TypicalMessage>& messages,
                                        std::vector<Row>& rows);

}  // namespace wsync::bench
