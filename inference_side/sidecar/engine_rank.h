// EngineRank: one connection on the sidecar's engine socket. It becomes a rank of a replica when
// its hello has been accepted.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/switch_events.h"
#include "inference_side/reload/weight_pipeline.h"
#include "inference_side/sidecar/load_cache.h"
#include "shared/base/error.h"
#include "shared/control/unix_stream.h"
#include "shared/loop/process_watch.h"
#include "shared/loop/timer.h"

namespace wsync::agent {

struct EngineRank {
  reload::EngineId id{};
  const control::Fence* fence = nullptr;  // the hub's, in every envelope
  std::unique_ptr<control::UnixStream> stream;
  std::unique_ptr<Timer> hello_deadline;  // until the rank is attached
  // The process that has connected; 0 if it is in another PID namespace.
  pid_t pid = 0;
  std::unique_ptr<ProcessWatch> process;  // null if it cannot be watched
  // Of this release, those that it has named.
  control::Capabilities capabilities = 0;
  bool attached = false;
  bool refused = false;       // nothing of what it has sent before it knows so is heard
  bool is_reader = false;     // it has asked for a version to read, and is no rank
  bool maps_version = false;  // it reads the staged version itself
  bool adopts = false;        // likewise, and serves from it: its load copies nothing
  bool any_layout = false;    // it takes all tensors of each version; `tensors` is empty
  bool takes_patches = false;
  bool takes_layers = false;     // by a patch: all bytes of the layers that it changes
  bool is_controller = false;    // of its replica: it has no weights
  bool loaded_by_patch = false;  // the load that it has completed last
  Version active;                // what it has committed; 0.0 = none
  // Its attachment, which the switch of its replica is not told of until the rank has answered
  // whether it takes the newest version: a replica that does not must not be paused for it.
  std::optional<reload::RankAttached> held_back;
  // Completes "rank 0 ..." while the rank does not poll its link (EngineLiveness). Otherwise empty.
  std::string silence;
  std::string replica;
  std::uint32_t rank = 0;
  std::shared_ptr<const std::vector<control::EngineTensor>> tensors;
  Digest tensors_key;
  Digest layout_sent;
  Digest layout_fits;  // the last layout that was compared with `tensors` and fits them
  // The versions that it has declined, and why.
  std::map<Version, std::string> declined;
  // For each version: its load plan if Prepare was sent, otherwise the reason why the rank cannot
  // load it.
  std::map<Version, Result<std::shared_ptr<const PreparedLoad>>> prepared;

  // Its process, for a sentence.
  [[nodiscard]] std::string process_text() const;
  // What an operator can do about a process that stands still, for a sentence.
  [[nodiscard]] std::string remedy_text() const;
  // Sends a message. Does nothing if the connection has ended. A failure to send is only logged,
  // because the stream itself reports the end of the connection.
  void send(std::uint64_t request, const control::Message& message, std::vector<UniqueFd> fds = {});
};

}  // namespace wsync::agent
