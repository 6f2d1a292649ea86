// Which spans of an update follow each other, bucket by bucket: from the trainer's snapshot to the
// bucket acknowledgement of each engine.
//
// The spans of an update say what they are by arguments: "stage" (below), "version", and where they
// are about a part of the weights "bucket", "offset" and "bytes" (of the version's arena); those of
// engines also "engine". Buckets of the transfer and of devices may be cut differently: what
// follows what is told by the bytes that both have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/limits.h"

namespace wsync::trace {

// In the order in which bytes pass them.
enum class Stage : std::uint8_t {
  kSnapshot,   // of the trainer: copied and digested
  kReceive,    // came over the network, or was mapped
  kDigest,     // verified by a sidecar
  kH2D,        // separate devices and GPUs: copied to one
  kBroadcast,  // and to the others
  kReload,     // an engine copied it out and sent its bucket acknowledgement
  kLoad,       // unified devices: an engine copied all of a version
};
inline constexpr Stage kLastStage = Stage::kLoad;
[[nodiscard]] std::string_view stage_name(Stage stage) noexcept;

struct PartOfVersion {
  std::string version;
  std::optional<std::uint64_t> bucket;  // none: the whole of it
  std::uint64_t offset = 0;             // in the arena
  std::uint64_t bytes = 0;
};
// The arguments that tell a span's place in an update.
[[nodiscard]] std::vector<Arg> stage_args(Stage stage, const PartOfVersion& part);
// What stage_args() has written into a span; none: it is no part of an update.
[[nodiscard]] std::optional<Stage> stage_of(const Span& span);

// One flow for each bucket of each engine that has reloaded it: of each stage before, the last span
// of that process (snapshots: of any) that begins no later than what follows it, as far as the
// clocks are known, and has bytes of it. A stage without such a span is passed over. Buckets of
// devices that hold several of the transfer begin one flow for each. At most `most` flows;
// `left_out` counts others.
[[nodiscard]] std::vector<Flow> update_flows(const std::vector<ProcessTrace>& processes,
                                             std::uint64_t max = limits::kTraceFlows,
                                             std::uint64_t* left_out = nullptr);

}  // namespace wsync::trace
