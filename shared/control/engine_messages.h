// Messages of the engine link, a Unix socket between a sidecar and its engine ranks (messages.h).
// Descriptors travel by SCM_RIGHTS in the order stated with each message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/kinds.h"
#include "shared/base/split_sum.h"
#include "shared/control/envelope.h"
#include "shared/weights/dtype.h"

namespace wsync::control {

// A range of one dimension of a tensor that a rank holds. A rank holds a tensor without ranges as a
// whole.
struct DimRange {
  std::uint32_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
  friend bool operator==(const DimRange&, const DimRange&) = default;
};
struct EngineTensor {
  std::string name;  // as in the checkpoint
  DType dtype = DType::kBool;
  std::vector<std::uint64_t> shape;  // of the full tensor, not of this rank's part
  std::vector<DimRange> ranges;
};
enum class TakeMode : std::uint8_t {
  kPieces,  // copies pieces into its own memory
  kWhole,   // requests whole tensors, one layer at a time
  kAdopt,   // maps the staged version and uses it in place
  kBorrow,  // maps the staged version and reads it until its commit is answered
};
// Whether a rank reads the bytes of the staged version itself, so that the library copies nothing.
[[nodiscard]] constexpr bool maps_version(TakeMode take) noexcept {
  return take == TakeMode::kAdopt || take == TakeMode::kBorrow;
}
// Sent once after connecting. The envelope names the replica and the rank.
struct EngineHello {
  static constexpr MessageType kType = MessageType::kEngineHello;
  std::uint32_t world_size = 1;
  bool leader = true;
  std::uint32_t device = 0;  // index of the sidecar's device that it runs on
  std::uint32_t pid = 0;
  TakeMode take = TakeMode::kPieces;
  // It takes every tensor of a version as a whole, whatever the layout; `tensors` is empty. Only a
  // rank that maps versions can.
  bool any_layout = false;
  RankState state = RankState::kLoading;
  Version active;  // 0.0 = no version
  std::uint64_t step = 0;
  std::vector<EngineTensor> tensors;
  std::string gpu;  // UUID of the GPU that holds its weights; empty = host memory
  // It holds pieces in host memory, in the types of the version, so patches can be written there.
  bool takes_patches = false;
  // Why its weights cannot be read again while it serves (Scrub), in one sentence. Empty: they can.
  std::string not_scrubbed;
  // The last rank of the replica is its controller: it leads, and takes no tensor. All ranks of a
  // replica agree on this.
  bool has_controller = false;
  Capabilities capabilities = kCapabilities;  // of the engine's library
};
// A process will attach as the rank that the envelope names as soon as it has allocated its memory,
// which may take minutes. Sent once, on a connection of its own that stays open meanwhile. It has
// no answer.
struct EngineStarting {
  static constexpr MessageType kType = MessageType::kEngineStarting;
  std::uint32_t world_size = 1;
  // It was attached before, and has given its memory away for a time.
  bool is_suspended = false;
};
// A process that is no engine asks for a staged version, to read it. Sent on a connection of its
// own, also again and again; a new question takes the place of one that has no answer yet. The
// answer is Prepare as for a rank that maps versions, with the arena on all kinds of devices, or
// Refuse. It may take as long as the version needs to come.
struct ReadVersion {
  static constexpr MessageType kType = MessageType::kReadVersion;
  bool has_step = false;
  std::uint64_t step = 0;  // with has_step: of the version; it need not be decided
  Version after;           // otherwise: the target of the sidecar, as soon as it is not this one
};
// One IPC buffer on a GPU, in the form of device::MemoryHandle::opaque. Its descriptor comes with
// the message, in the order of the handles.
struct BufferHandle {
  Bytes opaque;
  std::uint64_t generation = 0;  // of the sidecar process that made it, as in EngineWelcome
};
// Descriptors: the two IPC buffers for separate devices (memfd), and for cuda if they are kept;
// otherwise none.
struct EngineWelcome {
  static constexpr MessageType kType = MessageType::kEngineWelcome;
  std::uint64_t generation = 0;  // of the sidecar process
  DeviceKind device_kind = DeviceKind::kUnified;
  std::uint64_t buffer_bytes = 0;  // of each IPC buffer
  // cuda: the two IPC buffers if they are kept between loads. Otherwise each Load carries them.
  std::vector<BufferHandle> buffers;
  Capabilities capabilities = kCapabilities;  // of the sidecar
};
// A version is staged or about to be loaded. The engine maps it and prepares the load while it
// continues to serve. Descriptors: the arena for unified devices; otherwise none.
struct Prepare {
  static constexpr MessageType kType = MessageType::kPrepare;
  Version version;
  Digest layout_digest;
  Bytes layout;  // encoded Manifest; empty = the last one sent to this engine
  std::uint64_t bucket_bytes = 0;
  std::uint64_t arena_bytes = 0;
  // The sidecar has read every byte and compared it with the content digest.
  bool is_verified = false;
};
struct Prepared {
  static constexpr MessageType kType = MessageType::kPrepared;
  Version version;
  std::string failure;  // not empty: it cannot load this version
  // With a failure: the engine itself refuses the version, so nobody else should switch to it.
  bool is_refused = false;
};
// The sidecar no longer holds the version. The engine gives it up unless it is in use, and keeps
// the mapping of its arena for later versions.
struct Release {
  static constexpr MessageType kType = MessageType::kRelease;
  Version version;
};
// Arenas have been freed. The engine gives up the mappings that it keeps of arenas in which no
// version of its own is. There is no answer.
struct UnmapArenas {
  static constexpr MessageType kType = MessageType::kUnmapArenas;
};
struct Pause {
  static constexpr MessageType kType = MessageType::kPause;
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t deadline_ms = 0;
  Version version;          // to be loaded; 0.0 = not known
  std::uint64_t bytes = 0;  // of the whole version; 0 = not known
  CachePolicy caches = CachePolicy::kEngine;
};
struct Paused {
  static constexpr MessageType kType = MessageType::kPaused;
  std::uint64_t step = 0;
};
// Descriptors: the two IPC buffers for cuda without kept buffers; the memory of the patch if there
// is one; otherwise none.
struct Load {
  static constexpr MessageType kType = MessageType::kLoad;
  Version version;
  std::uint32_t deadline_ms = 0;
  // Copy threads per rank (unified devices), chosen so that the ranks of a host that load at the
  // same time use each core once. 0 or 1: no extra threads; the link's own thread copies.
  std::uint32_t copy_threads = 1;
  // cuda without kept buffers: the two IPC buffers of this load. The rank unmaps them before it
  // sends Loaded.
  std::vector<BufferHandle> buffers;
  // Unified devices: only what changes from this version on is written, out of a patch whose index
  // and buckets lie one after the other in shared memory of `patch_bytes`. A rank that does not
  // hold this version refuses. 0.0, and 0 bytes: all of the version is loaded.
  Version patch_base = {};
  std::uint64_t patch_bytes = 0;
};
// Just before the leader's Pause, to every rank that names kPatchAhead: the patch that a Load will
// probably name. The rank maps and checks it, and reads what it replaces as a whole, before it
// handles what follows. It does not answer: if anything of it fails, the Load will say so.
// Descriptor: the memory of the patch.
struct PatchAhead {
  static constexpr MessageType kType = MessageType::kPatchAhead;
  Version version;  // that the patch leads to
  // As in Load.
  Version patch_base;
  std::uint64_t patch_bytes = 0;
  std::uint32_t copy_threads = 1;
};
// Separate devices and GPUs: a bucket is ready in an IPC buffer.
struct BucketReady {
  static constexpr MessageType kType = MessageType::kBucketReady;
  std::uint64_t bucket = 0;
  std::uint32_t slot = 0;  // index of the IPC buffer
};
// Acknowledges a bucket. Sent after the copy out of the bucket is complete, so the buffer may be
// overwritten.
struct BucketAck {
  static constexpr MessageType kType = MessageType::kBucketAck;
  std::uint64_t bucket = 0;
  std::string failure;  // not empty: the copy or the callback failed
};
struct Loaded {
  static constexpr MessageType kType = MessageType::kLoaded;
  Version version;
  std::uint64_t bytes = 0;
  std::uint64_t copy_ns = 0;
  std::string failure;
  // Of each tensor of EngineHello, in its order: what the rank has read while it copied. Empty: a
  // rank that adopts, or after a failure. After a patch: of the words that it touches, as they are
  // now in the memory of the rank.
  std::vector<SplitSum> sums;
  // After a patch, in the same order: of the same words, as they were before. Otherwise empty.
  std::vector<SplitSum> before = {};
  // Bytes of weights that the load has written into the memory of the rank.
  std::uint64_t written_bytes = 0;
};
struct Commit {
  static constexpr MessageType kType = MessageType::kCommit;
  Version version;
};
struct Committed {
  static constexpr MessageType kType = MessageType::kCommitted;
  Version version;
  std::string failure;
};
struct Resume {
  static constexpr MessageType kType = MessageType::kResume;
};
struct Resumed {
  static constexpr MessageType kType = MessageType::kResumed;
};
struct ReadDigests {
  static constexpr MessageType kType = MessageType::kReadDigests;
};
struct HeldTensor {
  std::string name;
  // The digest of this rank's bytes of the tensor, row-major (tensor_digest).
  Digest digest;
  std::uint64_t bytes = 0;
};
struct Digests {
  static constexpr MessageType kType = MessageType::kDigests;
  Version version;
  std::vector<HeldTensor> tensors;
  // Not empty: nothing was read, or with `tensors`, only these, and why not the others.
  std::string failure;
  // With a failure: nothing has failed, but the engine cannot return the bytes of these tensors.
  bool is_unreadable = false;
};

// Read all weights again while the engine serves, and answer with their sums. A later Scrub takes
// the place of an earlier one.
struct Scrub {
  static constexpr MessageType kType = MessageType::kScrub;
  std::uint64_t pass = 0;       // chosen by the sidecar; 0: the last pass has been judged, and ends
  std::uint32_t share_ppm = 0;  // of the time of one processor, in millionths; at least 1
};
// Every word of the rank was read in this pass. It is sent when the pass is complete, and again
// when a patch has been committed after that, until the sidecar ends the pass: all ranks of a
// replica are then compared under one version.
struct Scrubbed {
  static constexpr MessageType kType = MessageType::kScrubbed;
  std::uint64_t pass = 0;
  Version version;           // that the rank serves now
  std::uint64_t age_ns = 0;  // since the first word was read
  // Processor time of the pass; where the engine is asked for its bytes, the time of the calls.
  std::uint64_t cpu_ns = 0;
  std::string failure;  // not empty: the pass has ended without sums
  // Of each tensor of EngineHello, in its order: the sum of its words as they were read. What
  // patches have changed since is accounted for: they return sums of the words that they touch.
  std::vector<SplitSum> sums;
};

// Asks whether the engine still polls its link. The sidecar sends at most one at a time.
struct Ping {
  static constexpr MessageType kType = MessageType::kPing;
};
struct Pong {
  static constexpr MessageType kType = MessageType::kPong;
};

}  // namespace wsync::control
