// The time to encode and decode control messages.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/rows.h"
#include "shared/base/error.h"
#include "shared/control/codec.h"

namespace wsync::bench {

// A message of a large deployment, and its name.
struct TypicalMessage {
  std::string name;  // "Stage"
  control::Decoded decoded;
};
// Returns Stage, the Hello of a sidecar with 64 replicas, the Announce of Qwen3-30B-A3B with its
// layout, and the StatusReply about 1000 sidecars. Errors of Manifest::create().
[[nodiscard]] Result<std::vector<TypicalMessage>> typical_messages();

// Adds rows of encode(), decode() and memcpy for each message, in nanoseconds and MiB/s. kInternal
// if encoding and decoding changes a message.
[[nodiscard]] Result<> add_message_rows(const std::vector<TypicalMessage>& messages,
                                        std::vector<Row>& rows);

}  // namespace wsync::bench
