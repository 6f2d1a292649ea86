// Links the spans of an update, bucket by bucket: from the trainer's snapshot to the bucket
// acknowledgement of each engine.
//
// Arguments identify the spans of an update: "stage" (below) and "version". Spans of a part of the
// weights also have "bucket", "offset" and "bytes" (in the version's arena), and spans of engines
// have "engine". Transfer buckets and device buffers may have different sizes, so spans are linked
// by the bytes that they have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/limits.h"

namespace wsync::trace {

// Stages in the order in which bytes pass through them.
enum class Stage : std::uint8_t {
  kSnapshot,   // trainer copied and digested the bytes
  kReceive,    // received over the network and digested, or mapped
  kH2D,        // separate devices and GPUs: copied to one device
  kBroadcast,  // copied from that device to the others
  kReload,     // engine copied the bytes out and acknowledged the bucket
  kLoad,       // unified devices: engine copied a whole version
};
inline constexpr Stage kLastStage = Stage::kLoad;
[[nodiscard]] std::string_view stage_name(Stage stage) noexcept;

struct PartOfVersion {
  std::string version;
  std::optional<std::uint64_t> bucket;  // none: the whole version
  std::uint64_t offset = 0;             // in the arena
  std::uint64_t bytes = 0;
};
// Returns the arguments that identify the place of a span in an update.
[[nodiscard]] std::vector<Arg> stage_args(Stage stage, const PartOfVersion& part);
// Returns the stage that stage_args() wrote into a span; std::nullopt if it is not part of an
// update.
[[nodiscard]] std::optional<Stage> stage_of(const Span& span);

// Builds one flow for each bucket that an engine has reloaded. From each earlier stage it takes the
// last span that has bytes of the bucket and begins no later than its successor, within the clock
// uncertainty. The span is taken from the same process; snapshots from any process. A stage without
// such a span is skipped. A device buffer that holds several transfer buckets starts one flow for
// each of them. Returns at most `max` flows; `left_out` counts the others.
[[nodiscard]] std::vector<Flow> update_flows(const std::vector<ProcessTrace>& processes,
                                             std::uint64_t max = limits::kTraceFlows,
                                             std::uint64_t* left_out = nullptr);

}  // namespace wsync::trace
